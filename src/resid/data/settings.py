"""The settings of the preparation: validated, frozen, and part of a Dataset's fingerprint."""

from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass

from resid.errors import InputError


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class PrepareSettings:
    """How tables become a Dataset; `Dataset.from_tables` says what each setting means."""

    fields: tuple[str, ...] | None = None
    keep: tuple[str, ...] | None = None
    k_core: Annotated[int, Field(ge=1)] = 5
    missing: Literal["drop", "keep"] = "drop"
    min_interactions: Annotated[int, Field(ge=3)] = 3
    max_length: Annotated[int, Field(ge=2)] = 32
    path_levels: Annotated[int, Field(ge=1)] = 3
    qualify_paths: bool = True
    unlisted_items: Literal["error", "missing"] = "error"
    add_unseen_targets: bool = False

    @classmethod
    def checked(cls, **values: Any) -> Self:
        """Build the settings, or say in one sentence which value is out of range."""
        try:
            return cls(**values)
        except ValidationError as error:
            first = error.errors()[0]
            name = str(first["loc"][0]) if first["loc"] else "settings"
            raise InputError(f"the setting '{name}' cannot be {first['input']!r}: {first['msg']}.") from error
