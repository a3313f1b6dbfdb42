"""The settings of EAGER, UNGER and ETEGRec that were published, or chosen once, do not change unnoticed."""

import pytest

from resid import Recipe

SUMMARY = {"n_negatives": 2_048, "contrastive_temperature": 0.3}
DIN = {
    "windows": (8, 7, 4, 4, 2, 2, 1, 1, 1, 1),  # of 31 items
    "attention_widths": (64, 16),
    "mlp_widths": (200, 80),
    "dropout": 0.1,
    "n_negatives": 60,
    "learning_rate": 1e-3,
}
PUBLISHED = {
    ("eager", "behavior_encoder"): {**DIN, "width": 96},
    ("eager", "generator"): {
        **SUMMARY,
        "behavior_contrastive_weight": 1,
        "semantic_contrastive_weight": 10,
        "reconstruction_weight": 1,
        "recognition_weight": 1,
    },
    ("unger", "encoder"): {**DIN, "width": 128, "alignment_temperature": 0.07, "alignment_weight": 1},
    ("unger", "quantizer"): {"branching": 256},
    ("unger", "generator"): {**SUMMARY, "distillation_weight": 1},
    ("etegrec", "encoder"): {"width": 256},
    ("etegrec", "quantizer"): {"hidden_layer_sizes": (512, 256), "latent_dim": 128, "commitment_weight": 0.25},
    ("etegrec", "generator"): {
        "sia_weight": 1e-4,
        "psa_weight": 3e-4,
        "psa_temperature": 0.07,
        "sia_sign": "paper",
        "cycle": 2,
        "alignment_start": 10,
        "learning_rate": 5e-3,
        "tokenizer_learning_rate": 1e-4,
        "weight_decay": 0.05,
        "finetune_learning_rate": 5e-4,
        "evaluate_every": 2,
        "patience": 15,
    },
}


@pytest.mark.parametrize(("recipe", "part"), PUBLISHED)
def test_settings(recipe, part):
    found = Recipe.read(recipe).part(part).settings
    expected = PUBLISHED[recipe, part]
    assert {name: getattr(found, name) for name in expected} == expected
