"""The weights and recommendations of recipes are those that were recorded: bit for bit on a processor of the same kind."""

import json

import pytest
import torch

from tests.fingerprints import FILE, RECIPES, dataset, fingerprint, machine

RECORDED = json.loads(FILE.read_text(encoding="utf-8"))


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_gives_what_was_recorded(recipe, one_thread):
    found, recorded = fingerprint(recipe, dataset()), RECORDED["recipes"][recipe]
    assert found["weight_sum"] == pytest.approx(recorded["weight_sum"], rel=1e-3)
    assert found["score_sum"] == pytest.approx(recorded["score_sum"], rel=1e-2)
    common = [
        len(set(ours) & set(theirs)) for ours, theirs in zip(found["first_items"], recorded["first_items"], strict=True)
    ]
    assert sum(common) >= 0.8 * 10 * len(common)
    if machine() == RECORDED["machine"]:
        assert found == recorded
