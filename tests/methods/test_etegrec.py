"""ETEGRec: its losses against slow references, who is trained when, IDs that change, exact resume."""

import itertools
import math

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn

import resid
from resid import Dataset, InputError, Runtime
from resid.data import PADDING, Batches
from resid.encode import ItemEmbeddings
from resid.methods import etegrec
from resid.methods.etegrec import (
    Alternation,
    ETEGRec,
    ETEGRecModel,
    ETEGRecSettings,
    code_log_distributions,
    pooled,
    symmetric_divergence,
)
from resid.nn.t5 import Memory
from resid.quantize import GAOQ, RQVAE, SemanticIds
from resid.quantize.rqvae import RQVAEModel
from resid.runs import Run
from resid.train.loop import _Training
from resid.train.optim import make_optimizers, set_learning_rates
from tests.generate.test_generators import _GeneratorContract
from tests.recommend.contract import interrupt_after, walks

SMALL = {"width": 16, "ffn_width": 32, "layers": 1, "heads": 2, "head_width": 8, "batch_size": 128, "seed": 1}
SHORT = SMALL | {"epochs": 4, "finetune_epochs": 2, "alignment_start": 1, "warmup_steps": 5, "patience": 0}
DIMENSIONS = 6


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def data():
    return walks()


def make_vectors(n_items):
    return np.random.default_rng(0).normal(size=(n_items, DIMENSIONS)).astype(np.float32)


def make_quantizer(vectors, **more):
    options = {"n_levels": 2, "codebook_size": 3, "hidden_layer_sizes": (8,), "latent_dim": 4, "epochs": 5}
    return RQVAE(**{**options, **more}, random_state=0).fit(vectors)


@pytest.fixture(scope="module")
def vectors(data):
    return make_vectors(data.n_items)


@pytest.fixture(scope="module")
def quantizer(vectors):
    return make_quantizer(vectors)


def fit(data, vectors, quantizer, folder=None, **more):
    model = ETEGRec(ETEGRecSettings(**{**SHORT, **more}))
    return model.fit(data, quantizer.semantic_ids_, vectors, quantizer, runtime=Runtime(folder))


def make_alternation(vectors, **more):
    """Return the module of the first phase with random weights of both parts."""
    torch.manual_seed(0)
    settings = ETEGRecSettings(**{**SHORT, "dropout": 0.0, **more})
    tokenizer = RQVAEModel((DIMENSIONS, 8, 4), 2, 3, 0.25)
    nn.init.normal_(tokenizer.codebooks)
    codes = torch.zeros(len(vectors), 3, dtype=torch.long)
    generator = ETEGRecModel(codes, (3, 3, 12), settings, 31)
    module = Alternation(generator, tokenizer, torch.from_numpy(vectors), settings)
    module.begin_epoch(1)  # tokenizes all items
    return module


def at_epoch(module, epoch):
    module.begin_epoch(epoch)
    return module.train()


def first_batch(data):
    return next(iter(Batches(data.train, 64, seed=3)))


