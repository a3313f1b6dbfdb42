"""The base class of recommenders: a subclass needs `fit`, `top`, `_pack` and `_unpack` only."""

import numpy as np
import pytest

import resid
from resid import InputError, Recommender
from resid.core import registry
from resid.core.registry import kinds, register
from resid.core.settings import Settings, validated
from resid.recommend.histories import recent_items, without_seen
from tests.recommend.contract import RecommenderContract, walks


@validated
class NextSettings(Settings):
    """Settings of `Next`."""

    step: int = 1


class Next(Recommender):
    """Recommends the items that follow the last one in the catalogue."""

    settings_class = NextSettings

    def __init__(self, settings=None):
        self.settings = settings or NextSettings()

    def fit(self, data, *, runtime=None):
        self.catalogue_, self.fitted = data.catalogue, True
        return self

    def top(self, histories, k, *, exclude_seen=False, allowed=None):
        last = recent_items(histories, self.catalogue_)[:, -1]
        n = len(self.catalogue_)
        ahead = (np.arange(n)[None] - last[:, None] - self.settings.step) % n  # steps from the last item to every item
        scores = -ahead.astype(np.float32)
        if allowed is not None:
            scores[:, ~allowed] = -np.inf
        items = np.argsort(-scores, axis=1, kind="stable")
        values = np.take_along_axis(scores, items, axis=1)
        items = np.where(np.isneginf(values), -1, items)
        if exclude_seen:
            return without_seen(items, values, histories, k)
        missing = max(0, k - n)
        return (
            np.pad(items, ((0, 0), (0, missing)), constant_values=-1)[:, :k],
            np.pad(values, ((0, 0), (0, missing)), constant_values=-np.inf)[:, :k],
        )

    def _pack(self):
        return {}

    @classmethod
    def _unpack(cls, artifact):
        model = cls(NextSettings(**artifact.facts["settings"]))
        model.catalogue_ = cls._catalogue(artifact)
        return model


class TestNext(RecommenderContract):
    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def registered(cls):
        kinds("recommender")  # all modules are imported before the copy is made
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(registry, "_PARTS", dict(registry._PARTS))
            register("recommender", "next")(Next)
            yield

    @classmethod
    def make(cls, data):
        return Next().fit(data)

    def test_loaded_in_another_process(self, model, tmp_path):
        """Another process knows the class only if it is part of the library; this one loads it."""
        model.save(tmp_path / "model")
        loaded = resid.load(tmp_path / "model")
        assert type(loaded) is Next
        assert loaded.recommend(self.HISTORIES, 5)[0].tolist() == model.recommend(self.HISTORIES, 5)[0].tolist()


def test_without_training_ids_or_decodings(tmp_path):
    model = Next().fit(walks())
    assert (list(model.history_), model.best_epoch_, model.ids_, dict(model.parts_)) == ([], 0, None, {})
    with pytest.raises(InputError, match="a Next has no semantic IDs"):
        _ = model.semantic_ids
    assert model.decoding_options("beam") == {}
    for name in ("exact", "free", "greedy"):
        with pytest.raises(InputError, match=f"a Next has no decoding '{name}'; only generators decode"):
            model.decoding_options(name)
    with pytest.raises(InputError, match="the model is not fitted yet; call fit first"):
        Next().save(tmp_path / "model")
    assert not (tmp_path / "model").exists()
