"""The joint generator: one network generates codes and scores items from the same state; beams propose, the blend decides.

The trunk is SASRec with fields, whose tables start from those of the encoder. From its state, level decoders predict the codes
of the next item (`resid.generate.levelwise`), and the state itself is compared with the fused field embeddings of items, as in
SASRec. Beam search over the codes proposes items; these are re-ranked by a blend of scores:

- ``codes``: the log-probability of the item's ID;
- ``item``, ``encoder`` and ``cooccurrence``: see `resid.generate.item_scores`. FAMAE ranks items with all fields masked, and
  co-occurrence finds rare targets best;

and a bias for items of the history. The weights are fitted on the items proposed to validation users and stored with the model.
Items that training never saw get the item, encoder and co-occurrence scores of the most similar items that it did (`stand_ins`).
Items that are added to a fitted model are all scored, by their fields and without codes, and have a bias that is chosen on validation
users: there, the items that appeared last are treated as if they had been added.
Re-ranking costs a dot product per proposed and per added item, so it does not grow with the rest of the catalogue; ``exact=True`` scores
all items.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any, Self, cast

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor, nn

from resid.core.artifact import Artifact
from resid.core.errors import InputError
from resid.core.registry import register
from resid.core.runtime import Runtime
from resid.data.batches import PADDING, Batches, SequenceBatch, SequenceBatches, long_pieces
from resid.data.catalogue import Catalogue
from resid.data.dataset import Dataset, require_dataset
from resid.data.new_items import NewItems
from resid.data.splits import Split
from resid.encode.base import Encoder
from resid.encode.embeddings import ItemEmbeddings
from resid.evaluate.metrics import ranking_metrics
from resid.generate.base import Generator
from resid.generate.blend import SEEN, TOP, Blend, fit_blend, largest_bias, seen_items
from resid.generate.decode import beam_items, beam_search, score_codes, score_nodes
from resid.generate.item_scores import ItemScores
from resid.generate.levelwise import DecoderState, LevelwiseModel, make_decoders
from resid.generate.new_items import same_map
from resid.generate.prefix_tree import PrefixTree
from resid.generate.settings import JointSettings
from resid.generate.stand_ins import stand_ins, with_rows
from resid.nn import EncoderLayer, item_and_fields
from resid.quantize.ids import SemanticIds
from resid.recommend.histories import BATCH_USERS, Indices, Scores
from resid.recommend.items import Grown
from resid.sequential.cooccurrence import CoOccurrence
from resid.sequential.sasrec import SASRecModel

log = logging.getLogger(__name__)

ADDED = "added"  # the name of the bias of added items
_BLEND_USERS = 20_000  # to whom items are proposed to fit the weights
_UPDATED_BLEND_USERS = (2_000, 4_000)  # in an update: the least with which the weights are fitted again, and the most
_AS_ADDED = 0.1  # share of the items, those that appeared last, that are treated as if added to choose the bias
_CHUNK_SCORES = 20_000_000  # users times items, or hidden units of the decoders, in memory at a time


class JointModel(LevelwiseModel):
    """The network.

    Parameters
    ----------
    codes
        The IDs of all items, shape (items, levels).
    level_sizes
        Number of codes of every level.
    settings
        See `JointSettings`.
    field_codes, field_sizes
        The field codes of every item, shape (items, J), and the vocabulary sizes; see `SASRecModel`.
    max_length
        Maximum length of a history.
    vectors
        Item vectors, shape (items, d), if there are any.
    n_fitted
        The number of items that the decoders know, all by default; later ones were added to a fitted model.
    """

    def __init__(
        self,
        codes: Tensor,
        level_sizes: Sequence[int],
        settings: JointSettings,
        field_codes: NDArray[np.integer],
        field_sizes: Sequence[int],
        max_length: int = 31,
        vectors: Tensor | None = None,
        n_fitted: int | None = None,
    ) -> None:
        super().__init__()
        s, self.level_sizes = settings, tuple(level_sizes)
        self.settings = settings
        self.register_buffer("codes", codes.long(), persistent=False)
        self.register_buffer("vectors", vectors, persistent=False)
        self.trunk = SASRecModel(field_codes, field_sizes, settings, max_length)
        self.code_layer = EncoderLayer(s.width, s.heads, s.ffn_width, s.dropout) if s.separate_code_layer else None
        self.code_tables = nn.ModuleList(nn.Embedding(size, s.width) for size in self.level_sizes[:-1])
        for table in self.code_tables:
            nn.init.normal_(cast(Tensor, table.weight), std=0.02)
        # Without added items, so that these change no score of the others.
        ids = SemanticIds(codes[:n_fitted].numpy(), self.level_sizes)
        scored = vectors[:n_fitted] if vectors is not None and s.output_embeddings else None
        self.decoders = make_decoders(ids, scored, s.width, s.ffn_width, s.dropout)

    def forward(self, batch: SequenceBatch, rng: torch.Generator) -> dict[str, Tensor]:
        """Return the loss of the next item and of its codes, averaged over positions."""
        items = torch.from_numpy(batch.items).to(self.codes.device)
        trained = torch.from_numpy(batch.are_targets).to(items.device)
        tokens = self.trunk.all_but_last_layer(self.trunk.tables.vectors(items[:, :-1].clamp_min(0)), None)
        states, targets = self.trunk.layers[-1](tokens, None)[trained], items[:, 1:][trained]
        item_loss = self.trunk.loss(states, targets, rng)
        if self.code_layer is not None:
            states = self.code_layer(tokens.detach(), None)[trained]
        terms = self.code_losses(states, targets, self.settings.label_smoothing)
        loss = item_loss + self.settings.code_loss_weight * torch.stack(list(terms.values())).sum()
        return {"loss": loss, "loss.item": item_loss, **terms}

    def encode_histories(self, histories: Tensor) -> Tensor:
        """Return the states from which items are scored and codes are generated, shape (users, 2, width).

        Parameters
        ----------
        histories
            Item indices, `PADDING` on the left, shape (users, length).
        """
        layers = [self.trunk.layers[-1]] + ([self.code_layer] if self.code_layer is not None else [])
        states = self.trunk.last_states(histories, layers)
        return torch.stack([states[0], states[-1]], dim=1)

    def next_level(
        self, memory: Tensor, state: DecoderState | None, codes: Tensor | None
    ) -> tuple[Tensor, DecoderState]:
        """See `Decodable.next_level`."""
        return super().next_level(memory[:, 1], state, codes)


@register("generator", "joint")
class JointGenerator(Generator[JointSettings, JointModel]):
    """Generates codes and re-ranks the items that they lead to; see the module.

    Parameters
    ----------
    settings
        See `JointSettings`.

    Attributes
    ----------
    blend_ : Blend
        The weights of the scores.
    added_blend_ : Blend or None
        Those of items that are added to the fitted model; None if they are proposed and scored as all others are.
    """

    settings_class = JointSettings
    validated_by = "seen items dropped, item score alone, before blending"
    blend_: Blend
    added_blend_: Blend | None = None

    @property
    def required_parts(self) -> tuple[str, ...]:
        """The encoder, if its score is blended."""
        return ("encoder",) if self.blend_.weights.get("encoder") else ()

    def fit(
        self,
        data: Dataset,
        ids: SemanticIds,
        embeddings: ItemEmbeddings | NDArray[np.float32] | None = None,
        encoder: Encoder | None = None,
        *,
        runtime: Runtime | None = None,
    ) -> Self:
        """Train on the training windows, then fit the blend on validation users.

        Parameters
        ----------
        data, ids, embeddings, runtime
            See `Generator.fit`.
        encoder
            Gives the initial field tables and a score of items, if the settings use it.
        """
        require_dataset(data)
        self._field_codes, self._field_sizes = item_and_fields(data, fields=self.settings.use_fields)
        self._encoder = encoder if self.settings.uses_encoder else None
        self._forget_scores()
        counted = "cooccurrence" in self.settings.scores
        self._cooccurrence = CoOccurrence().fit(data) if counted else None
        self.blend_, self.added_blend_ = Blend({"codes": 1.0}), None
        super().fit(data, ids, embeddings, runtime=runtime)
        self.fitted = False  # until the blend is there
        self.parts_ = {"encoder": self._encoder} if self._encoder is not None else {}
        self._forget_scores()
        self.blend_ = self._fit_blend(data.validation)
        self.added_blend_ = self._fit_added_blend(data)
        self._forget_scores()
        self.fitted = True
        return self

    def _take_counts(self, data: Dataset, *, alone: bool = False) -> None:
        super()._take_counts(data, alone=alone)
        self._forget_scores()
        if self._cooccurrence is not None:
            counted = CoOccurrence().fit(data)
            self._cooccurrence = counted.merged(self._cooccurrence) if alone else counted

    def _end_update(self, data: Dataset) -> None:
        super()._end_update(data)
        if len(data.validation) >= _UPDATED_BLEND_USERS[0]:
            self.blend_ = self._fit_blend(data.validation.sample(_UPDATED_BLEND_USERS[1]))
            if self.added_blend_ is not None:
                blend = self._blend_of_added(self.added_blend_.bias)
                self.added_blend_ = blend if any(blend.weights.values()) else None
            self._forget_scores()

    def _forget_counted(self) -> None:
        super()._forget_counted()
        self._forget_scores()

    def _forget_scores(self) -> None:
        """Forget what was computed from weights, counts and the blend that have changed."""
        for name in ("_item_scores", "_stand_ins"):
            vars(self).pop(name, None)

    def _configuration(self) -> dict[str, Any]:
        return {"encoder": self._encoder.digest if self._encoder is not None else None}

    def _network(
        self, codes: Tensor, level_sizes: Sequence[int], vectors: Tensor | None, max_length: int
    ) -> JointModel:
        sizes = list(self._field_sizes.values())
        model = JointModel(
            codes,
            level_sizes,
            self.settings,
            self._field_codes,
            sizes,
            max_length,
            vectors,
            self.n_decoded,
        )
        tables = self._encoder.initial_tables() if self._encoder and self.settings.start_from_encoder else {}
        with torch.no_grad():
            for name, table in zip(self._field_sizes, model.trunk.tables.embeddings(), strict=True):
                if name in tables and tables[name].shape == table.weight.shape:
                    table.weight.copy_(torch.as_tensor(tables[name]))
                elif name in tables:
                    log.warning(
                        "the table of '%s' does not start from the encoder: its shape is %s there and %s here",
                        *(name, tables[name].shape, tuple(table.weight.shape)),
                    )
        return model

    def _batches(self, data: Dataset) -> SequenceBatches:
        size = self.settings.batch_size_for(len(data.train))
        return long_pieces(data.train, size, data.settings.max_length, self.settings.seed)

    @torch.inference_mode()
    def _validate(self, users: Split) -> dict[str, float]:
        """Return the metrics of the item score with seen items dropped: the bias of seen items is fitted afterwards."""
        vars(self).pop("_item_scores", None)  # of other weights
        ranks = np.empty(len(users), dtype=np.int64)
        for batch in Batches(users, self._chunk(len(self.catalogue_)), shuffle=False):
            histories = self.recent(batch.histories)
            targets = torch.from_numpy(batch.targets).to(histories.device)[:, None]
            queries = self.model_.trunk.scale_queries(self.model_.trunk.query(histories))
            scores = self._item_scores.similarity("item", queries, None)
            own, index = scores.gather(1, targets), torch.arange(scores.shape[1], device=histories.device)
            above = (scores > own) | ((scores == own) & (index < targets))
            ranks[batch.index] = (above & ~_seen(histories, scores.shape[1])).sum(dim=1).cpu().numpy()
        return ranking_metrics(ranks)

    def _chunk(self, n_items: int) -> int:
        """Return how many users are processed at a time if all items are scored."""
        widest = max(
            n_items, *(len(level) * self.settings.ffn_width // 4 for level in self._full_tree[0].levels[:-1]), 1
        )
        return int(np.clip(_CHUNK_SCORES // widest, 1, BATCH_USERS))

    @torch.inference_mode()
    def _best(
        self,
        histories: Indices,
        k: int,
        tree: PrefixTree,
        numbers: Indices,
        beam_size: int | None,
        constrained: bool,
    ) -> tuple[Indices, Scores]:
        """Re-rank the items that the beams propose by their blended scores; see `Generator._best`."""
        added = self._scored_as_added(numbers)
        step = (
            self._chunk(len(numbers))
            if beam_size is None
            else max(1, min(len(histories), _CHUNK_SCORES // (len(added) + 1)))
        )
        parts = []
        for first in range(0, len(histories), step):
            recent = self.recent(histories[first : first + step])
            memory = self.model_.encode_histories(recent)
            if beam_size is None:
                items, blended = self._score_all(tree, numbers, recent, memory)
            else:
                items, codes = self._propose(recent, memory, tree, numbers, beam_size, constrained=constrained)
                blended = self._blend_some(recent, memory, items, codes)
                if self.added_blend_ is not None and len(added):
                    own, best = self._score_added(self.added_blend_, recent, memory, added).topk(
                        min(k, len(added)), dim=1
                    )
                    blended = torch.cat([blended.masked_fill(self._are_added(items), -torch.inf), own], dim=1)
                    items = torch.cat([items, added[best]], dim=1)
            best, place = blended.topk(min(k, blended.shape[1]), dim=1)
            chosen = items.gather(1, place).masked_fill(best == -torch.inf, -1)
            parts.append((_padded(chosen, k, -1), _padded(best, k, -np.inf)))
        items_found, scores = (np.concatenate(some) for some in zip(*parts, strict=True))
        return items_found, scores.astype(np.float32)

    def _score_all(self, tree: PrefixTree, numbers: Indices, recent: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return the items of a tree, whose indices are `numbers`, and their blended scores, shape (users, items)."""
        items = torch.from_numpy(numbers).to(recent.device)
        scores = self._scores(recent, memory, None, self._code_scores(tree, recent, memory))
        scores = {name: values if name == "codes" else values[:, items] for name, values in scores.items()}
        seen = _seen(recent, len(self.catalogue_))[:, items]
        return items.expand(len(recent), -1), self._combine(scores, seen, items)

    def _blend_some(
        self, recent: Tensor, memory: Tensor, items: Tensor, codes: Tensor, scored: ItemScores | None = None
    ) -> Tensor:
        """Return the blended scores of items, -1 for none, shape (users, n); `codes` are their log-probabilities."""
        known = items.clamp_min(0)
        scores = self._scores(recent, memory, known, codes.masked_fill(items < 0, 0.0), scored)
        return self._combine(scores, seen_items(recent, known), known).masked_fill(items < 0, -torch.inf)

    def _combine(self, scores: dict[str, Tensor], seen: Tensor, items: Tensor) -> Tensor:
        """Return the blended scores of items, shape (users, n); `items` are their indices, shape (n,) or (users, n)."""
        blended = self.blend_.combine(scores, seen)
        if self.added_blend_ is None or not self.catalogue_.added:
            return blended
        return torch.where(self._are_added(items), self.added_blend_.combine(scores, seen), blended)

    def _are_added(self, items: Tensor) -> Tensor:
        """Return which items were added and never trained on; they have the indices `items`, -1 for none."""
        return torch.from_numpy(~self.trained_items).to(items.device)[items] & (items >= 0)

    def _scored_as_added(self, numbers: Indices) -> Tensor:
        """Return the added items among some, all of which are scored: beams rarely lead to them, as codes are trained on others."""
        there = (
            self.added_blend_ is not None and self.catalogue_.added
        )  # without a pass over the catalogue if there are none
        chosen = numbers[~self.trained_items[numbers]] if there else numbers[:0]
        return torch.from_numpy(chosen).to(self.model_.codes.device)

    def _score_added(
        self, blend: Blend, recent: Tensor, memory: Tensor, items: Tensor, scored: ItemScores | None = None
    ) -> Tensor:
        """Return the blended scores of added items, shape (n,), without codes; shape (users, n)."""
        shape = (len(recent), len(items))
        scores = self._scores(recent, memory, items, torch.zeros(shape, device=recent.device), scored)
        return blend.combine(scores, seen_items(recent, items.expand(shape)))

    @torch.inference_mode()
    def contributions(self, histories: Indices, items: Indices) -> dict[str, Scores]:
        """See `Recommender.contributions`: the weighted scores, and the bias of seen items."""
        recent = self.recent(histories)
        memory, chosen = self.model_.encode_histories(recent), torch.from_numpy(items).to(recent.device)
        codes = score_codes(self.model_, memory, self.model_.codes[chosen])
        added, own = self._are_added(chosen), self.added_blend_ or self.blend_
        found = {
            name: torch.where(added, own.weights.get(name, 0.0), self.blend_.weights.get(name, 0.0)) * values
            for name, values in self._scores(recent, memory, chosen, codes).items()
        }
        found[SEEN] = self.blend_.seen_bias * seen_items(recent, chosen)
        if self.catalogue_.added:
            found[ADDED] = own.bias * added
        return {name: values.cpu().numpy().astype(np.float32) for name, values in found.items()}

    def score_tables(self) -> tuple[dict[str, NDArray[np.float32]], CoOccurrence | None]:
        """Return what the blended scores are computed from, for other systems.

        Returns
        -------
        vectors, cooccurrence
            Item vectors by the name of the score, ``item`` and ``encoder``, each of shape (items, d), and the co-occurrence;
            only those that have a weight.
        """
        used = [name for name, weight in self.blend_.weights.items() if weight]
        scored = [name for name in used if name in ("item", "encoder")]
        vectors: dict[str, NDArray[np.float32]] = {
            name: self._item_scores.vectors(name).cpu().numpy() for name in scored
        }
        return vectors, self._cooccurrence if "cooccurrence" in used else None

    def _own_vectors(self) -> NDArray[np.float32]:
        vectors: NDArray[np.float32] = self._item_scores.vectors("item").cpu().numpy()
        return vectors

    def _code_scores(self, tree: PrefixTree, recent: Tensor, memory: Tensor) -> Tensor:
        """Return the log-probabilities of the codes of a tree's items, shape (users, items)."""
        nodes = torch.from_numpy(tree.ids.node_of(tree.ids.levels)).to(recent.device)
        return score_nodes(self.model_, memory, len(recent), tree)[:, nodes]

    def _scores(
        self, recent: Tensor, memory: Tensor, items: Tensor | None, codes: Tensor, scored: ItemScores | None = None
    ) -> dict[str, Tensor]:
        """Return the scores of codes and of `ItemScores.of`, by name, each of shape (users, n)."""
        return {"codes": codes, **(scored or self._item_scores).of(recent, memory[:, 0], items)}

    @cached_property
    def _item_scores(self) -> ItemScores:
        # With a blend of their own, added items are scored by their fields.
        added = ~self.trained_items if self.added_blend_ is not None else None
        return self._scores_with(stand_ins=self._stand_ins, by_fields=added)

    def _scores_with(self, **options: Any) -> ItemScores:
        return ItemScores(self.settings.scores, self.model_.trunk, self._encoder, self._cooccurrence, **options)

    @cached_property
    def _stand_ins(self) -> sparse.csr_array | None:
        vectors = self.model_.vectors
        return stand_ins(self.catalogue_.counts, self.ids_, vectors.cpu().numpy() if vectors is not None else None)

    @torch.inference_mode()
    def _fit_blend(self, validation: Split) -> Blend:
        """Fit the weights where they are used: on the items proposed to validation users whose target is among them."""
        tree, numbers = self._full_tree
        parts: dict[str, list[Tensor]] = {}
        for batch in Batches(validation.sample(_BLEND_USERS), BATCH_USERS, shuffle=False):
            recent = self.recent(batch.histories)
            memory = self.model_.encode_histories(recent)
            items, codes = self._propose(recent, memory, tree, numbers, min(self.settings.beam_size, len(numbers)))
            hits = items == torch.from_numpy(batch.targets).to(items.device)[:, None]
            found = hits.any(dim=1)
            values = self._scores(recent, memory, items, codes)
            values |= {SEEN: seen_items(recent, items), "target": hits.float().argmax(dim=1)}
            for name, value in values.items():
                parts.setdefault(name, []).append(value[found].cpu())
        if not any(len(some) for some in parts.get("target", [])):
            log.warning("no target of a validation user is among the proposed items; items are ranked by codes alone")
            return Blend({"codes": 1.0})
        joined = {name: torch.cat(some) for name, some in parts.items()}
        seen, targets = joined.pop(SEEN), joined.pop("target")
        blend = fit_blend(joined, seen, targets)
        if any(blend.weights.values()):
            return blend
        log.warning("no score finds the targets of validation users; items are ranked by codes alone")
        return Blend({"codes": 1.0})

    @torch.inference_mode()
    def _fit_added_blend(self, data: Dataset) -> Blend | None:
        """Choose the bias of added items on validation users: the items that appeared last are treated as if they were added.

        They are the share of items that the protocol ``cold-items`` hides. The bias is the largest at which the other targets lose little
        (`largest_bias`) against a model that has these items neither among the candidates nor in histories. Added items have the weights
        of the others, but for the codes, which say nothing that their fields do not.
        """
        from resid.data.cold_items import newest_items  # here, as it imports the preprocessing

        hidden, blend = newest_items(data, _AS_ADDED, in_training=True), self._blend_of_added(0.0)
        if not hidden.any() or not any(blend.weights.values()) or not self._embeds_new_items():
            return None
        order = self.catalogue_.by_popularity
        others = self._make_tree(order[~hidden[order]])
        places = torch.from_numpy(hidden).to(self.model_.codes.device)
        parts, n_known = [], 0
        with self._as_added(data, hidden) as scored:
            for batch in Batches(data.validation.sample(_BLEND_USERS), BATCH_USERS, shuffle=False):
                recent = self.recent(batch.histories)
                known = _without(recent, places)
                if not (some := (known != PADDING).any(dim=1)).any():
                    continue
                targets = torch.from_numpy(batch.targets).to(recent.device)[some]
                recent, known = recent[some], known[some]
                memory = self.model_.encode_histories(recent)
                own, above = self._rank_targets(recent, memory, targets, others, scored)
                added = self._score_added(blend, recent, memory, places.nonzero()[:, 0], scored)
                found = above < TOP
                parts.append([each[found].cpu() for each in (own, above, added.topk(min(TOP, added.shape[1])).values)])
                if (changed := (known != recent).any(dim=1)).any():
                    memory = self.model_.encode_histories(known[changed])
                    found[changed] = (
                        self._rank_targets(known[changed], memory, targets[changed], others, scored)[1] < TOP
                    )
                n_known += int(found.sum())
        own, above, best = (torch.cat(some) for some in zip(*parts, strict=True)) if parts else (torch.empty(0),) * 3
        return replace(blend, bias=largest_bias(own, above, best, n_known)) if len(own) else None

    def _rank_targets(
        self, recent: Tensor, memory: Tensor, targets: Tensor, among: tuple[PrefixTree, Indices], scored: ItemScores
    ) -> tuple[Tensor, Tensor]:
        """Return the blended score of every target and how many items of a tree are above it; `TOP` or more if it is not proposed."""
        tree, numbers = among
        items, codes = self._propose(recent, memory, tree, numbers, min(self.settings.beam_size, len(numbers)))
        blended = self._blend_some(recent, memory, items, codes, scored)
        hits = items == targets[:, None]
        own = blended.masked_fill(~hits, -torch.inf).amax(dim=1)
        return own, (blended > own[:, None]).sum(dim=1).masked_fill(~hits.any(dim=1), max(TOP, len(numbers)))

    def _blend_of_added(self, bias: float) -> Blend:
        return replace(self.blend_, weights={**self.blend_.weights, "codes": 0.0}, bias=bias)

    def _embeds_new_items(self) -> bool:
        """Return whether the encoder has vectors for new items; without them, the model takes none."""
        try:
            if self._encoder is not None:
                self._encoder.check_growth()
        except InputError:
            return False
        return True

    @contextmanager
    def _as_added(self, data: Dataset, hidden: NDArray[np.bool_]) -> Iterator[ItemScores]:
        """Treat items as if they were added, in histories and as candidates, and return the scores of all items."""
        table, codes = data.item_table.filter(pl.Series(hidden)), data.fields[hidden].astype(np.int64)
        new = NewItems(table, codes, [[]] * len(table), self.catalogue_.extended(table))
        encoder, known_as = self._encoder, None
        vectors = None if self.model_.vectors is None else self.model_.vectors.cpu().numpy().copy()
        if encoder is not None:
            found = encoder.embed_listed(new)
            if vectors is not None:
                vectors[hidden] = same_map(encoder.item_vectors()[~hidden], vectors[~hidden], found)
            if encoder.ranks_items:
                encoder = Encoder.from_artifact(encoder.grow(new, found))
                known_as = np.arange(len(hidden))
                known_as[hidden] = len(hidden) + np.arange(len(new))
        similar = stand_ins(np.where(hidden, 0, self.catalogue_.counts), self.ids_, vectors)
        cooccurrence = self._cooccurrence
        if cooccurrence is not None and similar is not None:
            cooccurrence = cooccurrence.with_similarity(similar @ cooccurrence.similarity_)
        rows, places = self._item_tables()[0].weight, torch.from_numpy(hidden)
        trained = rows[places].clone()
        rows[places] = torch.from_numpy(next(iter(self._new_rows(new).values()))).to(rows)
        try:
            yield ItemScores(
                *(self.settings.scores, self.model_.trunk, encoder, cooccurrence, similar),
                by_fields=hidden,
                known_as=known_as,
            )
        finally:
            rows[places] = trained

    def _propose(
        self,
        recent: Tensor,
        memory: Tensor,
        tree: PrefixTree,
        numbers: Indices,
        beam_size: int,
        *,
        constrained: bool = True,
    ) -> tuple[Tensor, Tensor]:
        """Return the items that the beams lead to, -1 for none, and the log-probabilities of their codes, (users, beams)."""
        beams = beam_search(self.model_, recent, tree, beam_size, constrained=constrained, memory=memory)
        found, codes = beam_items(beams, tree, beam_size)
        items = torch.from_numpy(np.where(found >= 0, numbers[found], -1))
        return items.to(recent.device), torch.from_numpy(codes).to(recent.device)

    def _item_tables(self) -> list[nn.Embedding]:
        return [self.model_.trunk.tables.embeddings()[0]]

    def grow(self, new: NewItems) -> Grown:
        """See `Generator.grow`.

        The item and encoder scores of a new item are those of its fields, and the co-occurrence that of its `stand_ins`, both among the
        items that are scored and in a history; codes do not count. Without `added_blend_`, its codes score as those of its leaf
        (`UntrainedCodes`), and all other scores are those of its stand-ins.
        """
        grown = super().grow(new)
        arrays: dict[str, NDArray[Any]] = {"field_codes": new.append_codes(self._field_codes)}
        if self._cooccurrence is not None:
            codes = grown.artifact.tables["ids"].drop("item").to_numpy()
            ids, vectors = SemanticIds(codes, self.ids_.level_sizes), grown.artifact.arrays.get("vectors")
            weights = stand_ins(new.catalogue.counts, ids, vectors)
            arrays |= {
                f"cooccurrence.{name}": a for name, a in with_rows(self._cooccurrence, len(new), weights).items()
            }
        sizes = {**self._field_sizes, "item": self._field_sizes["item"] + len(new)}
        return replace(
            grown, artifact=new.grow(grown.artifact, appended={}, arrays=arrays, facts={"field_sizes": sizes})
        )

    def _pack(self) -> dict[str, Any]:
        content = super()._pack()
        arrays = {"field_codes": self._field_codes, **content["arrays"]}
        if self._cooccurrence is not None:
            arrays |= {f"cooccurrence.{name}": array for name, array in self._cooccurrence.arrays().items()}
        facts = {**content["facts"], "blend": self.blend_.to_dict(), "field_sizes": self._field_sizes}
        if self.added_blend_ is not None:
            facts["added_blend"] = self.added_blend_.to_dict()
        return {**content, "facts": facts, "arrays": arrays}

    def _restore(self, artifact: Artifact, catalogue: Catalogue) -> None:
        self._field_codes, self._field_sizes = artifact.arrays["field_codes"], artifact.facts["field_sizes"]
        self._encoder, self._cooccurrence = None, None
        self.blend_ = Blend.from_dict(artifact.facts["blend"])
        added = artifact.facts.get("added_blend")  # of a model of an earlier version, there is none
        self.added_blend_ = Blend.from_dict(added) if added else None
        prefix = "cooccurrence."
        if counts := {k.removeprefix(prefix): v for k, v in artifact.arrays.items() if k.startswith(prefix)}:
            self._cooccurrence = CoOccurrence.from_arrays(counts, catalogue)
        super()._restore(artifact, catalogue)

    @classmethod
    def _from_artifact(cls, artifact: Artifact) -> Self:
        model = super()._from_artifact(artifact)
        encoder = model.parts_.get("encoder")
        model._encoder = encoder if isinstance(encoder, Encoder) and model.settings.uses_encoder else None
        return model


def _without(histories: Tensor, removed: Tensor) -> Tensor:
    """Return histories without some items, `PADDING` on the left; `removed` is boolean, shape (items,)."""
    kept = (histories != PADDING) & ~removed[histories.clamp_min(0)]
    order = kept.to(torch.int8).argsort(dim=1, stable=True)
    return histories.masked_fill(~kept, PADDING).gather(1, order)


def _seen(histories: Tensor, n_items: int) -> Tensor:
    """Return which items are in each history, boolean, shape (users, n_items)."""
    seen = torch.zeros(len(histories), n_items + 1, dtype=torch.bool, device=histories.device)
    seen.scatter_(1, torch.where(histories == PADDING, n_items, histories), True)
    return seen[:, :n_items]


def _padded(values: Tensor, width: int, fill: float) -> NDArray[Any]:
    """Return values as an array with more columns, shape (users, n) to (users, width)."""
    return nn.functional.pad(values, (0, width - values.shape[1]), value=fill).cpu().numpy()
