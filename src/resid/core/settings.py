"""What all settings have in common: they are validated, frozen dataclasses that JSON can hold."""

import dataclasses
from functools import wraps
from typing import Any, ClassVar, Self, TypeVar, dataclass_transform

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from resid.core.errors import InputError, nearest

_C = TypeVar("_C")


class Settings:
    """Base of the settings, each a class that `checked` decorates."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")
    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    def changed(self, **values: Any) -> Self:
        """Return a copy with other values, which are checked as well; text is read as what is wanted."""
        return type(self)(**{field.name: getattr(self, field.name) for field in dataclasses.fields(self)} | values)

    def plain(self) -> dict[str, Any]:
        """Return the settings as JSON can hold them."""
        values: dict[str, Any] = TypeAdapter(type(self)).dump_python(self, mode="json")
        return values


@dataclass_transform(frozen_default=True)
def checked(cls: type[_C]) -> type[_C]:
    """Make a class a frozen dataclass whose values are checked: one that cannot be used is an `InputError`."""
    made: Any = dataclass(frozen=True)(cls)
    build = made.__init__

    @wraps(build)
    def init(self: Any, *values: Any, **named: Any) -> None:
        names = [field.name for field in dataclasses.fields(made)]
        if unknown := [name for name in named if name not in names]:
            there = f"; there are {', '.join(names)}" if names else ", nor any other"
            raise InputError(f"there is no setting '{unknown[0]}'{nearest(unknown[0], names)}{there}.")
        try:
            build(self, *values, **named)
        except ValidationError as error:
            first = error.errors()[0]
            if not first["loc"]:  # settings that do not go together
                raise InputError(f"{first['msg'].removeprefix('Value error, ')}.") from error
            raise InputError(
                f"the setting '{first['loc'][0]}' cannot be {first['input']!r}: {first['msg']}."
            ) from error

    made.__init__ = init
    decorated: type[_C] = made
    return decorated
