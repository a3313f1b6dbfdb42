"""LETTER: text vectors and the item vectors of a sequential model → learnable tokenizer → generator."""

from collections.abc import Mapping

from resid.core.errors import InputError
from resid.core.part import PartSpec
from resid.core.registry import find_part
from resid.data.dataset import Dataset
from resid.methods.method import method
from resid.methods.semantic_ids import fit_encoder, fit_generator, fit_quantizer, require_matching
from resid.recommend import Recommender
from resid.runs import Run


@method("letter", "text_encoder", "collaborative_encoder", "quantizer", "generator")
def fit_letter(run: Run, parts: Mapping[str, PartSpec], data: Dataset) -> Recommender:
    """Fit both encoders, the tokenizer on their vectors, and the generator; a generator with vectors reads the text's."""
    if find_part("quantizer", parts["quantizer"].kind).further_inputs != ("collaborative",):
        raise InputError(
            f"the method 'letter' needs a quantizer that reads collaborative vectors, such as 'letter', not "
            f"'{parts['quantizer'].kind}'; for other quantizers use the method 'semantic-ids'."
        )
    require_matching(parts["generator"], parts["quantizer"])
    text_encoder, text = fit_encoder(run, parts["text_encoder"], data, "text_encoder")
    collaborative_encoder, collaborative = fit_encoder(
        run, parts["collaborative_encoder"], data, "collaborative_encoder"
    )
    quantizer, ids = fit_quantizer(run, parts["quantizer"], data, text, collaborative)
    model = fit_generator(run, parts["generator"], data, ids, text, text_encoder)
    model.parts_ = {
        "text_encoder": text_encoder,
        "collaborative_encoder": collaborative_encoder,
        "quantizer": quantizer,
    }
    return model
