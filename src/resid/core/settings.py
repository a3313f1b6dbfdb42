"""Settings: validated, frozen dataclasses that are written as TOML and JSON."""

import dataclasses
import inspect
import typing
from functools import wraps
from typing import Annotated, Any, ClassVar, Self, TypeVar, dataclass_transform

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from resid.core.errors import InputError, nearest, shown

_C = TypeVar("_C")
Seed = Annotated[int, Field(ge=0, lt=2**32)]


class Settings:
    """Base class of all settings; every subclass is decorated with `validated`."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", allow_inf_nan=False)
    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]
    renamed: ClassVar[dict[str, str]] = {}  # old name of a setting → its name now
    added: ClassVar[tuple[str, ...]] = ()  # settings whose default is what earlier versions, without them, did

    def replace(self, **values: Any) -> Self:
        """Return a copy with some values replaced and validated; strings are converted to the expected type."""
        return type(self)(**{field.name: getattr(self, field.name) for field in dataclasses.fields(self)} | values)

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as a dictionary of JSON values."""
        values: dict[str, Any] = TypeAdapter(type(self)).dump_python(self, mode="json")
        return values

    def identity(self) -> dict[str, Any]:
        """Return what identifies a part with these settings.

        Settings of `added` are left out while they have their default, so that the runs of earlier versions are reused.
        """
        defaults = {field.name: field.default for field in dataclasses.fields(self) if field.name in self.added}
        kept = {name for name, default in defaults.items() if getattr(self, name) == default}
        return {name: value for name, value in self.to_dict().items() if name not in kept}

    def file_digests(self) -> list[str]:
        """Return checksums of the files that the settings name, whose content is an input of the part."""
        return []


@dataclass_transform(frozen_default=True)
def validated(cls: type[_C]) -> type[_C]:
    """Make a class a frozen dataclass that raises an `InputError` for unknown names and invalid values."""
    made: Any = dataclass(frozen=True)(cls)
    build = made.__init__
    renamed = {old: new for base in reversed(made.__mro__) for old, new in getattr(base, "renamed", {}).items()}

    @wraps(build)
    def init(self: Any, *values: Any, **named: Any) -> None:
        names = [field.name for field in dataclasses.fields(made)]
        if unknown := [name for name in named if name not in names]:
            if new := renamed.get(unknown[0]):
                raise InputError(f"the setting '{unknown[0]}' is now called '{new}'.")
            available = f"; available settings: {', '.join(names)}" if names else "; it has no settings"
            raise InputError(f"there is no setting '{unknown[0]}'{nearest(unknown[0], names)}{available}.")
        try:
            build(self, *values, **named)
        except ValidationError as error:
            raise InputError(_sentence(error)) from error

    made.__init__ = init
    decorated: type[_C] = made
    return decorated


_NUMBER_LIMITS = {"ge": "at least", "gt": "greater than", "le": "at most", "lt": "less than"}
_EXPECTED = {  # start of pydantic's name of an error → what the value must be
    "int": "an integer",
    "float": "a number",
    "finite_number": "a finite number",
    "bool": "true or false",
    "string": "a string",
    "tuple": "a list",
    "list": "a list",
}


def _sentence(error: ValidationError) -> str:
    """Return the first problem that pydantic found as a sentence.

    A setting that may have one of several types has an error for each of them.
    """
    found = error.errors(include_url=False)
    first = found[0]
    if not first["loc"]:  # a combination of settings
        return f"{first['msg'].removeprefix('Value error, ')}."
    name, value = first["loc"][0], first["input"]
    of_value = [each for each in found if each["loc"][0] == name and each["input"] is value]
    expected = " or ".join(dict.fromkeys(map(_expected, of_value)))
    return f"invalid value {shown(value)} for '{name}': it must be {expected}."


def _expected(problem: Any) -> str:
    """Return what a value must be, in the words of all messages."""
    context = problem.get("ctx", {})
    for limit, words in _NUMBER_LIMITS.items():
        if limit in context:
            return f"{words} {context[limit]:{',' if isinstance(context[limit], int) else 'g'}}"
    if problem["type"] == "literal_error":
        return str(context["expected"])
    kind = next((kind for kind in _EXPECTED if problem["type"].startswith(kind)), None)
    return _EXPECTED[kind] if kind else problem["msg"].removeprefix("Input should be ")


def check_heads(width: int, heads: int) -> None:
    """Raise a `ValueError` unless the width is a multiple of the number of attention heads."""
    if width % heads:
        raise ValueError(f"width={width} must be a multiple of heads={heads}")


def settings_of_estimator(cls: type) -> type[Settings]:
    """Build the settings class of a scikit-learn estimator from its constructor; `random_state` becomes `seed`."""
    hints = typing.get_type_hints(cls.__init__, include_extras=True)  # type: ignore[misc]
    annotations: dict[str, Any] = {}
    namespace: dict[str, Any] = {
        "__doc__": f"Settings of `{cls.__name__}`: the arguments of its constructor.",
        "__module__": cls.__module__,
        "__annotations__": annotations,
        "renamed": getattr(cls, "renamed", {}),
    }
    for name, parameter in list(inspect.signature(cls).parameters.items()):
        name, hint, default = ("seed", Seed, 0) if name == "random_state" else (name, hints[name], parameter.default)
        annotations[name] = hint
        namespace[name] = default
    annotations["renamed"] = ClassVar[dict[str, str]]
    return validated(type(f"{cls.__name__}Settings", (Settings,), namespace))
