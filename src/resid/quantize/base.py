"""The base classes of quantizers: scikit-learn estimators whose `fit` gives every row a sequence of codes."""

import dataclasses
import math
from abc import abstractmethod
from collections import Counter
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from resid.core.artifact import Artifact
from resid.core.errors import InputError, first_line
from resid.core.part import Part
from resid.core.runtime import Runtime
from resid.core.settings import Settings, settings_of_estimator
from resid.data.dataset import Dataset
from resid.quantize.ids import SemanticIds
from resid.quantize.points import KnownRows, as_points, check_numbers
from resid.quantize.room import Room


class Quantizer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator, Part):  # type: ignore[misc]
    """Base class of quantizers: `fit` gives every row codes, `transform` gives codes to further rows.

    The settings of a quantizer are the arguments of its constructor, with `seed` for `random_state`.

    Attributes
    ----------
    codes_ : ndarray of int32, shape (n_samples, n_levels)
        The code of every item at every level.
    level_sizes_ : tuple of int
        The number of codes at every level.
    """

    renamed: ClassVar[dict[str, str]] = {}  # old name of an argument → its name now
    trainable_further: ClassVar[bool] = False  # a generator can go on training it, as ETEGRec does
    collisions: str = "keep"
    random_state: Any
    codes_: NDArray[np.int32]
    level_sizes_: tuple[int, ...]
    n_features_in_: int

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__init__" in vars(cls) and "settings_class" not in vars(cls):
            cls.settings_class = settings_of_estimator(cls)

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """Return a quantizer that is not fitted."""
        values = {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)}
        return cls(random_state=values.pop("seed"), **values)

    @property
    def settings(self) -> Settings:
        """The arguments of the constructor; a `random_state` that is not an integer counts as 0."""
        values = {name: _plain(value) for name, value in self.get_params(deep=False).items()}
        seed = values.pop("random_state")
        return self.settings_class(seed=seed if isinstance(seed, int) else 0, **values)  # type: ignore[call-arg]

    @abstractmethod
    def _check_items(self, n_items: int) -> None:
        """Raise a ValueError if the settings do not fit a catalogue of this size."""

    def check(self, data: Dataset) -> None:
        """Raise an `InputError` if the settings do not fit the size of the catalogue."""
        try:
            self._check_items(data.n_items)
        except ValueError as error:
            raise InputError(f"[{self.stage}] {error}") from error

    def fit_part(self, vectors: Any, *further: Any, runtime: Runtime | None = None) -> Self:  # type: ignore[override]
        """Fit the quantizer; invalid vectors are an `InputError`."""
        try:
            return self.fit(vectors, runtime=runtime, **dict(zip(self.further_inputs, further, strict=False)))
        except ValueError as error:
            raise InputError(f"[{self.stage}] {first_line(error)}.") from error

    @property
    def semantic_ids_(self) -> SemanticIds:
        """The codes as semantic IDs; with ``collisions="deduplicate"``, one more level makes every ID unique."""
        check_is_fitted(self)
        ids = SemanticIds(self.codes_, self.level_sizes_)
        return ids.deduplicated() if self.collisions == "deduplicate" else ids

    def new_ids(self, X: Any) -> NDArray[np.int32]:  # noqa: N803 - scikit-learn's name
        """Return semantic IDs for new vectors without keeping them, shape (n_samples, levels); see `extend`."""
        codes: NDArray[np.int32] = self.transform(X)
        return codes

    @abstractmethod
    def extend(self, X: Any, *, distinct: bool = False) -> NDArray[np.int32]:  # noqa: N803
        """Return semantic IDs for new vectors, and keep them: they are appended to `codes_`. Existing IDs never change.

        Parameters
        ----------
        X
            The vectors, shape (n_samples, n_features).
        distinct
            Every row is an item of its own, even if its vector is known, and level sizes stay as they are.
        """

    def room(self) -> Room | None:
        """Return how many IDs are taken and free under every first code; None if items can share IDs."""
        return None

    def fit_transform(self, X: Any, y: None = None, **options: Any) -> NDArray[np.int32]:  # noqa: N803
        """Return the codes of X."""
        return self.fit(X, **options).codes_

    def _pack(self) -> dict[str, Any]:
        check_is_fitted(self)
        facts = {
            "settings": self.settings.to_dict(),
            "level_sizes": self.level_sizes_,
            "n_features_in": self.n_features_in_,
            "n_iter": self.n_iter_,
        }
        return {"facts": facts, "arrays": {"codes": self.codes_}}

    @classmethod
    def _unpack(cls, artifact: Artifact) -> Self:
        facts = artifact.facts
        quantizer = cls.from_settings(cls.settings_class(**facts["settings"]))
        quantizer.codes_, quantizer.level_sizes_ = artifact.arrays["codes"], tuple(facts["level_sizes"])
        quantizer.n_features_in_, quantizer.n_iter_ = facts["n_features_in"], facts["n_iter"]
        return quantizer

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = []  # codes are integers
        return tags

    @property
    def _n_features_out(self) -> int:
        return len(self.level_sizes_)