class TestLosses:
    @pytest.fixture(autouse=True)
    @classmethod
    def without_gradients(cls):
        with torch.no_grad():
            yield

    def test_code_distributions_by_hand(self):
        """One dimension, two levels: 1.5 is nearest to code 1 (at 2), which leaves −0.5."""
        books = torch.tensor([[[0.0], [2.0]], [[-1.0], [0.5]]])
        found = code_log_distributions(torch.tensor([[1.5]]), books, -1.0).exp()
        near, far = math.exp(-0.25), math.exp(-2.25)
        assert found[0, 0].tolist() == pytest.approx([far / (near + far), near / (near + far)])
        first, second = math.exp(-0.25), math.exp(-1.0)
        assert found[0, 1].tolist() == pytest.approx([first / (first + second), second / (first + second)])
        released = code_log_distributions(torch.tensor([[1.5]]), books, 1.0).exp()
        near, far = math.exp(0.25), math.exp(2.25)
        assert released[0, 0].tolist() == pytest.approx([far / (near + far), near / (near + far)])
        # Either way, the residual is that of the nearest code.
        first, second = math.exp(0.25), math.exp(1.0)
        assert released[0, 1].tolist() == pytest.approx([first / (first + second), second / (first + second)])

    def test_residuals_are_those_of_the_quantizer(self):
        torch.manual_seed(1)
        model = RQVAEModel((DIMENSIONS, 4), 3, 5, 0.25)
        nn.init.normal_(model.codebooks)
        latent = torch.randn(40, 4)
        found = code_log_distributions(latent, model.codebooks, -1.0)
        assert torch.equal(found.argmax(dim=2), model.quantize(latent))  # the paper's sign: the nearest code leads

    def test_symmetric_divergence(self):
        torch.manual_seed(0)
        ours, theirs = torch.randn(2, 3, 2, 4).log_softmax(dim=-1)
        total = 0.0
        for user, level, code in itertools.product(range(3), range(2), range(4)):
            p, q = float(ours[user, level, code].exp()), float(theirs[user, level, code].exp())
            total += p * math.log(p / q) + q * math.log(q / p)
        assert float(symmetric_divergence(ours, theirs)) == pytest.approx(total / 6, rel=1e-5)
        assert float(symmetric_divergence(ours, ours)) == 0
        assert total > 0  # it is minimized, so that the two become alike

    @pytest.mark.parametrize("sign", ["paper", "released"])
    def test_sequence_item_alignment(self, vectors, sign):
        module = make_alternation(vectors, sia_sign=sign)
        histories, latent = torch.randn(5, 16), torch.randn(5, 4)
        books = module.tokenizer.codebooks.detach()
        total = 0.0
        for user in range(5):
            left, right = module.history_layer(histories[user]).detach(), latent[user]
            for book in books:
                distributions = []
                for point in (left, right):
                    squares = [float((point - code).square().sum()) for code in book]
                    exponents = [math.exp(square if sign == "released" else -square) for square in squares]
                    distributions.append([value / sum(exponents) for value in exponents])
                for p, q in zip(*distributions, strict=True):
                    total += p * math.log(p / q) + q * math.log(q / p)
                left, right = (point - min(book, key=lambda code: (point - code).norm()) for point in (left, right))
        found = module.sequence_item_alignment(histories, latent)
        assert float(found) == pytest.approx(total / (5 * len(books)), rel=1e-4)

    def test_preference_semantic_alignment(self, vectors):
        module = make_alternation(vectors, psa_temperature=0.5)
        nn.init.normal_(module.preference_layer.bias)  # without it, cosines do not depend on the scale of the states
        states, reconstructed = torch.randn(4, 16), torch.randn(4, DIMENSIONS)
        ours = module.preference_layer(states * 4).detach()  # the width is 16
        score = [[float(torch.cosine_similarity(a, b, dim=0)) / 0.5 for b in reconstructed] for a in ours]
        total = 0.0
        for own in range(4):
            total -= score[own][own] - math.log(sum(math.exp(score[own][other]) for other in range(4)))
            total -= score[own][own] - math.log(sum(math.exp(score[other][own]) for other in range(4)))
        assert float(module.preference_semantic_alignment(states, reconstructed)) == pytest.approx(total / 4, rel=1e-4)

    def test_tokenizer_loss(self, vectors):
        """Means of squared errors; the quantization loss is averaged over the levels."""
        module = make_alternation(vectors)
        tokenizer, some = module.tokenizer, torch.from_numpy(vectors[:5])
        latent = tokenizer.encoder(some)
        residual, chosen, total = latent, torch.zeros_like(latent), 0.0
        for book in tokenizer.codebooks:
            code = torch.stack([min(book, key=lambda code: (point - code).norm()) for point in residual])
            total += float((residual - code).square().mean()) * 1.25 / 2
            residual, chosen = residual - code, chosen + code
        expected = tokenizer.decoder(chosen)
        reconstructed, loss = module.tokenizer_loss(some)
        torch.testing.assert_close(reconstructed, expected)
        assert float(loss) == pytest.approx(float((expected - some).square().mean()) + total, rel=1e-5)

    def test_code_loss_and_log_probs_of_every_level(self, vectors):
        module = make_alternation(vectors)
        model, targets = module.generator.eval(), torch.tensor([3, 7])
        memory = model.encode(torch.tensor([[PADDING, 1], [4, 5]]))
        states = model.states(memory, targets)
        begin, total, cold = [1, 4, 7], 0.0, 0.0
        for user, level in itertools.product(range(2), range(3)):
            rows = model.table.weight[begin[level] : begin[level] + (3, 3, 12)[level]]
            logits = rows @ states[user, level] * math.sqrt(16)
            total -= float(logits.log_softmax(dim=0)[model.codes[targets[user], level]])
            cold -= float((logits / 0.5).log_softmax(dim=0)[model.codes[targets[user], level]])
        assert float(model.code_loss(states, targets)) == pytest.approx(total / 6, rel=1e-5)
        model.temperature = make_alternation(vectors, temperature=0.5).generator.temperature
        assert float(model.code_loss(states, targets)) == pytest.approx(cold / 6, rel=1e-5)
        torch.testing.assert_close(model.first_state(memory), states[:, 0])
        # Decoding has the same probabilities, which sum to 1 at every level.
        prepared, state, codes = model.encode_histories(torch.tensor([[PADDING, 1], [4, 5]])), None, None
        for level in range(3):
            log_probs, state = model.next_level(prepared, state, codes)
            assert log_probs.exp().sum(dim=2).flatten().tolist() == pytest.approx([1, 1], abs=1e-5)
            torch.testing.assert_close(log_probs[:, 0], model.level_log_probs(states[:, level], level))
            codes = model.codes[targets, level][:, None]

    def test_pooling_ignores_padding(self):
        tokens = torch.arange(12.0).view(2, 3, 2)
        bias = torch.tensor([[-torch.inf, 0, 0], [0, 0, 0]]).view(2, 1, 1, 3)
        assert pooled(Memory(tokens, bias)).tolist() == [[3, 4], [8, 9]]

    @pytest.mark.parametrize("epoch", [2, 3])
    def test_the_sum(self, data, vectors, epoch):
        """One instance per distinct target for SQ and PSA, all instances for SIA and REC."""
        module, batch = at_epoch(make_alternation(vectors, sia_weight=0.5, psa_weight=0.25), epoch), first_batch(data)
        terms = module(batch, None)
        own, other = ("sq", "rec") if epoch == 2 else ("rec", "sq")
        assert set(terms) == {"loss", "loss.sia", "loss.psa", f"loss.{own}"}
        assert f"loss.{other}" not in terms
        loss = terms[f"loss.{own}"] + 0.5 * terms["loss.sia"] + 0.25 * terms["loss.psa"]
        assert float(terms["loss"]) == pytest.approx(float(loss))
        targets = batch.targets.tolist()
        items = sorted(set(targets))
        assert len(items) < len(targets)
        first = [targets.index(item) for item in items]
        memory = module.generator.encode(torch.from_numpy(batch.histories))
        reconstructed, quantization = module.tokenizer_loss(module.embeddings[items])
        psa = module.preference_semantic_alignment(module.generator.first_state(memory)[first], reconstructed)
        sia = module.sequence_item_alignment(pooled(memory), module.tokenizer.encoder(module.embeddings[targets]))
        assert float(terms["loss.psa"]) == pytest.approx(float(psa), rel=1e-4)
        assert float(terms["loss.sia"]) == pytest.approx(float(sia), rel=1e-4)
        if epoch == 2:
            assert float(terms["loss.sq"]) == pytest.approx(float(quantization), rel=1e-5)


