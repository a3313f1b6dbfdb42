"""What all settings have in common: they are validated, frozen dataclasses that JSON can hold."""

import dataclasses
from typing import Any, ClassVar, Self

from pydantic import ConfigDict, TypeAdapter, ValidationError

from resid.errors import InputError, nearest


class Settings:
    """Base of the settings, each a frozen dataclass of pydantic."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")
    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    @classmethod
    def checked(cls, **values: Any) -> Self:
        """Build the settings, or say in one sentence which value cannot be used; text is read as what is wanted."""
        names = [field.name for field in dataclasses.fields(cls)]
        if unknown := [name for name in values if name not in names]:
            hint = nearest(unknown[0], names)
            raise InputError(f"there is no setting '{unknown[0]}'{hint}; there are {', '.join(names)}.")
        try:
            return cls(**values)
        except ValidationError as error:
            first = error.errors()[0]
            if not first["loc"]:  # settings that do not go together
                raise InputError(f"{first['msg'].removeprefix('Value error, ')}.") from error
            raise InputError(
                f"the setting '{first['loc'][0]}' cannot be {first['input']!r}: {first['msg']}."
            ) from error

    def changed(self, **values: Any) -> Self:
        """Return a copy with other values, which are checked as well."""
        return self.checked(**{field.name: getattr(self, field.name) for field in dataclasses.fields(self)} | values)

    def plain(self) -> dict[str, Any]:
        """Return the settings as JSON can hold them."""
        values: dict[str, Any] = TypeAdapter(type(self)).dump_python(self, mode="json")
        return values