def _plain(value: Any) -> Any:
    """Return a NumPy array or number as Python values, which settings need; anything else as it is."""
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


class ResidualQuantizer(Quantizer):
    """Base class of residual quantizers, whose codes may collide; see their argument `collisions`."""

    n_levels: int
    codebook_size: int | str
    _known: KnownRows

    def _check_items(self, n_items: int) -> None:
        if self.codebook_size != "auto":
            check_numbers(self, codebook_size=1)
        if self.collisions not in ("deduplicate", "keep"):
            raise ValueError(f"collisions={self.collisions!r} is invalid; use 'deduplicate' or 'keep'.")
        if n_items < (size := self._codebook_size(n_items)):
            raise ValueError(f"n_samples={n_items} should be >= codebook_size={size}: use a smaller codebook.")

    def _codebook_size(self, n_items: int) -> int:
        """Return the number of codes of a level; ``"auto"`` is 256, or a quarter of the items if that is less."""
        return min(256, max(1, n_items // 4)) if self.codebook_size == "auto" else int(self.codebook_size)

    def new_ids(self, X: Any) -> NDArray[np.int32]:  # noqa: N803
        """See `Quantizer.new_ids`."""
        return self._extended(X)[1]

    def extend(self, X: Any, *, distinct: bool = False) -> NDArray[np.int32]:  # noqa: N803
        """See `Quantizer.extend`; rows that are known already keep their ID and are not appended.

        If the numbers of its codes are taken, a `distinct` row gets the nearest other code of the last level that has one free.
        """
        self.codes_, ids, new = self._extended(X, distinct=distinct)
        self._known.add(new)
        return ids

    def room(self) -> Room | None:
        """See `Quantizer.room`."""
        if self.collisions != "deduplicate":
            return None
        each = math.prod((*self.level_sizes_[1:], self.semantic_ids_.level_sizes[-1]))
        taken = np.bincount(self.codes_[:, 0], minlength=self.level_sizes_[0])
        return Room.of(taken, np.full(len(taken), each, dtype=object))

    def _last_distances(self, vectors: Tensor, codes: NDArray[np.int32]) -> NDArray[np.float32]:
        """Return the distances of vectors to the codes of the last level, given the others; shape (n_samples, codes)."""
        raise ValueError(
            f"no ID with the codes of a new item is free, and {type(self).__name__} cannot assign other codes; fit again."
        )

    def _own_codes(self, vectors: Tensor, codes: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the codes of vectors, those of fitted rows replaced by their own; shape (n_samples, n_levels)."""
        known = self._known.find(vectors)
        own: NDArray[np.int32] = np.where(known[:, None] >= 0, self.codes_[known], codes)
        return own

    def _extended(
        self,
        X: Any,  # noqa: N803
        *,
        distinct: bool = False,
    ) -> tuple[NDArray[np.int32], NDArray[np.int32], Any]:
        """Return the codes of all items with the new ones, the IDs of the rows of X, and the rows that are new."""
        codes = self.transform(X)
        vectors = as_points(self, X, reset=False).cpu()
        place = np.full(len(vectors), -1) if distinct else self._known.find(vectors)
        if distinct and self.collisions == "deduplicate":
            codes = self._with_free_numbers(vectors, codes)
        new = np.flatnonzero(place < 0)
        place[new] = len(self.codes_) + np.arange(len(new))
        all_codes = np.concatenate([self.codes_, codes[new]])
        ids = SemanticIds(all_codes, self.level_sizes_)
        ids = ids.deduplicated() if self.collisions == "deduplicate" else ids
        return all_codes, ids.codes[place], vectors[new]

    def _with_free_numbers(self, vectors: Tensor, codes: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return codes whose last level is replaced where no number is left to tell their items apart."""
        most = self.semantic_ids_.level_sizes[-1]
        counts = Counter(map(bytes, self.codes_))
        codes = codes.copy()
        for row, own in enumerate(codes):
            if counts[bytes(own)] == most:
                distances = self._last_distances(vectors[row : row + 1], own[None])[0]
                others = (np.append(own[:-1], last).astype(np.int32) for last in distances.argsort(kind="stable"))
                found = next((other for other in others if counts[bytes(other)] < most), None)
                if found is None:
                    raise ValueError(f"row {row}: all {most * len(distances):,} IDs near it are taken; fit again.")
                codes[row] = found
            counts[bytes(codes[row])] += 1
        return codes

    def _pack(self) -> dict[str, Any]:
        content = super()._pack()
        return {**content, "arrays": {**content["arrays"], "known_rows": self._known.keys}}

    @classmethod
    def _unpack(cls, artifact: Artifact) -> Self:
        quantizer = super()._unpack(artifact)
        quantizer._known = KnownRows(keys=artifact.arrays["known_rows"])
        return quantizer