class TestGradients:
    def gradients(self, module, data, term):
        module.zero_grad()
        module(first_batch(data), None)[term].backward()
        return {name for name, p in module.named_parameters() if p.grad is not None and bool(p.grad.any())}

    def test_codes_get_gradients_from_their_own_level_alone(self):
        torch.manual_seed(1)
        books, latent = torch.randn(3, 5, 4, requires_grad=True), torch.randn(7, 4, requires_grad=True)
        code_log_distributions(latent, books, -1.0)[:, 2].square().sum().backward()
        assert [bool(grad.any()) for grad in books.grad] == [False, False, True]
        assert latent.grad.any()

    def test_epochs_of_the_tokenizer(self, data, vectors):
        module = at_epoch(make_alternation(vectors), 2)
        tokenizer = {name for name, _ in module.named_parameters() if name.startswith("tokenizer.")}
        assert self.gradients(module, data, "loss") == tokenizer
        decoder = {name for name in tokenizer if ".decoder." in name}
        assert self.gradients(module, data, "loss.sia") == tokenizer - decoder
        # The straight-through estimator passes over the codebooks.
        assert self.gradients(module, data, "loss.psa") == tokenizer - {"tokenizer.codebooks"}
        assert not module.generator.training

    def test_epochs_of_the_generator(self, data, vectors):
        module = at_epoch(make_alternation(vectors), 3)
        generator = {name for name, _ in module.named_parameters() if name.startswith("generator.")}
        layers = {f"{layer}.{name}" for layer in ("history_layer", "preference_layer") for name in ("weight", "bias")}
        assert self.gradients(module, data, "loss") == generator | layers
        assert self.gradients(module, data, "loss.rec") == generator
        sia, psa = (self.gradients(module, data, f"loss.{name}") for name in ("sia", "psa"))
        assert {"history_layer.weight", "generator.table.weight"} < sia
        assert not any("decoder" in name or "preference" in name for name in sia)
        assert {"preference_layer.weight", "generator.decoder.norm.weight"} < psa
        assert not any("tokenizer" in name for name in sia | psa)
        assert not any("history_layer" in name for name in psa)

    def test_before_the_alignment(self, data, vectors):
        module = make_alternation(vectors, alignment_start=4)
        for epoch, own in ((2, "sq"), (3, "rec")):
            assert set(at_epoch(module, epoch)(first_batch(data), None)) == {"loss", f"loss.{own}"}
            assert not any(p.requires_grad for p in module.history_layer.parameters())
        assert "loss.sia" in at_epoch(module, 4)(first_batch(data), None)

    def test_what_is_frozen_does_not_change(self, data, vectors, quantizer, monkeypatch):
        """Neither by gradients nor by weight decay; the epochs alternate, and the IDs follow the tokenizer."""
        states, end_epoch = [], _Training.end_epoch

        def record(self, *arguments):
            weights = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
            states.append(({**weights, **self.model.extra_state()}, self.model))
            return end_epoch(self, *arguments)

        monkeypatch.setattr(_Training, "end_epoch", record)
        fit(data, vectors, quantizer, tokenizer_learning_rate=0.05)
        assert [type(model) for _, model in states] == [Alternation] * 4 + [ETEGRecModel] * 2
        for (before, _), (after, _) in itertools.pairwise(states[:4]):
            changed = {name.split(".")[0] for name in after if not torch.equal(before[name], after[name])}
            assert "tokenizer" in changed or {"generator", "history_layer", "preference_layer"} <= changed
            assert not {"tokenizer", "generator"} <= changed
        assert not torch.equal(states[1][0]["codes"], states[2][0]["codes"]) or not torch.equal(
            states[2][0]["codes"], states[3][0]["codes"]
        )
        # Fine-tuning changes the T5, from the best epoch on.
        assert not torch.equal(states[4][0]["table.weight"], states[5][0]["table.weight"])


