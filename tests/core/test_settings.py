"""Settings: validated, written and read back; every registered part."""

import dataclasses
import json
from typing import Annotated, ClassVar, Literal

import pytest
from pydantic import Field

from resid import InputError
from resid.core.registry import find_part, kinds
from resid.core.settings import Settings, settings_of_estimator, validated

STAGES = ("encoder", "quantizer", "generator", "recommender")
PARTS = [find_part(stage, kind) for stage in STAGES for kind in kinds(stage)]


@validated
class Small(Settings):
    renamed: ClassVar[dict[str, str]] = {"size": "width"}

    width: Annotated[int, Field(ge=1)] = 8
    rates: tuple[float, ...] = (0.1, 0.2)
    mode: Literal["a", "b"] = "a"


@validated
class Larger(Small):
    renamed: ClassVar[dict[str, str]] = {"depth": "layers"}

    layers: int = 2

    def __post_init__(self):
        if self.layers > self.width:
            raise ValueError("layers must not exceed width")


@pytest.mark.parametrize("part", PARTS, ids=lambda part: f"{part.stage}-{part.kind}")
class TestParts:
    def test_round_trip(self, part):
        settings = part.settings_class()
        values = settings.to_dict()
        assert set(values) == {field.name for field in dataclasses.fields(settings)}
        again = part.settings_class(**json.loads(json.dumps(values)))
        assert again == settings
        assert again.to_dict() == values
        assert settings.replace() == settings

    def test_part_from_settings(self, part):
        settings = part.settings_class(seed=7) if "seed" in part.settings_class().to_dict() else part.settings_class()
        assert part.from_settings(settings).settings == settings
        assert find_part(part.stage, part.kind) is part

    def test_frozen(self, part):
        settings = part.settings_class()
        for name in settings.to_dict():
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(settings, name, 1)

    def test_unknown_name(self, part):
        with pytest.raises(InputError, match=r"^there is no setting 'colour'.*\.$"):
            part.settings_class(colour="red")

    def test_renamed(self, part):
        """Every old name gets a sentence with the new one, which exists."""
        renamed = {
            old: new for base in part.settings_class.__mro__ for old, new in getattr(base, "renamed", {}).items()
        }
        for old, new in renamed.items():
            assert new in part.settings_class().to_dict()
            with pytest.raises(InputError, match=rf"^the setting '{old}' is now called '{new}'\.$"):
                part.settings_class(**{old: 1})


@pytest.mark.parametrize(
    ("stage", "kind", "old", "new"),
    [
        ("quantizer", "rq-kmeans", "codes", "codebook_size"),
        ("quantizer", "rq-kmeans", "n_clusters", "codebook_size"),
        ("quantizer", "rq-vae", "levels", "n_levels"),
        ("quantizer", "rq-vae", "hidden", "hidden_layer_sizes"),
        ("quantizer", "rq-vae", "latent", "latent_dim"),
        ("quantizer", "rq-vae", "beta", "commitment_weight"),
        ("quantizer", "rq-vae", "check_every", "evaluate_every"),
        ("generator", "t5", "hidden", "ffn_width"),
        ("generator", "t5", "beam", "beam_size"),
        ("generator", "t5", "read_vectors", "input_embeddings"),
        ("generator", "onepass", "smoothing", "label_smoothing"),
        ("generator", "onepass", "forget", "item_dropout"),
        ("generator", "onepass", "write_vectors", "output_embeddings"),
        ("generator", "onepass", "read_items", "learned_item_embeddings"),
        ("recommender", "cooccurrence", "last", "n_recent"),
    ],
)
def test_old_names(stage, kind, old, new):
    with pytest.raises(InputError, match=rf"^the setting '{old}' is now called '{new}'\.$"):
        find_part(stage, kind).settings_class(**{old: 1})


@pytest.mark.parametrize("part", PARTS, ids=lambda part: f"{part.stage}-{part.kind}")
def test_sentences_of_all_settings(part):
    """Whatever is wrong with a setting is said in plain words, without those of the library that checks it."""
    for name in part.settings_class().to_dict():
        for value in (
            "oracle",
            -1,
            1e300,
            float("nan"),
            None,
            True,
            [],
            ["a"],
            [1, "b"],
            {},
            b"x",
            object(),
            "1e400",
            2**70,
        ):
            try:
                part.settings_class(**{name: value})
            except InputError as error:
                message = str(error)
                assert message.endswith(".")
                assert "\n" not in message
                for word in ("Input", "valid integer", "valid number", "constrained", "literal", "tuple", "pydantic"):
                    assert word not in message.replace("invalid value", ""), message


class TestValidated:
    def test_values(self):
        assert Small(width="12").width == 12  # strings are converted
        assert Small(rates=[1, 2]).rates == (1.0, 2.0)
        assert Small().replace(width="9", mode="b") == Small(width=9, mode="b")
        assert Small().to_dict() == {"width": 8, "rates": [0.1, 0.2], "mode": "a"}

    @pytest.mark.parametrize(
        ("values", "message"),
        [
            ({"width": 0}, r"invalid value 0 for 'width': it must be at least 1\."),
            ({"width": "wide"}, r"invalid value 'wide' for 'width': it must be an integer\."),
            ({"rates": ["1e400", 1]}, r"invalid value '1e400' for 'rates': it must be a finite number\."),
            ({"rates": [0, float("nan")]}, r"invalid value nan for 'rates': it must be a finite number\."),
            ({"mode": "c"}, r"invalid value 'c' for 'mode': it must be 'a' or 'b'\."),
            ({"widht": 3}, r"there is no setting 'widht' \(did you mean 'width'\?\); available settings: width, rates, mode\."),
            ({"size": 3}, r"the setting 'size' is now called 'width'\."),
        ],
    )  # fmt: skip
    def test_errors(self, values, message):
        with pytest.raises(InputError, match=f"^{message}"):
            Small(**values)
        with pytest.raises(InputError, match=f"^{message}"):
            Small().replace(**values)

    def test_inherited(self):
        for old, new in (("size", "width"), ("depth", "layers")):
            with pytest.raises(InputError, match=f"the setting '{old}' is now called '{new}'"):
                Larger(**{old: 1})
        with pytest.raises(InputError, match=r"^layers must not exceed width\.$"):
            Larger(layers=9)

    def test_no_settings(self):
        @validated
        class Nothing(Settings):
            pass

        with pytest.raises(InputError, match=r"^there is no setting 'width'; it has no settings\.$"):
            Nothing(width=1)


def test_settings_of_estimator():
    class Estimator:
        renamed: ClassVar[dict[str, str]] = {"k": "n_clusters"}

        def __init__(
            self, n_clusters: int = 3, *, mode: Literal["a", "b"] = "a", random_state: int | None = None
        ) -> None:
            pass

    made = settings_of_estimator(Estimator)
    assert made.__name__ == "EstimatorSettings"
    assert made().to_dict() == {"n_clusters": 3, "mode": "a", "seed": 0}
    for values, message in (
        ({"k": 1}, "the setting 'k' is now called 'n_clusters'"),
        ({"random_state": 1}, "there is no setting 'random_state'"),
        ({"seed": -1}, "invalid value -1 for 'seed'"),
        ({"mode": "c"}, "invalid value 'c' for 'mode'"),
    ):
        with pytest.raises(InputError, match=message):
            made(**values)
