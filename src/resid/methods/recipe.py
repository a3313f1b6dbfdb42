"""Recipes: the parts that a method is made of and their settings, as TOML that a user can print, edit and pass back.

A file of this folder names the parts and the settings that differ from their defaults; `Recipe.toml` writes them all out.
A star after the name of a recommender that can read fields, as in ``sasrec*``, makes it read them.
"""

import dataclasses
import importlib
import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Self

from resid.core.errors import InputError, as_path, nearest
from resid.core.settings import Settings

_FOLDER = Path(__file__).parent
PARTS = {  # the stages in the order of the flow, and where the settings of each kind are
    "encoder": {
        "famae": "resid.encode:FamaeSettings",
        "sasrec": "resid.sequential:SASRecSettings",
        "bert4rec": "resid.sequential:BERT4RecSettings",
    },
    "quantizer": {
        "gaoq": "resid.quantize.methods:TreeSettings",
        "hierarchical": "resid.quantize.methods:TreeSettings",
        "rq-kmeans": "resid.quantize.methods:ResidualSettings",
        "rq-vae": "resid.quantize.methods:ResidualSettings",
    },
    "generator": {"onepass": "resid.generate:OnePassSettings", "t5": "resid.generate:T5Settings"},
    "recommender": {
        "popularity": "resid.sequential:PopularitySettings",
        "cooccurrence": "resid.sequential:CoOccurrenceSettings",
        "hgn": "resid.sequential:HGNSettings",
        "sasrec": "resid.sequential:SASRecSettings",
        "bert4rec": "resid.sequential:BERT4RecSettings",
        "s3rec": "resid.sequential:S3RecSettings",
    },
}
_WITH_FIELDS = ("hgn", "sasrec", "bert4rec", "s3rec")  # the recommenders that may be starred
_SHAPES = (("encoder", "quantizer", "generator"), ("recommender",))  # which parts make a method


@dataclass(frozen=True)
class Part:
    """A part of a method: which one, and its settings."""

    kind: str
    settings: Settings