def test_ids_follow_the_tokenizer(data, vectors):
    """They stay during an epoch of the tokenizer and are computed anew before the next epoch of the T5."""
    module = at_epoch(make_alternation(vectors), 2)
    before = module.generator.codes.clone()
    with torch.no_grad():
        module.tokenizer.codebooks.copy_(torch.randn_like(module.tokenizer.codebooks))
    module.begin_epoch(2)  # again, as a resumed run does
    assert torch.equal(module.generator.codes, before)
    module.begin_epoch(3)
    after = module.generator.codes
    assert not torch.equal(after, before)
    expected = module.tokenizer.quantize(module.tokenizer.encoder(module.embeddings))
    assert torch.equal(after[:, :-1], expected)
    assert SemanticIds(after.numpy()).unique


@pytest.mark.parametrize("cycle", [2, 4])
def test_warm_up_counts_the_steps_of_the_part(vectors, cycle):
    """Epochs of one step: the T5 reaches its full rate after `warmup_steps` steps of its own, the tokenizer after a part."""
    module = make_alternation(vectors, cycle=cycle, warmup_steps=12, learning_rate=1e-3)
    optimizers = make_optimizers(module, module.settings)
    own = {"generator": [], "tokenizer": []}
    for step in range(2 * 12):
        set_learning_rates(optimizers, step, 10**9)
        rates = [group["lr"] / group["base_lr"] for optimizer in optimizers for group in optimizer.param_groups]
        trained = step % cycle == 0  # the tokenizer's group is the second
        own["tokenizer" if trained else "generator"].append(rates[trained] > 1 - 1e-9)
    assert own["generator"].index(True) + 1 == pytest.approx(12, abs=1)
    assert own["tokenizer"].index(True) + 1 == pytest.approx(12 / cycle, abs=1)


