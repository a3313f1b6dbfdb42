"""The contract of encoders: a test class inherits these tests and says how to make one."""

import os
import signal

import numpy as np
import polars as pl
import pytest

from resid import Dataset, InputError
from resid.core.runtime import Runtime
from resid.encode import Encoder
from resid.sequential import Popularity
from resid.train.loop import _Training


class EncoderContract:
    embeds_new_items = False  # whether it can embed items that are not in the Dataset

    @classmethod
    def make(cls) -> Encoder:
        """Return an encoder that is quickly fitted, always with the same settings."""
        raise NotImplementedError

    @pytest.fixture(scope="class")
    @classmethod
    def small(cls, shop):
        return Dataset.from_tables(shop.interaction_table, shop.item_table, ["store", "categories"])

    @pytest.fixture(scope="class")
    @classmethod
    def encoder(cls, small):
        return cls.make().fit(small)

    @pytest.fixture(scope="class")
    @classmethod
    def embeddings(cls, encoder, small):
        return encoder.embed(small)

    @pytest.fixture(scope="class")
    @classmethod
    def saved(cls, encoder, tmp_path_factory):
        folder = tmp_path_factory.mktemp("encoder") / "saved"
        encoder.save(folder)
        return folder

    def test_it_is_an_encoder(self, small):
        encoder = self.make()
        assert isinstance(encoder, Encoder)
        assert encoder.stage == "encoder"
        assert type(encoder.settings) is encoder.settings_class
        assert encoder.fit(small) is encoder

    def test_a_finite_vector_for_every_item(self, small, embeddings):
        assert embeddings.vectors.dtype == np.float32
        assert len(embeddings.vectors) == small.n_items
        assert np.isfinite(embeddings.vectors).all()
        assert len(np.unique(embeddings.vectors, axis=0)) == small.n_items  # no two are the same
        assert embeddings.fingerprint == small.fingerprint

    def test_the_fields_partition_the_columns(self, embeddings):
        ends = [0]
        for first, last in embeddings.columns.values():
            assert first == ends[-1] < last
            ends.append(last)
        assert ends[-1] == embeddings.vectors.shape[1]

    def test_the_same_settings_give_the_same_vectors(self, small, embeddings):
        assert np.array_equal(self.make().fit(small).embed(small).vectors, embeddings.vectors)

    def test_it_must_be_fitted_first_and_to_this_dataset(self, small, shop, encoder):
        with pytest.raises(InputError, match="not fitted"):
            self.make().embed(small)
        other = shop.item_table.with_columns(store=shop.item_table["store"].shuffle(1))  # the same items, other stores
        with pytest.raises(InputError, match="another Dataset"):
            encoder.embed(Dataset.from_tables(shop.interaction_table, other, ["store", "categories"]))

    def test_an_encoder_that_is_not_fitted_cannot_be_saved(self, tmp_path):
        with pytest.raises(InputError, match="not fitted"):
            self.make().save(tmp_path / "saved")
        assert not (tmp_path / "saved").exists()

    def test_a_loaded_encoder_gives_the_same_embeddings(self, small, encoder, embeddings, saved):
        """It is loaded without the Dataset, by its own class or by the base class."""
        for cls in (type(encoder), Encoder):
            loaded = cls.load(saved)
            assert type(loaded) is type(encoder)
            assert loaded.settings == encoder.settings
            again = loaded.embed(small)
            assert np.array_equal(again.vectors, embeddings.vectors)
            assert again.columns == embeddings.columns
            assert again.digest == embeddings.digest

    def test_another_process_gives_the_same_embeddings(self, small, embeddings, saved, forks, tmp_path):
        small.save(tmp_path / "data")
        program = (
            "import sys\nfrom resid import Dataset\nfrom resid.encode import Encoder\n"
            "print(Encoder.load(sys.argv[1]).embed(Dataset.load(sys.argv[2])).digest)"
        )
        assert forks.output(program, saved, tmp_path / "data").strip() == embeddings.digest

    def test_a_folder_with_another_part_is_refused(self, small, encoder, tmp_path):
        Popularity().fit(small).save(tmp_path / "popularity")
        with pytest.raises(InputError, match=f"this is a Popularity, not a {type(encoder).__name__}"):
            type(encoder).load(tmp_path / "popularity")

    def test_an_altered_file_is_refused(self, encoder, tmp_path):
        encoder.save(tmp_path / "saved")
        path = next((tmp_path / "saved").rglob("weights.safetensors"))
        content = bytearray(path.read_bytes())
        content[-1] ^= 255
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"weights\.safetensors: missing or altered"):
            type(encoder).load(tmp_path / "saved")

    def test_new_items(self, shop, small, encoder, embeddings, saved):
        """Also from a loaded encoder; an encoder that cannot embed new items says so."""
        new = shop.item_table.head(3).with_columns(item=pl.Series(["new", "newer", "newest"]))
        if not self.embeds_new_items:
            for some in (encoder, type(encoder).load(saved)):
                with pytest.raises(InputError, match=f"a {type(encoder).__name__} cannot embed new items; use FAMAE"):
                    some.embed_new(new)
            return
        ids, vectors = encoder.embed_new(new)
        assert ids.to_list() == ["new", "newer", "newest"]
        assert vectors.shape == (3, embeddings.vectors.shape[1])
        assert vectors.dtype == np.float32
        assert np.isfinite(vectors).all()
        names, again = type(encoder).load(saved).embed_new(new)
        assert names.to_list() == ids.to_list()
        assert np.array_equal(again, vectors)
        with pytest.raises(InputError, match="not fitted"):
            self.make().embed_new(new)

    def test_an_interrupted_fit_continues(self, small, embeddings, tmp_path, monkeypatch):
        """A fit that was interrupted in its second epoch ends with the same vectors in the same folder."""
        steps, step = [], _Training._step

        def counted(training, batch):
            steps.append(1)
            if len(steps) == len(training.batches) + 1:
                os.kill(os.getpid(), signal.SIGINT)
            return step(training, batch)

        with monkeypatch.context() as patch:
            patch.setattr(_Training, "_step", counted)
            with pytest.raises(KeyboardInterrupt):
                self.make().fit(small, runtime=Runtime(tmp_path))
            first = len(steps)
            encoder = self.make().fit(small, runtime=Runtime(tmp_path))
        assert len(steps) - first < first  # what was trained is not trained again
        assert np.array_equal(encoder.embed(small).vectors, embeddings.vectors)
