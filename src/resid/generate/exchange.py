"""Weights exchanged with `transformers`, whose T5 is the same network with other parameter names."""

import importlib
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from resid.core.errors import InputError
from resid.nn.t5 import MAX_DISTANCE, N_BUCKETS, EncoderBlock

if TYPE_CHECKING:
    from resid.generate.t5 import T5Model

_LAYER_NAMES = {  # ours → those of `transformers`, within a layer
    "attention_norm.weight": "layer.0.layer_norm.weight",
    "attention.qkv.weight": "layer.0.SelfAttention.{q,k,v}.weight",
    "attention.out.weight": "layer.0.SelfAttention.o.weight",
    "cross_norm.weight": "layer.1.layer_norm.weight",
    "cross_attention.qkv.weight": "layer.1.EncDecAttention.{q,k,v}.weight",
    "cross_attention.out.weight": "layer.1.EncDecAttention.o.weight",
    "ffn_norm.weight": "layer.<last>.layer_norm.weight",
    "ffn.ffn_in.weight": "layer.<last>.DenseReluDense.wi.weight",
    "ffn.ffn_out.weight": "layer.<last>.DenseReluDense.wo.weight",
}


def transformers_names(model: "T5Model") -> dict[str, tuple[str, ...]]:
    """Return the names of each weight in `transformers`' `T5ForConditionalGeneration`.

    Queries, keys and values, which are one weight here, have three names.
    """
    names: dict[str, tuple[str, ...]] = {"table.weight": ("shared.weight",)}
    for stack, last in (("encoder", 1), ("decoder", 2)):
        names[f"{stack}.norm.weight"] = (f"{stack}.final_layer_norm.weight",)
        names[f"{stack}.position_bias.weight"] = (
            f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
        )
        for number in range(len(getattr(model, stack).blocks)):
            for ours, theirs in _LAYER_NAMES.items():
                if stack == "decoder" or not ours.startswith("cross"):
                    there = f"{stack}.block.{number}.{theirs}".replace("<last>", str(last))
                    parts = [there.replace("{q,k,v}", part) for part in "qkv"]
                    names[f"{stack}.blocks.{number}.{ours}"] = tuple(dict.fromkeys(parts))
    return names


def to_transformers(model: "T5Model") -> Any:
    """Return `transformers`' `T5ForConditionalGeneration` with the same weights.

    Raises
    ------
    InputError
        If the model reads item embeddings, which T5 does not support.
    """
    try:
        transformers: Any = importlib.import_module("transformers")
    except ImportError as error:
        raise InputError("transformers is not installed; run: pip install transformers") from error
    _require_tokens_only(model)
    first = cast(EncoderBlock, model.encoder.blocks[0])
    width, inner = model.table.weight.shape[1], first.attention.inner
    config = transformers.T5Config(
        vocab_size=len(model.table.weight),
        d_model=width,
        d_kv=inner // first.attention.heads,
        d_ff=first.ffn.ffn_in.weight.shape[0],
        num_layers=len(model.encoder.blocks),
        num_decoder_layers=len(model.decoder.blocks),
        num_heads=first.attention.heads,
        relative_attention_num_buckets=N_BUCKETS,
        relative_attention_max_distance=MAX_DISTANCE,
        dropout_rate=first.attention.dropout.p,
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


def from_transformers(model: "T5Model", theirs: Any) -> None:
    """Load the weights of a `T5ForConditionalGeneration` of the same shape into a model."""
    _require_tokens_only(model)
    weights: dict[str, Tensor] = theirs.state_dict()
    taken: dict[str, Tensor] = {}
    for here, there in transformers_names(model).items():
        parts = model.state_dict()[here].chunk(len(there))
        for name, part in zip(there, parts, strict=True):
            if name not in weights or weights[name].shape != part.shape:
                raise InputError(
                    f"the weight '{name}' is missing from the other model or has another shape; is it of the same size?"
                )
        taken[here] = torch.cat([weights[name] for name in there])
    model.load_state_dict(taken)


def _require_tokens_only(model: "T5Model") -> None:
    if model.vectors is not None:
        raise InputError("T5 of transformers reads tokens only; use a generator with input_embeddings=False.")