class TestLastLevel:
    def test_it_grows(self, vectors):
        model = make_alternation(vectors).generator
        table = model.table.weight.detach().clone()
        codes = model.codes.clone()
        codes[:, -1] = torch.arange(len(codes)) + 3
        model.set_codes(codes)
        assert model.level_sizes == (3, 3, 15)
        assert model.table.weight.shape == (1 + 3 + 3 + 15, 16)
        assert torch.equal(model.table.weight[: len(table)], table)
        assert model.level_log_probs(torch.zeros(1, 16), 2).shape == (1, 15)
        model.resize_last_level(12)  # as before, when a checkpoint of then is loaded
        assert torch.equal(model.table.weight, table)

    def test_its_size_is_that_of_the_ids(self, data, vectors, quantizer):
        """Also where it has grown for IDs that are not used any more."""
        model = fit(data, vectors, quantizer, epochs=1, finetune_epochs=1)
        model.model_.resize_last_level(300)
        model._take_ids()
        assert model.ids_.level_sizes == model.model_.level_sizes == (3, 3, 300)

    def test_a_group_beyond_its_size_in_training(self, data, quantizer, monkeypatch, tmp_path):
        """All vectors become alike for the tokenizer, so that all items share their codes; interrupted in the last epoch."""
        monkeypatch.setattr(etegrec, "DEDUPLICATION_CODES", 1)
        vectors = make_vectors(data.n_items)
        small = quantizer.semantic_ids_.level_sizes[-1]
        tokenize = Alternation.tokenize

        def collapsed(self):
            with torch.no_grad():
                self.tokenizer.encoder[-1].weight.zero_()
            tokenize(self)

        monkeypatch.setattr(Alternation, "tokenize", collapsed)
        whole = fit(data, vectors, quantizer)
        assert whole.ids_.level_sizes == (3, 3, 12)
        assert whole.ids_.level_sizes[-1] > small
        assert whole.ids_.unique
        with monkeypatch.context() as patch:
            steps_per_epoch = whole.history_[0]["step"]
            interrupt_after(3 * steps_per_epoch + 2, patch)
            with pytest.raises(KeyboardInterrupt):
                fit(data, vectors, quantizer, tmp_path)
        assert_same(fit(data, vectors, quantizer, tmp_path), whole)
        items, _ = whole.recommend([["i1", "i2"]], 12, exact=True)
        assert set(items[0]) == set(data.item_ids)


def assert_same(ours, theirs):
    for (name, left), (same, right) in zip(
        ours.model_.state_dict().items(), theirs.model_.state_dict().items(), strict=True
    ):
        assert name == same
        assert torch.equal(left, right)
    tokenizers = [model.parts_["quantizer"].model_.state_dict().values() for model in (ours, theirs)]
    assert all(torch.equal(left, right) for left, right in zip(*tokenizers, strict=True))
    assert np.array_equal(ours.ids_.codes, theirs.ids_.codes)
    assert [record["loss"] for record in ours.history_] == [record["loss"] for record in theirs.history_]
    assert ours.best_epoch_ == theirs.best_epoch_


MOVING = {"tokenizer_learning_rate": 0.05, "dropout": 0.2}  # so that IDs change


class TestResume:
    @pytest.fixture(scope="class")
    @classmethod
    def whole(cls, data, vectors, quantizer):
        return fit(data, vectors, quantizer, **MOVING)

    @pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
    def test_every_phase(self, whole, data, vectors, quantizer, tmp_path, monkeypatch, kill):
        """Stopped or killed in epochs of the tokenizer, of the T5 and of the fine-tuning, in one run after another."""
        steps = whole.history_[0]["step"]
        assert steps > 3
        for epoch in (0, 1, 2, 5):  # counted from the beginning, the last one is of the fine-tuning
            reached = []

            def step(self, batch, reached=reached, last=epoch * steps + 3, original=_Training._step):
                reached.append(1)
                done = self.state.step + (4 * steps if isinstance(self.model, ETEGRecModel) else 0)
                if kill and done == last:
                    raise ConnectionError  # nothing is saved
                return original(self, batch)

            with monkeypatch.context() as patch:
                if kill:
                    patch.setattr(_Training, "_step", step)
                else:
                    interrupt_after(3 if epoch == 0 else steps * (2 if epoch == 5 else 1), patch)
                with pytest.raises(ConnectionError if kill else KeyboardInterrupt):
                    fit(data, vectors, quantizer, tmp_path, **MOVING)
        for _ in range(2):  # the second time it is already finished
            assert_same(fit(data, vectors, quantizer, tmp_path, **MOVING), whole)
        assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {"alternation", "fine-tuning"}

    def test_other_inputs_are_refused(self, data, vectors, quantizer, tmp_path):
        fit(data, vectors, quantizer, tmp_path, epochs=1, finetune_epochs=1)
        with pytest.raises(InputError, match="this run has another configuration, 'quantizer' was"):
            fit(data, vectors, make_quantizer(vectors, commitment_weight=0.3), tmp_path, epochs=1, finetune_epochs=1)


