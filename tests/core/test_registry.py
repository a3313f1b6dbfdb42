"""The registry: stages and kinds, errors, and a new part."""

from typing import Any

import numpy as np
import pytest

from resid import InputError
from resid.core import registry
from resid.core.part import Part, PartSpec
from resid.core.registry import find_part, kinds, register, stage_of
from resid.core.settings import Settings
from resid.quantize import GAOQ, Quantizer
from resid.quantize.points import as_points


@pytest.fixture
def parts(monkeypatch):
    """Restore the registered parts after the test."""
    for stage in ("encoder", "quantizer", "generator", "recommender"):
        kinds(stage)  # all modules are imported before the copy is made
    monkeypatch.setattr(registry, "_PARTS", dict(registry._PARTS))


def test_kinds():
    assert {"gaoq", "hierarchical", "rq-kmeans", "rq-vae"} <= set(kinds("quantizer"))
    assert list(kinds("quantizer")) == sorted(kinds("quantizer"))
    assert {"t5", "onepass"} <= set(kinds("generator"))
    assert {"sasrec", "cooccurrence", "popularity"} <= set(kinds("recommender"))
    assert "famae" in kinds("encoder")
    for stage in ("encoder", "quantizer", "generator", "recommender"):
        for kind in kinds(stage):
            part = find_part(stage, kind)
            assert issubclass(part, Part)
            assert (part.stage, part.kind) == (stage, kind)
            assert issubclass(part.settings_class, Settings)


def test_unknown_kind():
    with pytest.raises(InputError, match=r"^there is no quantizer 'goaq' \(did you mean 'gaoq'\?\)\.$"):
        find_part("quantizer", "goaq")
    with pytest.raises(InputError, match=r"\[generator\] needs a kind, one of .*, not None\."):
        find_part("generator", None)
    with pytest.raises(InputError, match="there is no quantizer 'oracle'; available quantizers: gaoq, "):
        PartSpec("quantizer", "oracle", Settings()).create()


def test_unknown_stage():
    message = "there is no stage 'decoder'.*; available stages: encoder, quantizer, generator, recommender"
    for use in (
        lambda: kinds("decoder"),
        lambda: find_part("decoder", "t5"),
        lambda: register("decoder", "t5"),
        lambda: stage_of("decoder"),
    ):
        with pytest.raises(InputError, match=message):
            use()
    with pytest.raises(InputError, match=r"there is no stage 'encoders' \(did you mean 'encoder'\?\)"):
        stage_of("encoders")
    with pytest.raises(InputError, match="there is no stage 'text_decoder'"):
        stage_of("text_decoder")


def test_stage_of_a_section():
    assert stage_of("encoder") == stage_of("text_encoder") == stage_of("a_b_encoder") == "encoder"


class TestRegister:
    def test_another_class_of_the_same_kind(self, parts):
        class Other(Part):
            pass

        with pytest.raises(
            InputError, match=r"there are two parts of the kind 'gaoq' for the stage 'quantizer': .*GAOQ"
        ):
            register("quantizer", "gaoq")(Other)
        assert find_part("quantizer", "gaoq") is GAOQ
        assert not hasattr(Other, "kind")

    def test_same_kind_in_another_stage(self, parts):
        @register("encoder", "gaoq")
        class Encoder(Part):
            pass

        assert find_part("encoder", "gaoq") is Encoder
        assert find_part("quantizer", "gaoq") is GAOQ

    def test_reloaded_module(self, parts):
        """The same class, defined again, replaces the old one."""

        def define():
            @register("encoder", "toy")
            class Toy(Part):
                pass

            return Toy

        first, second = define(), define()
        assert first is not second
        assert find_part("encoder", "toy") is second


class TestToyQuantizer:
    @pytest.fixture
    def toy(self, parts):
        @register("quantizer", "signs")
        class Signs(Quantizer):
            """One code per dimension: whether the value is positive."""

            def __init__(self, threshold: float = 0.0, *, random_state: Any = None) -> None:
                self.threshold = threshold
                self.random_state = random_state

            def _check_items(self, n_items):
                if n_items < 2:
                    raise ValueError("at least two items are needed.")

            def fit(self, X, y=None, *, runtime=None):  # noqa: N803
                self._check_items(len(as_points(self, X, reset=True)))
                self.level_sizes_, self.n_iter_ = (2,) * self.n_features_in_, 1
                self.codes_ = self.transform(X)
                return self

            def transform(self, X):  # noqa: N803
                return (as_points(self, X, reset=False).numpy() > self.threshold).astype(np.int32)

            def extend(self, X):  # noqa: N803
                codes = self.transform(X)
                self.codes_ = np.concatenate([self.codes_, codes])
                return codes

        return Signs

    def test_registered(self, toy, tmp_path):
        assert "signs" in kinds("quantizer")
        assert find_part("quantizer", "signs") is toy
        assert (toy.stage, toy.kind) == ("quantizer", "signs")
        assert toy.settings_class().to_dict() == {"threshold": 0.0, "seed": 0}
        spec = PartSpec("quantizer", "signs", toy.settings_class(threshold="0.5"))
        quantizer = spec.create()
        assert (quantizer.threshold, quantizer.random_state) == (0.5, 0)
        vectors = np.random.default_rng(0).normal(size=(9, 3)).astype(np.float32)
        quantizer.fit(vectors).save(tmp_path / "toy")
        loaded = Part.load(tmp_path / "toy")
        assert type(loaded) is toy
        assert loaded.settings == spec.settings
        assert np.array_equal(loaded.transform(vectors), quantizer.codes_)
        assert loaded.semantic_ids_.digest == quantizer.semantic_ids_.digest
        assert np.array_equal(loaded.extend(-vectors), quantizer.new_ids(-vectors))

    def test_errors(self, toy):
        with pytest.raises(InputError, match="invalid value 'much' for 'threshold'"):
            toy.settings_class(threshold="much")
        with pytest.raises(InputError, match=r"^\[quantizer\] at least two items are needed\.$"):
            toy().fit_part(np.ones((1, 3)))

    def test_loading_without_the_class(self, toy, tmp_path, monkeypatch):
        toy().fit(np.eye(3)).save(tmp_path / "toy")
        monkeypatch.delitem(registry._PARTS, ("quantizer", "signs"))
        with pytest.raises(InputError, match="the quantizer 'signs' is not known to this version of resid; update it"):
            Quantizer.load(tmp_path / "toy")


def test_part_spec():
    spec = PartSpec("quantizer", "gaoq", GAOQ.settings_class(branching=(2, 3), seed=4))
    assert spec.create().get_params() == GAOQ((2, 3), random_state=4).get_params()
    assert spec == PartSpec("quantizer", "gaoq", GAOQ.settings_class(branching=[2, 3], seed=4))