@dataclass(frozen=True)
class Recipe:
    """A method: its parts by stage, in the order of the flow.

    Attributes
    ----------
    name : str
    description : str
    parts : dict
        Stage to `Part`.
    """

    name: str
    description: str
    parts: Mapping[str, Part]

    @classmethod
    def read(cls, source: "str | Path | Recipe") -> "Recipe":
        """Return the recipe of a name, or of a TOML file.

        Raises
        ------
        InputError
            If there is none, or it has a stage, a kind, a key or a value that cannot be used.
        """
        if isinstance(source, Recipe):
            return source
        if str(source) in names() and str(source).endswith("*"):
            plain = cls.read(str(source)[:-1]).changed({"recommender.fields": True})
            return cls(str(source), f"{plain.description}; with fields", plain.parts)
        path = _FOLDER / f"{source}.toml" if str(source) in names() else as_path(source)
        if path.suffix != ".toml":
            raise InputError(
                f"there is no recipe '{source}'{nearest(str(source), names())}; there are {', '.join(names())}, or give the "
                "path of a file that ends with .toml."
            )
        try:
            with path.open("rb") as file:
                content = tomllib.load(file)
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}; 'resid recipes' lists the known ones.") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise InputError(f"{path}: this is not TOML: {error}.") from error
        try:
            return cls._of(path.stem, content)
        except InputError as error:
            raise InputError(f"{path}: {error}") from error

    @classmethod
    def _of(cls, name: str, content: dict[str, Any]) -> Self:
        description = str(content.pop("description", ""))
        parts = {}
        for stage, values in content.items():
            if stage not in PARTS:
                raise InputError(f"there is no stage '{stage}'{nearest(stage, PARTS)}; there are {', '.join(PARTS)}.")
            if not isinstance(values, dict):
                raise InputError(f"the stage '{stage}' must be a table, [{stage}], not {values!r}.")
            values = dict(values)
            kind = values.pop("kind", None)
            if not isinstance(kind, str) or kind not in PARTS[stage]:
                known = ", ".join(PARTS[stage])
                raise InputError(
                    f"[{stage}] needs a kind, one of {known}, not {kind!r}{nearest(str(kind), PARTS[stage])}."
                )
            parts[stage] = Part(kind, _checked(stage, _settings_class(stage, kind), values))
        if tuple(stage for stage in PARTS if stage in parts) not in _SHAPES:
            shapes = " or ".join(" + ".join(shape) for shape in _SHAPES)
            raise InputError(f"a recipe has the stages {shapes}; this one has {', '.join(parts) or 'none'}.")
        return cls(name, description, {stage: parts[stage] for stage in PARTS if stage in parts})

    def part(self, stage: str) -> Part:
        """Return the part of a stage."""
        if stage not in self.parts:
            raise InputError(f"the recipe '{self.name}' has no {stage}; it has {', '.join(self.parts)}.")
        return self.parts[stage]

    def changed(self, changes: Mapping[str, Any]) -> "Recipe":
        """Return the recipe with other settings, named by stage: ``{"encoder.epochs": 20}``; `seed` alone is every stage's."""
        parts = dict(self.parts)
        for name, value in ((str(name), value) for name, value in changes.items()):
            stage, dot, key = name.partition(".")
            if key == "kind":
                raise InputError(
                    f"'{name}' is changed in a file: print the recipe with 'resid recipes show', and edit it."
                )
            if name == "seed":
                stages = [stage for stage in parts if hasattr(parts[stage].settings, "seed")]
                if not stages:
                    raise InputError(f"the recipe '{self.name}' has nothing random, so it takes no seed.")
            elif stage in parts and dot:
                stages = [stage]
            else:
                keys = [f"{s}.{field}" for s in parts for field in _fields(parts[s].settings)]
                advice = f"name it by its stage, as {keys[0]}" if keys else f"the recipe '{self.name}' has none"
                raise InputError(f"there is no setting '{name}'{nearest(name, keys)}; {advice}.")
            for stage in stages:
                part = parts[stage]
                settings = _checked(stage, part.settings.changed, {key or name: value})
                parts[stage] = Part(part.kind, settings)
        return Recipe(self.name, self.description, parts)

    def toml(self) -> str:
        """Write the recipe with all settings; what is None is left out, for TOML has no word for it."""
        lines = [f"description = {_toml_value(self.description)}"]
        for stage, part in self.parts.items():
            lines += ["", f"[{stage}]", f"kind = {_toml_value(part.kind)}"]
            lines += [f"{key} = {_toml_value(v)}" for key, v in part.settings.plain().items() if v is not None]
        return "\n".join(lines) + "\n"


@cache
def names() -> tuple[str, ...]:
    """Return the names of the recipes that the library has."""
    found: list[str] = []
    for path in sorted(_FOLDER.glob("*.toml"), key=lambda path: path.stem):
        part = tomllib.loads(path.read_text(encoding="utf-8")).get("recommender", {})
        found += [path.stem, f"{path.stem}*"] if part.get("kind") in _WITH_FIELDS else [path.stem]
    return tuple(found)


def _settings_class(stage: str, kind: str) -> Any:
    module, _, name = PARTS[stage][kind].partition(":")
    return getattr(importlib.import_module(module), name)


def _checked(stage: str, make: Any, values: Mapping[str, Any]) -> Settings:
    """Build settings, and say of which stage they are if they cannot be."""
    try:
        settings: Settings = make(**values)
    except InputError as error:
        raise InputError(f"[{stage}] {error}") from error
    return settings


def _fields(settings: Settings) -> Iterable[str]:
    return (field.name for field in dataclasses.fields(settings))


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_toml_value(part) for part in value)}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # TOML's strings are JSON's
    return repr(value)
