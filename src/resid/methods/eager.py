"""EAGER: a behavior ID and a semantic ID per item, and a generator of both.

The behavior vectors come from DIN, or with ``behavior_encoder.kind=sasrec`` from SASRec; the semantic vectors from text,
normalized. Each makes the IDs of one stream. With ``generator.kind=t5`` or ``onepass``, one generator is fitted per stream, and
the two rank items together (`resid.generate.paired`).
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from resid.core.errors import InputError
from resid.core.part import PartSpec
from resid.data.dataset import Dataset
from resid.encode.embeddings import ItemEmbeddings
from resid.generate.settings import CodeGeneratorSettings
from resid.methods.method import method
from resid.methods.semantic_ids import fit_encoder, fit_generator, fit_quantizer, trains_quantizer
from resid.recommend import Recommender
from resid.runs import Run

if TYPE_CHECKING:  # it imports torch
    from resid.generate import Generator


@method("eager", "behavior_encoder", "text_encoder", "behavior_quantizer", "semantic_quantizer", "generator")
def fit_eager(run: Run, parts: Mapping[str, PartSpec], data: Dataset) -> Recommender:
    """Fit an encoder and a quantizer for each stream, then the generator of both."""
    spec = parts["generator"]
    if not isinstance(spec.settings, CodeGeneratorSettings):
        raise InputError(
            f"[generator] EAGER ranks items by their codes, and '{spec.kind}' by more; use two-streams, t5 or onepass."
        )
    if trains_quantizer(spec):
        raise InputError(
            f"[generator] '{spec.kind}' trains the quantizer of its IDs, and EAGER has two; use two-streams, t5 or onepass."
        )
    behavior, vectors = fit_encoder(run, parts["behavior_encoder"], data, "behavior_encoder")
    text, texts = fit_encoder(run, parts["text_encoder"], data, "text_encoder")
    texts = normalized(texts)
    quantizer, ids = fit_quantizer(run, parts["behavior_quantizer"], data, vectors, stage="behavior_quantizer")
    other, semantic_ids = fit_quantizer(run, parts["semantic_quantizer"], data, texts, stage="semantic_quantizer")
    if spec.settings.ids_per_item > 1:
        model = cast(Recommender, run.stage("generator", spec, data, ids, vectors, semantic_ids, texts))
    else:
        first = fit_generator(run, spec, data, ids, vectors, behavior, stage="behavior_generator")
        second = fit_generator(run, spec, data, semantic_ids, texts, text, stage="semantic_generator")
        model = _paired(first, second)
    model.parts_ = {
        **model.parts_,
        "behavior_encoder": behavior,
        "text_encoder": text,
        "behavior_quantizer": quantizer,
        "semantic_quantizer": other,
    }
    return model


def normalized(embeddings: ItemEmbeddings) -> ItemEmbeddings:
    """Return embeddings of length 1."""
    norms = np.linalg.norm(embeddings.vectors, axis=1, keepdims=True)
    vectors = embeddings.vectors / np.maximum(norms, 1e-12)
    return ItemEmbeddings(vectors.astype(np.float32, copy=False), embeddings.columns, embeddings.fingerprint)


def _paired(first: Recommender, second: Recommender) -> Recommender:
    from resid.generate import PairedGenerators  # imports torch

    return PairedGenerators().fit(cast("Generator[Any, Any]", first), cast("Generator[Any, Any]", second))
