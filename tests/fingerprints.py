"""What recipes give on a small synthetic shop, as checksums: weights, recommended items and their scores.

python -m tests.fingerprints [FILE]    prints them, or writes them to a file
"""

import hashlib
import json
import sys
from pathlib import Path

import numpy as np
import torch

import resid
from resid.data import synthetic_shop

FILE = Path(__file__).with_name("fingerprints.json")
_ENCODER = {"encoder.epochs": 2, "encoder.batch_size": 256}
_SHORT = {"recommender.epochs": 2}
RECIPES = {
    "resid": _ENCODER | {"generator.epochs": 2},
    "resid-codes": _ENCODER | {"generator.epochs": 2},
    "resid-t5": _ENCODER
    | {"generator.epochs": 2, "generator.batch_size": 256, "generator.layers": 2, "generator.validation_users": 20},
    "sasrec": _SHORT,
    "sasrec-fields": _SHORT,
    "bert4rec": _SHORT,
    "s3rec-fields": _SHORT | {"recommender.pretrain_epochs": 1},
    "hgn": _SHORT,
    "cooccurrence": {},
}


def machine() -> str:
    """Return a checksum of arithmetic that differs between processors: there, fingerprints are compared roughly."""
    rng = torch.Generator().manual_seed(0)
    a, b = torch.randn(200, 300, generator=rng), torch.randn(300, 170, generator=rng)
    parts = [a @ b, (a @ b).exp().sum(dim=1), torch.nn.functional.gelu(a), a.softmax(dim=1), a.norm(dim=1)]
    parts.append(torch.from_numpy(np.linalg.eigh((a.T @ a).double().numpy())[0]))
    return _digest([part.numpy() for part in parts])


def fingerprint(recipe: str, data: resid.Dataset) -> dict[str, object]:
    """Fit a recipe on one thread and return what came out, whatever its parameters are called."""
    model = resid.fit(data, recipe, changes=RECIPES[recipe])
    histories = [data.item_ids.gather(data.test.window(user)[0].astype(np.int64)).to_list() for user in range(50)]
    items, scores = model.recommend(histories, 10)
    network = getattr(model, "model_", None)
    tensors = network.parameters() if network is not None else []
    arrays = [tensor.detach().numpy() for tensor in tensors]
    return {
        "weights": _digest(sorted(_digest([array]).encode() for array in arrays)),
        "weight_sum": float(sum(np.abs(array, dtype=np.float64).sum() for array in arrays)),
        "items": _digest([str(items.tolist()).encode()]),
        "first_items": items[:5].tolist(),
        "scores": _digest([scores]),
        "score_sum": float(scores.sum(dtype=np.float64)),
    }


def dataset() -> resid.Dataset:
    """Return the shop that the recipes are fitted to."""
    shop = synthetic_shop(users=400, items=150, interactions=5_000, seed=5)
    return resid.Dataset.from_tables(shop.interaction_table, shop.item_table, ["store", "categories"])


def _digest(parts: list) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part if isinstance(part, bytes) else np.ascontiguousarray(part).tobytes())
    return digest.hexdigest()[:16]


def main(file: str | None = None) -> None:
    """Compute all fingerprints."""
    torch.set_num_threads(1)
    data = dataset()
    found = {"machine": machine(), "recipes": {recipe: fingerprint(recipe, data) for recipe in RECIPES}}
    text = json.dumps(found, indent=1) + "\n"
    if file:
        Path(file).write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main(*sys.argv[1:])
