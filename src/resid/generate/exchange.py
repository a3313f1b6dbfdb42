"""Weights of T5Generator there and back: `transformers`' T5 is the same network under other names."""

import importlib
from typing import Any, cast

import torch
from torch import Tensor

from resid.core.errors import InputError
from resid.generate.t5 import BUCKETS, FARTHEST, Block, T5Model

_LAYER_NAMES = {  # ours and those of `transformers`, within a layer; the number of the part depends on the stack
    "attend_norm.weight": "layer.0.layer_norm.weight",
    "attend.project_in.weight": "layer.0.SelfAttention.{q,k,v}.weight",
    "attend.out.weight": "layer.0.SelfAttention.o.weight",
    "cross_norm.weight": "layer.1.layer_norm.weight",
    "cross.project_in.weight": "layer.1.EncDecAttention.{q,k,v}.weight",
    "cross.out.weight": "layer.1.EncDecAttention.o.weight",
    "feed_norm.weight": "layer.<last>.layer_norm.weight",
    "feed.widen.weight": "layer.<last>.DenseReluDense.wi.weight",
    "feed.narrow.weight": "layer.<last>.DenseReluDense.wo.weight",
}


def transformers_names(model: T5Model) -> dict[str, tuple[str, ...]]:
    """Return the names in `transformers`' `T5ForConditionalGeneration` of each of the model's weights.

    Queries, keys and values, which are one weight here, have three.
    """
    names: dict[str, tuple[str, ...]] = {"table.weight": ("shared.weight",)}
    for stack, last in (("encoder", 1), ("decoder", 2)):
        names[f"{stack}_norm.weight"] = (f"{stack}.final_layer_norm.weight",)
        names[f"{stack}_bias.weight"] = (f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight",)
        for number in range(len(getattr(model, stack))):
            for ours, theirs in _LAYER_NAMES.items():
                if stack == "decoder" or not ours.startswith("cross"):
                    there = f"{stack}.block.{number}.{theirs}".replace("<last>", str(last))
                    parts = [there.replace("{q,k,v}", part) for part in "qkv"]
                    names[f"{stack}.{number}.{ours}"] = tuple(dict.fromkeys(parts))
    return names


def to_transformers(model: T5Model) -> Any:
    """Return `transformers`' `T5ForConditionalGeneration` with the same weights.

    Raises
    ------
    InputError
        If the model reads item vectors, for which T5 has no place.
    """
    try:
        transformers: Any = importlib.import_module("transformers")
    except ImportError as error:
        raise InputError("transformers is not installed; run: pip install transformers") from error
    _require_tokens_alone(model)
    first = cast(Block, model.encoder[0])
    width, inner = model.table.weight.shape[1], first.attend.inner
    config = transformers.T5Config(
        vocab_size=len(model.table.weight),
        d_model=width,
        d_kv=inner // first.attend.heads,
        d_ff=first.feed.widen.weight.shape[0],
        num_layers=len(model.encoder),
        num_decoder_layers=len(model.decoder),
        num_heads=first.attend.heads,
        relative_attention_num_buckets=BUCKETS,
        relative_attention_max_distance=FARTHEST,
        dropout_rate=first.attend.dropout.chance,
        feed_forward_proj="relu",
        tie_word_embeddings=True,
        pad_token_id=0,
        decoder_start_token_id=0,
        eos_token_id=None,
    )
    theirs = transformers.T5ForConditionalGeneration(config).eval()
    weights: dict[str, Tensor] = {}
    for here, there in transformers_names(model).items():
        weights |= dict(zip(there, model.state_dict()[here].chunk(len(there)), strict=True))
    theirs.load_state_dict(weights, strict=False)  # the input tables and the output are the shared table
    theirs.tie_weights()
    return theirs


def from_transformers(model: T5Model, theirs: Any) -> None:
    """Give a model the weights of a `T5ForConditionalGeneration` of the same shape."""
    _require_tokens_alone(model)
    weights: dict[str, Tensor] = theirs.state_dict()
    taken: dict[str, Tensor] = {}
    for here, there in transformers_names(model).items():
        parts = model.state_dict()[here].chunk(len(there))
        for name, part in zip(there, parts, strict=True):
            if name not in weights or weights[name].shape != part.shape:
                raise InputError(
                    f"the weight '{name}' of the other model is missing or of another shape; is it of the same size?"
                )
        taken[here] = torch.cat([weights[name] for name in there])
    model.load_state_dict(taken)


def _require_tokens_alone(model: T5Model) -> None:
    if model.vectors is not None:
        raise InputError("T5 of transformers reads tokens alone; take a generator with read_vectors off.")
