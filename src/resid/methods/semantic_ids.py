"""Encoder → quantizer → generator: ReSID, its ablations, and methods with one semantic ID per item, such as TIGER."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from resid.core.errors import InputError
from resid.core.part import Input, PartSpec
from resid.core.registry import find_part
from resid.data.dataset import Dataset
from resid.encode.embeddings import ItemEmbeddings
from resid.generate.settings import GeneratorSettings
from resid.methods.method import method
from resid.quantize.ids import SemanticIds
from resid.recommend import Recommender
from resid.runs import Run

if TYPE_CHECKING:  # they import torch
    from resid.encode import Encoder
    from resid.generate import Generator
    from resid.quantize import Quantizer


@method("semantic-ids", "encoder", "quantizer", "generator")
def fit_semantic_ids(run: Run, parts: Mapping[str, PartSpec], data: Dataset) -> Recommender:
    """Fit encoder, quantizer and generator one after the other."""
    require_matching(parts["generator"], parts["quantizer"])
    encoder, embeddings = fit_encoder(run, parts["encoder"], data)
    quantizer, ids = fit_quantizer(run, parts["quantizer"], data, embeddings)
    model = fit_generator(run, parts["generator"], data, ids, embeddings, encoder, quantizer=quantizer)
    model.parts_ = {"encoder": encoder, "quantizer": quantizer, **model.parts_}  # a generator may have trained its own
    return model


def require_matching(generator: PartSpec, quantizer: PartSpec) -> None:
    """Raise an `InputError`, before anything is fitted, if a generator cannot work with the IDs of a quantizer."""
    if cast(GeneratorSettings, generator.settings).ids_per_item > 1:
        raise InputError(
            f"[generator] '{generator.kind}' generates two IDs per item and needs the method 'eager'; use the recipe eager, or "
            "another generator, such as t5."
        )
    if not trains_quantizer(generator):
        return
    if not cast("type[Quantizer]", find_part("quantizer", quantizer.kind)).trainable_further:
        raise InputError(
            f"[generator] '{generator.kind}' trains an RQ-VAE further and cannot use the quantizer '{quantizer.kind}'; set "
            'quantizer.kind to "rq-vae", or use another generator, such as t5.'
        )
    if quantizer.settings.to_dict()["collisions"] != "deduplicate":
        raise InputError(
            f"[generator] '{generator.kind}' needs unique IDs; set quantizer.collisions to \"deduplicate\"."
        )


def trains_quantizer(generator: PartSpec) -> bool:
    """Return whether a generator needs the quantizer itself, not only its IDs."""
    return cast(GeneratorSettings, generator.settings).uses_quantizer


def require_data_alone(encoder: PartSpec) -> None:
    """Raise an `InputError`, before anything is fitted, if an encoder reads more than the Dataset."""
    if further := find_part("encoder", encoder.kind).further_inputs:
        raise InputError(
            f"[encoder] '{encoder.kind}' also reads the {' and '.join(further)} vectors of another encoder; fit a recipe that has "
            "both with 'resid fit'."
        )


def fit_encoder(run: Run, spec: PartSpec, data: Dataset, stage: str = "encoder") -> "tuple[Encoder, ItemEmbeddings]":
    """Fit an encoder as a stage of a run; return it and its item embeddings."""
    require_data_alone(spec)
    encoder = cast("Encoder", run.stage(stage, spec, data))
    return encoder, encoder.embed(data)


def fit_quantizer(
    run: Run,
    spec: PartSpec,
    data: Dataset,
    embeddings: ItemEmbeddings,
    *further: ItemEmbeddings,
    stage: str = "quantizer",
) -> "tuple[Quantizer, SemanticIds]":
    """Fit a quantizer as a stage of a run; return it and the semantic IDs of the items.

    `further` embeddings are those that the quantizer reads in training besides the ones that it quantizes; see
    `Quantizer.further_inputs`.
    """
    quantizer = cast("Quantizer", run.stage(stage, spec, embeddings, *further))
    ids = quantizer.semantic_ids_
    facts = {"quantizer": spec.kind, **spec.settings.to_dict(), "data": data.fingerprint, "vectors": embeddings.digest}
    return quantizer, SemanticIds(ids.codes, ids.level_sizes, data.item_ids, facts)


def fit_generator(
    run: Run,
    spec: PartSpec,
    data: Dataset,
    ids: SemanticIds,
    embeddings: ItemEmbeddings | None = None,
    encoder: "Encoder | None" = None,
    stage: str = "generator",
    quantizer: "Quantizer | None" = None,
) -> Recommender:
    """Fit a generator as a stage of a run; embeddings, encoder and quantizer are inputs only if its settings use them."""
    settings = cast(GeneratorSettings, spec.settings)
    inputs: list[Input | None] = [ids]
    if settings.uses_embeddings or settings.uses_encoder:
        inputs.append(embeddings if settings.uses_embeddings else None)
    if settings.uses_encoder:
        inputs.append(encoder)
    if settings.uses_quantizer:
        inputs.append(quantizer)
    return cast("Generator[Any, Any]", run.stage(stage, spec, data, *inputs))