def test_history_of_both_phases(data, vectors, quantizer):
    model = fit(data, vectors, quantizer, evaluate_every=1)
    assert [record["epoch"] for record in model.history_] == [1, 2, 3, 4, 5, 6]
    tuning = {record["epoch"]: record["ndcg@10"] for record in model.history_[4:]}
    assert tuning[model.best_epoch_] == max(tuning.values())
    assert "loss.sq" in model.history_[0]
    assert "loss.rec" in model.history_[1]


def test_an_epoch_of_the_tokenizer_is_evaluated_with_its_own_ids(data, vectors, quantizer):
    """The last epoch trains the tokenizer, and is always evaluated: the best weights and IDs must match."""
    model = fit(data, vectors, quantizer, epochs=1, tokenizer_learning_rate=0.05)
    tokenizer = model.parts_["quantizer"]
    assert not np.array_equal(tokenizer.codes_, quantizer.codes_)
    assert np.array_equal(tokenizer.codes_, tokenizer.transform(vectors))
    assert np.array_equal(model.ids_.codes, tokenizer.semantic_ids_.codes)


def test_learns_the_next_item(data, vectors, quantizer):
    size = {"width": 32, "head_width": 16, "ffn_width": 64, "batch_size": 16, "dropout": 0.0}
    rates = {"learning_rate": 3e-3, "finetune_learning_rate": 3e-3, "weight_decay": 0.0}
    model = fit(data, vectors, quantizer, **size, **rates, epochs=6, finetune_epochs=16, evaluate_every=4)
    trained = data.test.end - data.test.begin <= 8  # no training history is longer
    ranks = model.ranks(data.test)[0][trained]
    assert (ranks < 5).all()
    assert (ranks == 0).mean() > 0.8


class TestContract(_GeneratorContract):
    @classmethod
    def make(cls, data):
        vectors = make_vectors(data.n_items)
        quantizer = make_quantizer(vectors)
        return fit(data, vectors, quantizer, epochs=2, finetune_epochs=1, beam_size=4)

    def test_semantic_ids(self, model, data):
        assert model.semantic_ids.columns == ["item", "c1", "c2", "c3"]
        assert model.semantic_ids["item"].to_list() == data.item_ids.to_list()
        assert model.ids_.unique
        assert model.ids_.level_sizes == (3, 3, 256)

    def test_the_tokenizer_travels_with_the_model(self, model, tmp_path):
        vectors = make_vectors(12)
        model.save(tmp_path / "model")
        tokenizer = resid.load(tmp_path / "model").parts_["quantizer"]
        assert np.array_equal(tokenizer.new_ids(vectors), model.ids_.codes)
        new = tokenizer.new_ids(vectors[:2] + 1e-4)
        assert np.array_equal(new[:, :-1], model.ids_.codes[:2, :-1])
        taken = {tuple(row) for row in model.ids_.codes.tolist()}
        assert not taken & {tuple(row) for row in new.tolist()}


