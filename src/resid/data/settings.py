"""Settings of the preprocessing: validated, frozen, and part of a Dataset's fingerprint."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from resid.core.settings import Settings, validated


@validated
class PrepareSettings(Settings):
    """How tables become a Dataset; `Dataset.from_tables` documents every setting."""

    renamed: ClassVar[dict[str, str]] = {"add_unseen_targets": "unseen_targets"}

    fields: tuple[str, ...] | None = None
    keep: tuple[str, ...] | None = None
    k_core: Annotated[int, Field(ge=1, lt=2**31)] = 5
    missing: Literal["drop", "keep"] = "drop"
    min_interactions: Annotated[int, Field(ge=3, lt=2**31)] = 3
    max_length: Annotated[int, Field(ge=2, lt=2**31)] = 32
    path_levels: Annotated[int, Field(ge=1, le=100)] = 3
    qualify_paths: bool = True
    unlisted_items: Literal["error", "missing"] = "error"
    unseen_targets: Literal["keep", "drop", "train"] = "keep"
