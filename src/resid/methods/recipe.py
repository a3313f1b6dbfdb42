"""Recipes: the parts of a method and their settings, as TOML that a user can print, edit and pass back.

A file in ``recipes/`` names the parts and the settings that differ from their defaults; `Recipe.toml` writes all of them.
Recommenders that can read fields have a variant that does: ``sasrec-fields``, with ``sasrec*`` as an alias.
"""

import dataclasses
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from resid.core.errors import InputError, as_path, first_line, nearest, shown
from resid.core.part import PartSpec
from resid.core.registry import find_settings, stage_of
from resid.core.settings import Settings
from resid.data.dataset import Dataset
from resid.methods.method import Method, find_method

_FOLDER = Path(__file__).parent / "recipes"
_FIELDS = "-fields"
_COMMON = {"seed": "random", "epochs": "trained"}  # settings that can be changed in all parts at once

_R = TypeVar("_R", "Recipe", "RecipeEntry")


@dataclass(frozen=True)
class Recipe:
    """A method and the settings of its parts.

    Attributes
    ----------
    name : str
    description : str
    method : Method
    parts : dict
        The parts by section.
    """

    name: str
    description: str
    method: Method
    parts: Mapping[str, PartSpec]

    @classmethod
    def read(cls, source: "str | Path | Recipe") -> "Recipe":
        """Return the recipe of a name, or of a TOML file.

        Raises
        ------
        InputError
            If there is none, or a section, a kind, a name or a value is invalid.
        """
        if isinstance(source, Recipe):
            return source
        name = str(source)
        if name.endswith("*"):
            name = name[:-1] + _FIELDS
        if name.endswith(_FIELDS) and _file(name.removesuffix(_FIELDS)).exists():
            plain = cls.read(name.removesuffix(_FIELDS))
            if not _reads_fields({section: spec.kind for section, spec in plain.parts.items()}):
                raise InputError(f"the recipe '{plain.name}' has no variant with fields.")
            return _with_fields(plain.replace({"recommender.use_fields": True}))
        path = _file(name) if _file(name).exists() else as_path(source)
        if path.suffix != ".toml":
            known = recipe_names()
            raise InputError(
                f"there is no recipe '{source}'{nearest(name, known)}; available recipes: {', '.join(known)}; or give the path "
                "of a file that ends with .toml."
            )
        content = _read_toml(path)
        try:
            return cls._from_toml(path.stem, content)
        except InputError as error:
            raise InputError(f"{path}: {error}") from error

    @classmethod
    def parse(cls, name: str, toml: str) -> "Recipe":
        """Return the recipe that `toml` wrote."""
        return cls._from_toml(name, _parse_toml(f"the recipe {name}", toml))

    @classmethod
    def _from_toml(cls, name: str, content: dict[str, Any]) -> "Recipe":
        description, chosen = content.pop("description", ""), content.pop("method", None)
        if not isinstance(description, str):
            raise InputError(f"'description' must be a string, not {shown(description)}.")
        parts = {}
        for section, values in content.items():
            stage = stage_of(section)
            if not isinstance(values, dict):
                raise InputError(f"'{section}' must be a table, [{section}], not {shown(values)}.")
            parts[section] = _spec(section, stage, values)
        method = find_method(chosen, tuple(parts))
        return cls(name, description, method, {section: parts[section] for section in method.sections})

    def part(self, section: str) -> PartSpec:
        """Return the part of a section."""
        if section not in self.parts:
            raise InputError(f"the recipe '{self.name}' has no {section}; it has {', '.join(self.parts)}.")
        return self.parts[section]

    def replace(self, changes: Mapping[str, Any]) -> "Recipe":
        """Return the recipe with other settings.

        Parameters
        ----------
        changes
            Values by section and name: ``{"encoder.epochs": 20}``. ``"generator.kind"`` replaces a part by another kind with
            its default settings; ``"seed"`` and ``"epochs"`` are those of every part that has them, ``pretrain_epochs`` and the like
            included; a single setting prevails over them.
        """
        parts, values_of = dict(self.parts), dict[str, dict[str, Any]]()
        # Kinds, then what all parts have in common, then single settings, which prevail.
        ordered = sorted(
            ((str(name), value) for name, value in changes.items()),
            key=lambda pair: (not _is_kind(pair[0]), pair[0] not in _COMMON),
        )
        for name, value in ordered:
            section, dot, key = name.partition(".")
            if _is_kind(name) and section in parts:
                parts[section] = _spec(section, stage_of(section), {"kind": value})
                continue
            if name in _COMMON:
                places = [(s, each) for s in parts for each in _names_like(name, parts[s].settings)]
                if not places:
                    raise InputError(f"the recipe '{self.name}' has no {_COMMON[name]} part, so it takes no {name}.")
            elif section in parts and dot:
                places = [(section, key)]
            else:
                known = [f"{s}.{field.name}" for s in parts for field in dataclasses.fields(parts[s].settings)]
                advice = f"use section.name, for example {known[0]}" if known else f"'{self.name}' has no settings"
                raise InputError(f"there is no setting '{name}'{nearest(name, known)}; {advice}.")
            for section, key in places:
                values_of.setdefault(section, {})[key] = value
        for section, values in values_of.items():  # at once, as one setting may be valid only with another
            settings = _in_section(section, parts[section].settings.replace, values)
            parts[section] = dataclasses.replace(parts[section], settings=settings)
        return dataclasses.replace(self, parts=parts)

    @property
    def is_random(self) -> bool:
        """Whether a part has a seed."""
        return any(_names_like("seed", spec.settings) for spec in self.parts.values())

    def check(self, data: Dataset) -> None:
        """Raise an `InputError` if a part cannot be fitted to a Dataset."""
        for spec in self.parts.values():
            spec.create().check(data)

    def toml(self, *sections: str) -> str:
        """Return the recipe, or some of its sections, with all settings; those that are None are left out."""
        lines = [f"description = {_toml_value(self.description)}", f"method = {_toml_value(self.method.name)}"]
        for section, spec in self.parts.items():
            if sections and section not in sections:
                continue
            lines += ["", f"[{section}]", f"kind = {_toml_value(spec.kind)}"]
            lines += [f"{key} = {_toml_value(v)}" for key, v in spec.settings.to_dict().items() if v is not None]
        return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class RecipeEntry:
    """A recipe that comes with the library, as it is listed: its name, the kinds of its parts, and its description."""

    name: str
    kinds: tuple[str, ...]
    description: str