class TestBadInput:
    def test_without_quantizer_or_embeddings(self, data, vectors, quantizer):
        ids = quantizer.semantic_ids_
        tree = GAOQ((2, 3), random_state=0).fit(vectors)
        for given in ((vectors, None), (None, quantizer), (vectors, tree)):
            with pytest.raises(InputError, match=r'fit a recipe whose quantizer\.kind is "rq-vae"'):
                ETEGRec().fit(data, ids, *given)

    def test_inputs_that_do_not_match(self, data, vectors, quantizer):
        ids = quantizer.semantic_ids_
        shared = make_quantizer(vectors, collisions="keep")
        for given in (
            (ids, vectors[:, :4], quantizer),
            (ids, vectors[:7], quantizer),
            (shared.semantic_ids_, vectors, shared),
            (GAOQ((2, 3), random_state=0).fit(vectors).semantic_ids_, vectors, quantizer),
        ):
            with pytest.raises(InputError, match="IDs, embeddings and quantizer do not match"):
                ETEGRec().fit(data, *given)

    def test_embeddings_of_another_dataset(self, data, vectors, quantizer):
        other = ItemEmbeddings(vectors, {"item": (0, DIMENSIONS)}, "another")
        with pytest.raises(InputError, match="these are the embeddings of another Dataset"):
            ETEGRec().fit(data, quantizer.semantic_ids_, other, quantizer)

    def test_embeddings_that_are_not_finite(self, data, vectors, quantizer):
        broken = vectors.copy()
        broken[3, 1] = np.nan
        with pytest.raises(InputError, match="the embedding of item 3 is not finite"):
            ETEGRec().fit(data, quantizer.semantic_ids_, broken, quantizer)

    def test_one_item(self):
        log = pl.DataFrame({"user": ["a"] * 8 + ["b"] * 8, "item": ["x"] * 16, "timestamp": list(range(16))})
        data = Dataset.from_tables(log, k_core=1)
        vectors = np.ones((1, DIMENSIONS), dtype=np.float32)
        model = fit(data, vectors, make_quantizer(vectors, codebook_size="auto"))
        assert model.recommend(["x"], 1)[0].tolist() == ["x"]

    def test_a_cycle_without_epochs_of_the_generator(self):
        with pytest.raises(InputError, match="cycle"):
            ETEGRecSettings(cycle=1)


CHANGES = {"encoder.epochs": 1, "encoder.width": 32, "quantizer.epochs": 20}
RECIPE = CHANGES | {f"generator.{name}": value for name, value in SHORT.items() if name != "seed"}


class TestRecipe:
    @pytest.fixture(scope="class")
    @classmethod
    def shop_data(cls, shop):
        return Dataset.from_tables(shop.interaction_table, shop.item_table, ["store"])

    def test_from_tables_to_recommendations(self, shop_data, tmp_path):
        changes = RECIPE | {"generator.tokenizer_learning_rate": 0.01}
        model = resid.fit(shop_data, "etegrec", tmp_path / "run", changes=changes)
        assert isinstance(model, ETEGRec)
        assert list(model.parts_) == ["encoder", "quantizer"]
        loaded = resid.load(tmp_path / "run")
        again = resid.fit(shop_data, "etegrec", tmp_path / "run", changes=changes)  # all stages are there
        history = [shop_data.item_ids[:3].to_list()]
        everything, scores = model.recommend(history, shop_data.n_items, exact=True)
        assert set(everything[0]) == set(shop_data.item_ids)  # no item is out of reach
        for other in (loaded, again):
            items, values = other.recommend(history, shop_data.n_items, exact=True)
            assert items.tolist() == everything.tolist()
            assert values.tobytes() == scores.tobytes()
            assert np.array_equal(other.parts_["quantizer"].semantic_ids_.codes, model.ids_.codes)

    def test_with_the_one_pass_generator(self, shop_data):
        changes = CHANGES | {"generator.kind": "onepass", "generator.epochs": 1}
        model = resid.fit(shop_data, "etegrec", changes=changes)
        assert model.kind == "onepass"
        assert model.ids_.unique

    def test_a_codebook_larger_than_the_catalogue(self, shop_data):
        with pytest.raises(InputError, match="should be >= codebook_size=256: use a smaller codebook"):
            resid.fit(shop_data, "etegrec", changes=RECIPE | {"quantizer.codebook_size": 256})

    def test_another_quantizer(self, shop_data, monkeypatch):
        """Refused before anything is fitted."""
        monkeypatch.delattr(Run, "stage")
        changes = {key: value for key, value in RECIPE.items() if key != "quantizer.epochs"}
        with pytest.raises(
            InputError,
            match=r"'etegrec' trains an RQ-VAE .* the quantizer 'rq-kmeans'; set quantizer\.kind to \"rq-vae\"",
        ):
            resid.fit(shop_data, "etegrec", changes=changes | {"quantizer.kind": "rq-kmeans"})

    def test_ids_with_collisions(self, shop_data, monkeypatch):
        """Refused before anything is fitted."""
        monkeypatch.delattr(Run, "stage")
        with pytest.raises(InputError, match=r"'etegrec' needs unique IDs; set quantizer\.collisions to"):
            resid.fit(shop_data, "etegrec", changes=RECIPE | {"quantizer.collisions": "keep"})
