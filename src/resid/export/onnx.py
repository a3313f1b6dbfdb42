"""Export to ONNX: the networks of a one-pass or joint generator, and a decoder that needs only onnxruntime and NumPy.

::

    history.onnx     histories → the state from which codes are generated and the log-probabilities of the first level's codes; of
                     a joint generator also the query of items, and the query of the encoder if its score is blended
    level2.onnx …    state, node and the code before → log-probabilities of the codes of a level, and the next state
    tables.npz       IDs, item ids, item vectors of the blended scores, co-occurrence
    decode.json      how they belong together
    decode.py        the decoder
"""

import contextlib
import importlib.util
import json
import logging
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as f
from numpy.typing import NDArray
from torch import Tensor, nn

from resid.core.errors import InputError, counted
from resid.data.batches import PADDING
from resid.encode.famae import FAMAE
from resid.export import decode
from resid.generate.item_scores import COOCCURRENCE_FLOOR
from resid.generate.joint import JointGenerator
from resid.generate.levelwise import Branches, LevelDecoder, LevelwiseModel
from resid.generate.onepass import OnePassGenerator
from resid.recommend.base import Recommender

_SAMPLE = (3, 5)  # users and items of the histories that the exporter traces


def write_onnx(model: Recommender, folder: Path) -> str:
    """Write the files to a folder that exists; return what the model card says about their use.

    Raises
    ------
    InputError
        If it is another model, has added items that it was never trained on, or a package is missing.
    """
    if not isinstance(model, OnePassGenerator | JointGenerator):
        raise InputError(
            f"a {type(model).__name__} cannot be exported to ONNX; use a one-pass or joint generator "
            "(recipes resid-codes and resid)."
        )
    if added := int((~model.trained_items).sum()):
        raise InputError(
            f"the model has {counted(added, 'added item')} that it was never trained on, which the ONNX decoder cannot score; export the model "
            "from before they were added, or update it with their interactions first."
        )
    for package in ("onnx", "onnxscript"):
        if importlib.util.find_spec(package) is None:
            raise InputError(f"{package} is not installed; run: pip install 'resid[onnx]'")
    network = cast(LevelwiseModel, model.model_.cpu().eval())
    joint = model if isinstance(model, JointGenerator) else None
    vectors, cooccurrence = joint.score_tables() if joint is not None else ({}, None)
    longest = model.catalogue_.max_history
    histories = torch.zeros(_SAMPLE, dtype=torch.int64)
    histories[0, 0] = PADDING
    dimensions = {0: torch.export.Dim("users"), 1: torch.export.Dim("length", max=longest)}
    read = _History(network, joint, _query_of(joint) if joint is not None and "encoder" in vectors else None)
    _export(read, (histories,), (dimensions,), folder / "history.onnx", ["histories"], read.outputs)
    decoders = cast(list[LevelDecoder], list(network.decoders))
    width, beams = decoders[0].norm.normalized_shape[0], torch.export.Dim("beams")
    for level, decoder in enumerate(decoders[1:], 1):
        inputs = (torch.zeros(_SAMPLE[0], width), *(torch.zeros(_SAMPLE[0], dtype=torch.int64) for _ in range(2)))
        wrapped = _Level(decoder, cast(nn.Embedding, network.code_tables[level - 1]))
        names = (["state", "nodes", "codes"], ["log_probs", "next_state"])
        _export(wrapped, inputs, ({0: beams},) * 3, folder / f"level{level + 1}.onnx", *names)
    tables: dict[str, Any] = {"codes": model.ids_.codes, "item_ids": _ids(model)}
    tables |= {"counts": model.catalogue_.counts, "recommendable": model.catalogue_.recommendable}
    facts: dict[str, Any] = {
        "level_sizes": list(model.ids_.level_sizes),
        "beam_size": model.settings.beam_size,
        "max_history": longest,
        "blend": None,
    }
    if joint is not None:
        facts["blend"] = joint.blend_.to_dict()
        tables |= {f"{name}_vectors": values for name, values in vectors.items()}
    if cooccurrence is not None:
        tables |= {f"cooccurrence_{name}": array for name, array in cooccurrence.arrays().items()}
        settings = cooccurrence.settings
        facts["cooccurrence"] = {
            "n_recent": settings.n_recent,
            "decay": settings.decay,
            "floor": COOCCURRENCE_FLOOR,
        }
    np.savez_compressed(folder / "tables.npz", **tables)
    (folder / "decode.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    shutil.copy(Path(decode.__file__), folder / "decode.py")
    return _USE


_USE = """`decode.py` needs onnxruntime and NumPy only. In this folder:

```python
from decode import Decoder

decoder = Decoder(".")
items, scores = decoder.recommend([[decoder.item_ids[0], decoder.item_ids[1]]], k=5)
```
"""


def _ids(model: Recommender) -> NDArray[Any]:
    """Return the item ids as an array of integers or text, which loads without pickle."""
    ids = model.catalogue_.item_ids
    return ids.to_numpy() if ids.dtype.is_integer() else np.array(ids.to_list(), dtype=np.str_)


class _History(nn.Module):
    """Histories, `PADDING` on the left, shape (users, length), to what is computed once per user."""

    def __init__(self, network: LevelwiseModel, joint: JointGenerator | None, query: nn.Module | None) -> None:
        super().__init__()
        self.network, self.joint, self.query = network, joint is not None, query
        self.outputs = ["state", "log_probs"]
        self.outputs += ["item_query"] * self.joint + ["encoder_query"] * (query is not None)

    def forward(self, histories: Tensor) -> tuple[Tensor, ...]:
        states: Tensor = self.network.encode_histories(histories)
        state = states[:, 1] if self.joint else states
        root = torch.zeros_like(histories[:, 0])
        found = [state, _log_probs(cast(LevelDecoder, self.network.decoders[0]), state, root)]
        if self.joint:
            trunk: Any = self.network.trunk
            found.append(trunk.scale_queries(states[:, 0]))
        if self.query is not None:
            found.append(self.query(histories))
        return tuple(found)


class _Level(nn.Module):
    """The decoder of a level after the first, for a flat list of beams."""

    def __init__(self, decoder: LevelDecoder, taken: nn.Embedding) -> None:
        super().__init__()
        self.decoder, self.taken = decoder, taken

    def forward(self, state: Tensor, nodes: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
        state = state + self.taken(codes)
        return _log_probs(self.decoder, state, nodes), state


def _log_probs(decoder: LevelDecoder, state: Tensor, nodes: Tensor) -> Tensor:
    """Return the log-probabilities of codes after nodes, shape (beams,), from states, (beams, width) to (beams, codes)."""
    scores, queries = decoder.scores_and_queries(state)
    if queries is not None:
        scores = _add_products(decoder.branches, scores, queries, nodes)
    return scores.log_softmax(dim=-1)


def _add_products(branches: Branches, scores: Tensor, queries: Tensor, nodes: Tensor) -> Tensor:
    """Do what `Branches.add_products` does for nodes that exist, in operations without loops over data."""
    children, exist = branches.child_nodes(nodes)
    vectors = cast(Tensor, branches.vectors)[children]  # (beams, children, d)
    products = (vectors @ queries[:, :, None])[:, :, 0] * exist
    return scores.scatter_add(-1, branches.codes[children], products)


class _FamaeQuery(nn.Module):
    """`FAMAE.queries` without operations whose shapes depend on the data."""

    def __init__(self, encoder: FAMAE) -> None:
        super().__init__()
        self.model = encoder.model_.cpu().eval()

    def forward(self, histories: Tensor) -> Tensor:
        model, real = self.model, histories != PADDING
        tokens = model.tables.vectors(histories.clamp_min(0)) * real[:, :, None]
        not_read = model.codes.new_zeros(1, *model.codes.shape[1:])
        target = model.fuse(not_read, model.all_masked(1)).expand(histories.shape[0], -1)
        hidden = model.encode(*model.with_target(tokens, real, target), n_last=1)[:, 0]
        query: Tensor = f.normalize(hidden, dim=1) * hidden.shape[1] ** 0.5
        return query


def _query_of(model: JointGenerator) -> nn.Module:
    encoder = model.parts_["encoder"]
    if isinstance(encoder, FAMAE):
        return _FamaeQuery(encoder)
    raise InputError(f"the score of a {type(encoder).__name__} cannot be exported to ONNX; use FAMAE.")


def _export(
    module: nn.Module,
    inputs: tuple[Tensor, ...],
    dimensions: tuple[dict[int, Any], ...],
    path: Path,
    input_names: list[str],
    output_names: list[str],
) -> None:
    with torch.no_grad(), _quiet():
        program = torch.onnx.export(
            module.eval(),
            inputs,
            dynamo=True,
            dynamic_shapes=dimensions,
            input_names=input_names,
            output_names=output_names,
            verbose=False,
        )
        cast(Any, program).save(path, external_data=False)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter, which warns of its own internals."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
