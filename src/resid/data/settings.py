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
    # Not part of the fingerprint: the fields themselves show what these settings did.
    seen_in_fields: ClassVar[tuple[str, ...]] = ("kinds", "short_paths", "bins")

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
