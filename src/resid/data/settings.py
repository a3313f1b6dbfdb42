"""Settings of the preprocessing: validated, frozen, and part of a Dataset's fingerprint."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field

from resid.core.settings import Settings, validated

FieldKind = Literal["category", "path", "tags", "number"]
MIN_INTERACTIONS = 3  # of a user: one each for training, validation and test


@validated
class PrepareSettings(Settings):
    """How tables become a Dataset; `Dataset.from_tables` documents every setting.

    `kinds` are the kinds of the columns in `fields`, None where they are guessed. Those of a Dataset are all known.
    """

    renamed: ClassVar[dict[str, str]] = {"add_unseen_targets": "unseen_targets"}
    # Not part of the fingerprint: the fields and the boundaries of the time split show what these settings did.
    seen_in_data: ClassVar[tuple[str, ...]] = ("kinds", "short_paths", "bins", "validate_from", "test_from")
    of_time_split: ClassVar[tuple[str, ...]] = ("split", "validate_from", "test_from", "targets")

    fields: tuple[str, ...] | None = None
    kinds: tuple[FieldKind | None, ...] | None = None
    keep: tuple[str, ...] | None = None
    k_core: Annotated[int, Field(ge=1, lt=2**31)] = 5
    missing: Literal["drop", "keep"] = "drop"
    min_interactions: Annotated[int, Field(ge=MIN_INTERACTIONS, lt=2**31)] = MIN_INTERACTIONS
    max_length: Annotated[int, Field(ge=2, lt=2**31)] = 32
    path_levels: Annotated[int, Field(ge=1, le=100)] = 3
    qualify_paths: bool = True
    short_paths: Literal["repeat", "missing"] = "repeat"
    bins: Annotated[int, Field(ge=2, le=1_000)] = 10
    unlisted_items: Literal["error", "missing"] = "error"
    unseen_targets: Literal["keep", "drop", "train"] = "keep"
    split: Literal["leave-one-out", "time"] = "leave-one-out"
    validate_from: str | int | float | None = None
    test_from: str | int | float | None = None
    targets: Literal["first", "all"] = "first"

    def __post_init__(self) -> None:
        given = self.validate_from is not None, self.test_from is not None
        if self.split == "time" and not all(given):
            raise ValueError("a time split needs validate_from and test_from (--validate-from, --test-from)")
        if self.split != "time" and (any(given) or self.targets != "first"):
            raise ValueError(
                "validate_from, test_from and targets belong to a time split; add split='time' (--split time)"
            )
        if self.split == "time" and self.unseen_targets == "train":
            raise ValueError(
                "a time split never trains on later interactions; use unseen_targets='keep' or 'drop' "
                "(--unseen-targets keep)"
            )

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as a dictionary of JSON values; those of the time split only if there is one."""
        omitted = () if self.split == "time" else self.of_time_split
        return {name: value for name, value in super().to_dict().items() if name not in omitted}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Undo `to_dict`, also that of versions in which a short path always lacked levels."""
        return cls(**{"short_paths": "missing"} | dict(values))

    def kinds_of(self, field_names: tuple[str, ...]) -> dict[str, FieldKind]:
        """Return the kind of every field of a Dataset; the levels of a path are fields whose kind is ``"path"``."""
        columns = self.fields or ()
        single: dict[str, FieldKind] = dict.fromkeys(columns, "category")  # without kinds, a path is what has no field
        if self.kinds is not None:
            single = {column: kind for column, kind in zip(columns, self.kinds, strict=True) if kind and kind != "path"}
        return {name: single.get(name, "path") for name in field_names}
