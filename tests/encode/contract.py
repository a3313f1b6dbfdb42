"""What holds for every encoder: a test class inherits these and says how to make one."""

import numpy as np
import pytest

from resid import Dataset, InputError
from resid.encode import Encoder


class EncoderContract:
    @classmethod
    def make(cls) -> Encoder:
        """Return an encoder that is quickly fitted; the same one every time."""
        raise NotImplementedError

    @pytest.fixture(scope="class")
    @classmethod
    def small(cls, shop):
        return Dataset.from_tables(shop.interaction_table, shop.item_table, ["store", "categories"])

    @pytest.fixture(scope="class")
    @classmethod
    def embeddings(cls, small):
        return cls.make().fit(small).embed(small)

    def test_it_is_an_encoder(self, small):
        encoder = self.make()
        assert isinstance(encoder, Encoder)
        assert encoder.fit(small) is encoder

    def test_a_finite_vector_for_every_item(self, small, embeddings):
        assert embeddings.vectors.dtype == np.float32
        assert len(embeddings.vectors) == small.n_items
        assert np.isfinite(embeddings.vectors).all()
        assert len(np.unique(embeddings.vectors, axis=0)) == small.n_items  # no two are the same
        assert embeddings.fingerprint == small.fingerprint

    def test_the_columns_are_shared_out(self, embeddings):
        ends = [0]
        for first, last in embeddings.columns.values():
            assert first == ends[-1] < last
            ends.append(last)
        assert ends[-1] == embeddings.vectors.shape[1]

    def test_the_same_settings_give_the_same_vectors(self, small, embeddings):
        assert np.array_equal(self.make().fit(small).embed(small).vectors, embeddings.vectors)

    def test_it_must_be_fitted_first_and_to_this_dataset(self, small, shop):
        with pytest.raises(InputError, match="not fitted"):
            self.make().embed(small)
        other = shop.item_table.with_columns(store=shop.item_table["store"].shuffle(1))  # the same items, other stores
        with pytest.raises(InputError, match="another Dataset"):
            self.make().fit(small).embed(Dataset.from_tables(shop.interaction_table, other, ["store", "categories"]))