@cache
def list_recipes() -> tuple[RecipeEntry, ...]:
    """Return the recipes that come with the library, the default first; reads their files, and imports no parts for it."""
    entries = []
    for path in sorted(_FOLDER.glob("*.toml"), key=lambda path: (path.stem != "resid", path.stem)):
        content = _read_toml(path)
        kinds = {section: values["kind"] for section, values in content.items() if isinstance(values, dict)}
        entry = RecipeEntry(path.stem, tuple(kinds.values()), content.get("description", ""))
        entries.append(entry)
        if _reads_fields(kinds):
            entries.append(_with_fields(entry))
    return tuple(entries)


def recipe_names() -> tuple[str, ...]:
    """Return the names of the recipes that come with the library."""
    return tuple(entry.name for entry in list_recipes())


def read_changes(pairs: Sequence[str], option: str) -> dict[str, str | tuple[str, ...]]:
    """Read changes of a recipe that are written as name=value, where commas make a value a list.

    Parameters
    ----------
    pairs
        ``encoder.epochs=20``, ``quantizer.branching=32,40``.
    option
        Where they were given, for the message if one is invalid.
    """
    if bad := [pair for pair in pairs if not pair.partition("=")[0].strip() or "=" not in pair]:
        raise InputError(
            f"{option}: '{bad[0]}' does not have the form name=value, for example encoder.learning_rate=3e-4."
        )
    changes = {name.strip(): value.strip() for name, _, value in (pair.partition("=") for pair in pairs)}
    return {name: tuple(value.split(",")) if "," in value else value for name, value in changes.items()}


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        text = path.read_bytes().decode().replace("\r\n", "\n")  # as tomllib.load does
    except FileNotFoundError as error:
        raise InputError(f"{path}: there is no such file; 'resid recipes' lists the available recipes.") from error
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; 'resid recipes' lists the available recipes.") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not valid UTF-8; save the recipe as UTF-8.") from error
    return _parse_toml(str(path), text)


def _parse_toml(source: str, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise InputError(f"{source}: invalid TOML, lists or tables are nested too deeply; fix the file.") from error
    except tomllib.TOMLDecodeError as error:
        problem = first_line(error)
        if place := re.fullmatch(r"(.*) \(at (.*)\)", problem):
            problem = f"{place[2]}: {place[1][:1].lower()}{place[1][1:]}"
        raise InputError(f"{source}: invalid TOML, {problem}; fix the file.") from error
    except ValueError as error:  # Python refuses to read an integer of thousands of digits
        raise InputError(f"{source}: invalid TOML, a number has too many digits; fix the file.") from error


def _file(name: str) -> Path:
    return _FOLDER / f"{name}.toml" if Path(name).name == name else Path(name)


def _reads_fields(kinds: Mapping[str, str]) -> bool:
    """Return whether a recipe with these kinds by section is a recommender with the setting `use_fields`."""
    return tuple(kinds) == ("recommender",) and hasattr(
        find_settings("recommender", kinds["recommender"]), "use_fields"
    )


def _with_fields(recipe: _R) -> _R:
    """Return the name and description of the variant with fields."""
    return dataclasses.replace(recipe, name=recipe.name + _FIELDS, description=f"{recipe.description}; with fields")


def _names_like(common: str, settings: Settings) -> list[str]:
    """Return the settings that a common one sets: ``epochs`` is also the number of ``pretrain_epochs``."""
    return [each.name for each in dataclasses.fields(settings) if f"_{each.name}".endswith(f"_{common}")]


def _is_kind(name: str) -> bool:
    return name.endswith(".kind")


def _spec(section: str, stage: str, values: Mapping[str, Any]) -> PartSpec:
    values = dict(values)
    kind = values.pop("kind", None)
    settings_class = find_settings(stage, kind)
    return PartSpec(stage, str(kind), _in_section(section, settings_class, values))


def _in_section(section: str, build: Any, values: Mapping[str, Any]) -> Settings:
    """Build settings; an error names the section."""
    try:
        settings: Settings = build(**values)
    except InputError as error:
        raise InputError(f"[{section}] {error}") from error
    return settings


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_toml_value(part) for part in value)}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # strings of TOML and JSON are alike
    return repr(value)
