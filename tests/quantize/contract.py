"""Contract tests of quantizers: a test class inherits them and builds the quantizer."""

import numpy as np
import pytest
import torch

from resid.quantize import Quantizer, SemanticIds
from tests.quantize.test_kmeans import blobs


class QuantizerContract:
    @classmethod
    def make(cls, random_state=0) -> Quantizer:
        """Return a quantizer that is quickly fitted to 160 vectors of 12 dimensions."""
        raise NotImplementedError

    @pytest.fixture(scope="class")
    @classmethod
    def fitted(cls):
        return cls.make().fit(blobs(160, d=12))

    def test_codes(self, fitted):
        assert fitted.codes_.dtype == np.int32
        assert fitted.codes_.shape == (160, len(fitted.level_sizes_))
        assert (fitted.codes_ >= 0).all()
        assert (fitted.codes_ < fitted.level_sizes_).all()
        assert isinstance(fitted.semantic_ids_, SemanticIds)
        levels = len(fitted.level_sizes_)
        assert np.array_equal(fitted.semantic_ids_.codes[:, :levels], fitted.codes_)
        assert fitted.semantic_ids_.level_sizes[:levels] == fitted.level_sizes_
        assert fitted.semantic_ids_.levels == levels + (fitted.collisions == "deduplicate")

    def test_seed(self, fitted):
        vectors = blobs(160, d=12)
        assert np.array_equal(self.make().fit(vectors).codes_, fitted.codes_)
        assert np.array_equal(self.make().fit(torch.from_numpy(vectors)).codes_, fitted.codes_)
        assert not np.array_equal(self.make(random_state=1).fit(vectors).codes_, fitted.codes_)

    def test_fitted_rows_keep_their_codes(self, fitted):
        assert np.array_equal(fitted.transform(blobs(160, d=12)), fitted.codes_)

    def test_fit_transform(self, fitted):
        assert np.array_equal(self.make().fit_transform(blobs(160, d=12)), fitted.codes_)

    def test_invalid_input(self):
        for bad in (np.full((160, 12), np.nan), np.ones(5), np.ones((0, 12))):
            with pytest.raises(ValueError):  # noqa: PT011 - the messages of other libraries
                self.make().fit(bad)
