"""Two generators of different IDs of the same items, ranked together: EAGER with any generator of codes.

Nothing is trained here, and the generators share nothing. Both propose items, and the score of an item is the sum of its
log-probabilities in both, as in `resid.generate.two_streams`.
"""

from typing import Any, Self, cast

import numpy as np
import polars as pl
from numpy.typing import NDArray

from resid.core.artifact import Artifact
from resid.core.errors import InputError
from resid.core.registry import register
from resid.core.runtime import Runtime
from resid.data.catalogue import Catalogue
from resid.data.dataset import Dataset
from resid.data.new_items import NewItems
from resid.data.splits import Split
from resid.generate.base import Generator
from resid.generate.settings import PairedSettings
from resid.generate.streams import STREAMS, Stream, rank_streams, table_of_streams
from resid.recommend import Recommender
from resid.recommend.histories import Indices, Scores, without_seen
from resid.recommend.items import Grown

_PARTS = tuple(f"{name}_generator" for name in STREAMS)


@register("generator", "paired")
class PairedGenerators(Recommender):
    """Ranks items by two fitted generators; `ids_` are the IDs of the first, the behavior stream.

    Parameters
    ----------
    settings
        See `PairedSettings`.
    """

    settings_class = PairedSettings
    decodings = Generator.decodings

    def __init__(self, settings: PairedSettings | None = None) -> None:
        self.settings = settings or PairedSettings()

    def check(self, data: Dataset) -> None:
        """Raise an `InputError`: a pair is not fitted to a Dataset."""
        raise InputError(
            "a pair is made of fitted generators; use the recipe 'eager' with generator.kind=t5 or onepass."
        )

    def fit(
        self, behavior: Generator[Any, Any], semantic: Generator[Any, Any], *, runtime: Runtime | None = None
    ) -> Self:
        """Pair two fitted generators of the same Dataset."""
        for each in (behavior, semantic):
            if not isinstance(each, Generator):
                raise InputError(
                    "a pair consists of two fitted generators; use the recipe 'eager' with another generator."
                )
        if behavior.catalogue_.fingerprint != semantic.catalogue_.fingerprint:
            raise InputError("the two generators were fitted to different Datasets; fit both to one.")
        self.catalogue_, self.ids_ = behavior.catalogue_, behavior.ids_
        self.parts_ = dict(zip(_PARTS, (behavior, semantic), strict=True))
        self.fitted = True
        return self

    @property
    def generators(self) -> list[Generator[Any, Any]]:
        """Both generators, behavior first."""
        return [cast(Generator[Any, Any], self.parts_[name]) for name in _PARTS]

    @property
    def required_parts(self) -> tuple[str, ...]:
        """See `Recommender.required_parts`."""
        return _PARTS

    @property
    def semantic_ids(self) -> pl.DataFrame:
        """See `table_of_streams`."""
        return table_of_streams([generator.ids_ for generator in self.generators])

    def top(
        self,
        histories: Indices,
        k: int,
        *,
        exclude_seen: bool = False,
        allowed: NDArray[np.bool_] | None = None,
        beam_size: int | None = None,
        constrained: bool = True,
        exact: bool = False,
    ) -> tuple[Indices, Scores]:
        """See `Generator.top`; the score is the sum of both log-probabilities, `beam_size` is that of each generator."""
        first, second = self.generators
        more, beams = first.search_size(histories, k, exclude_seen, beam_size, exact)
        (tree, numbers), (other, _) = first.tree(allowed), second.tree(allowed)  # of the same items in the same order
        recent = first.recent(histories)
        second.model_.eval()
        streams = [Stream(first.model_, tree), Stream(second.model_, other)]
        found, scores = rank_streams(streams, recent, more, beams, constrained=constrained)
        items = np.where(found >= 0, numbers[found], -1)
        return without_seen(items, scores, histories, k) if exclude_seen else (items, scores)

    def grow(self, new: NewItems) -> Grown:
        """Raise an `InputError`: items have two IDs."""
        raise InputError("a pair of generators has two IDs per item and cannot take new items; fit it again.")

    def _set_catalogue(self, catalogue: Catalogue) -> None:
        super()._set_catalogue(catalogue)
        for generator in self.generators:
            generator._set_catalogue(catalogue)

    def invalid_share(self, windows: Split) -> float:
        """See `Generator.invalid_share`; the mean of both."""
        return float(np.mean([generator.invalid_share(windows) for generator in self.generators]))

    def _pack(self) -> dict[str, Any]:
        return {}

    @classmethod
    def _unpack(cls, artifact: Artifact) -> Self:
        model = cls()
        model.catalogue_ = cls._catalogue(artifact)
        return model

    @classmethod
    def _from_artifact(cls, artifact: Artifact) -> Self:
        model = super()._from_artifact(artifact)
        model.ids_ = model.generators[0].ids_
        return model
