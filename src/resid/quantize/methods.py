"""The quantizers by name, with validated settings: what recipes and the command choose from."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from resid.data.dataset import Dataset
from resid.encode.embeddings import ItemEmbeddings
from resid.core.errors import InputError, first_line
from resid.core.progress import Progress
from resid.quantize.gaoq import GAOQ
from resid.quantize.hierarchical import HierarchicalKMeans
from resid.quantize.ids import SemanticIds
from resid.quantize.residual import RQKMeans
from resid.quantize.rqvae import RQVAE
from resid.core.settings import Settings, checked

_Seed = Annotated[int, Field(ge=0, lt=2**32)]


@checked
class TreeSettings(Settings):
    """Settings of `GAOQ` and `HierarchicalKMeans`.

    Parameters
    ----------
    branching
        Clusters of a node, level by level; ``"auto"`` makes about a fourteenth of the items leaves. For the hierarchical
        tree a single number is EAGER's.
    seed
        Decides everything random.
    """

    branching: tuple[Annotated[int, Field(ge=1)], ...] | Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    seed: _Seed = 0


@checked
class ResidualSettings(Settings):
    """Settings of `RQKMeans` and `RQVAE`.

    Parameters
    ----------
    levels
        How many codes an item has, before one is added where items share them.
    codes
        Of every level; ``"auto"`` takes 256, or a quarter of the items if those are fewer.
    seed
        Decides everything random.
    """

    levels: Annotated[int, Field(ge=1)] = 3
    codes: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    seed: _Seed = 0


def quantize(
    kind: str,
    settings: Settings,
    data: Dataset,
    embeddings: ItemEmbeddings,
    folder: Path,
    progress: Progress | None = None,
) -> tuple[SemanticIds, SemanticIds]:
    """Cut item embeddings into semantic IDs.

    Parameters
    ----------
    kind
        ``"gaoq"``, ``"hierarchical"``, ``"rq-kmeans"`` or ``"rq-vae"``.
    settings
        Of that method.
    data, embeddings
        The Dataset, and vectors of its items.
    folder
        Where a method that is trained keeps its checkpoints, so that it continues if interrupted.
    progress
        Shows how far it is.

    Returns
    -------
    ids, raw
        The IDs, of which no two are the same, and those before a level was added to tell items apart, where it was.
    """
    quantizer = _make(kind, settings, len(embeddings.vectors), folder, progress)
    try:
        quantizer.fit(embeddings.vectors)
    except ValueError as error:
        raise InputError(f"{first_line(error)}.") from error
    facts = {"method": kind, **settings.plain(), "data": data.fingerprint, "vectors": embeddings.digest}
    raw = SemanticIds(quantizer.codes_, quantizer.level_sizes_, data.item_ids, facts)
    return (raw if raw.unique else raw.deduplicated()), raw


def _make(kind: str, settings: Any, items: int, folder: Path, progress: Progress | None) -> Any:
    if kind == "gaoq":
        return GAOQ(settings.branching, random_state=settings.seed)
    if kind == "hierarchical":
        return HierarchicalKMeans(settings.branching, random_state=settings.seed)
    codes = min(256, max(1, items // 4)) if settings.codes == "auto" else settings.codes
    if kind == "rq-kmeans":
        return RQKMeans(settings.levels, codes, random_state=settings.seed)
    return RQVAE(settings.levels, codes, folder=folder, progress=progress, random_state=settings.seed)
