"""Two generators that are ranked together."""

import numpy as np
import pytest
import torch

import resid
from resid import InputError
from resid.generate import OnePassGenerator, OnePassSettings, PairedGenerators, T5Generator, T5Settings
from tests.generate.test_two_streams import inputs, one_by_one
from tests.recommend.contract import RecommenderContract, walks

SMALL = {"width": 16, "ffn_width": 32, "layers": 1, "heads": 2, "batch_size": 16, "epochs": 1}


class TestPairedGenerators(RecommenderContract):
    @classmethod
    def make(cls, data):
        ids, vectors, other_ids, others = inputs(data)
        first = OnePassGenerator(OnePassSettings(**SMALL)).fit(data, ids, vectors)
        return PairedGenerators().fit(first, T5Generator(T5Settings(**SMALL)).fit(data, other_ids, others))

    @pytest.mark.parametrize("exact", [False, True])
    def test_the_score_is_the_sum_of_both_log_probabilities(self, model, exact):
        """The first generator's are known from its own ranking; the second's are computed one by one."""
        history = [3, 4, 5]
        first, second = model.generators
        own, values = first.top(np.array([history]), 12, exact=True)
        expected = dict(zip(own[0].tolist(), values[0].tolist(), strict=True))
        with torch.no_grad():
            for item in range(12):
                expected[item] += one_by_one(second.model_, history, second.model_.codes[item].tolist())
        items, scores = model.top(np.array([history]), 12, exact=exact)
        assert scores[0].tolist() == pytest.approx([expected[item] for item in items[0]], abs=1e-4)
        assert sorted(items[0]) == list(range(12))

    def test_ids_of_both(self, model, data, tmp_path):
        assert model.semantic_ids.columns == ["item", "behavior_c1", "behavior_c2", "semantic_c1", "semantic_c2"]
        model.save(tmp_path, parts=False)  # the generators are needed, so they are kept
        assert resid.load(tmp_path).semantic_ids.equals(model.semantic_ids)
        shares = [generator.invalid_share(data.test) for generator in model.generators]
        assert model.invalid_share(data.test) == pytest.approx(np.mean(shares))


def test_bad_pairs():
    with pytest.raises(InputError, match="a pair consists of two fitted generators"):
        PairedGenerators().fit(None, None)
    with pytest.raises(InputError, match=r"use the recipe 'eager' with generator\.kind=t5 or onepass"):
        PairedGenerators().check(walks())
