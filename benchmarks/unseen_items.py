"""Item-ID embeddings for items without training interactions: several choices, compared on held-out items.

A tenth of the items is removed from all training histories, and FAMAE is trained on the rest. The item-ID embeddings of
the held-out items are then filled in several ways, each evaluated on the validation targets that are held-out items.

    python benchmarks/unseen_items.py data/scientific --out results/encode/unseen-scientific.json
"""

import argparse
import json
from pathlib import Path

import numpy as np
import polars as pl
import torch
import torch.nn.functional as f

from resid import Dataset, Runtime
from resid.data import Batches
from resid.encode import FAMAE, FamaeSettings
from resid.encode.metrics import target_ranks
from resid.evaluate import ranking_metrics

NEIGHBOURS = 10


def without_items(data, hidden):
    """Remove items from the training part of every history, then users with fewer than three items."""
    kept = ~hidden[data.sequence]
    kept[data.offsets[1:] - 1] = kept[data.offsets[1:] - 2] = True  # validation and test targets stay
    users = np.repeat(np.arange(data.n_users), np.diff(data.offsets))
    lengths = np.bincount(users[kept], minlength=data.n_users)
    alive = lengths >= 3
    sequence = np.asarray(data.sequence)[kept & alive[users]]
    offsets = np.concatenate([[0], np.cumsum(lengths[alive])])
    return Dataset(
        arrays={"sequence": sequence, "offsets": offsets, "fields": np.asarray(data.fields)},
        tables={"users": pl.DataFrame({"user": data.user_ids}).filter(alive), "items": data.item_table},
        settings=data.settings, field_names=data.field_names, steps=data.steps, notes=data.notes,
    )  # fmt: skip


def candidates(model, seen):
    """Return item-ID vectors of all items for every choice, by name; only the rows of unseen items are used."""
    tables, codes = model.embeddings(), model.codes
    own = tables[0].weight
    fields = torch.cat([f.normalize(t(codes[:, j]), dim=1) for j, t in enumerate(tables) if j], dim=1)
    length = own[seen].norm(dim=1).mean()
    features = torch.cat([fields, torch.ones(len(fields), 1)], dim=1).double()
    x, y = features[seen], own[seen].double()
    ways = {"as trained, from negatives alone": own, "mask vector": model.masks[0].expand_as(own)}
    ways["mean of seen items"] = own[seen].mean(dim=0).expand_as(own)
    for strength in (1.0, 10.0, 100.0):
        weights = torch.linalg.solve(x.T @ x + strength * torch.eye(x.shape[1]), x.T @ y)
        ways[f"ridge regression on the fields, λ = {strength:g}"] = (features @ weights).float()
    similar = fields @ fields[seen].T
    for count in (1, 5, 20):
        ways[f"mean of the {count} nearest by fields"] = own[seen][similar.topk(count, dim=1).indices].mean(dim=1)
    nothing = torch.empty(len(codes), 0, dtype=torch.int64)
    masked = torch.zeros_like(codes, dtype=torch.bool)
    masked[:, 0] = True
    predicted = f.normalize(model.hidden(nothing, codes, masked), dim=1)
    ways["the model's own prediction from the fields"] = predicted * length
    features = torch.cat([predicted, fields, torch.ones(len(fields), 1)], dim=1).double()
    x = features[seen]
    weights = torch.linalg.solve(x.T @ x + 10.0 * torch.eye(x.shape[1]), x.T @ y)
    ways["ridge regression on that prediction and the fields, λ = 10"] = (features @ weights).float()
    return ways


def ranks_of(model, windows, masked, candidates):
    """Rank the target of every window, with the fields `masked` masked, among each of several sets of candidates."""
    found = [torch.empty(len(windows), dtype=torch.int64) for _ in candidates]
    for batch in Batches(windows, 512, shuffle=False):
        histories, targets = model.windows(batch)
        hidden = model.hidden(histories, targets, masked.expand(len(targets), -1))
        for ranks, vectors in zip(found, candidates, strict=True):
            ranks[torch.from_numpy(batch.index)] = target_ranks(hidden, targets[:, 0], vectors)
    return found


def co_occurring(data, items):
    """Return the items that share a history with each item, without test targets."""
    users = np.repeat(np.arange(data.n_users), np.diff(data.offsets))
    order = np.argsort(data.sequence, kind="stable")
    starts = np.searchsorted(data.sequence[order], np.arange(data.n_items + 1))
    return [
        np.unique(np.concatenate([data.history_at(u)[:-1] for u in users[order[starts[i] : starts[i + 1]]]]))
        for i in items
    ]


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--run", type=Path, help="folder for checkpoints, to resume or to evaluate again")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    whole = Dataset.load(arguments.data)
    unseen = np.random.default_rng(arguments.seed).random(whole.n_items) < 0.1
    data = without_items(whole, unseen)
    with torch.enable_grad():
        settings = FamaeSettings(epochs=arguments.epochs, seed=arguments.seed)
        model = FAMAE(settings).fit(data, runtime=Runtime(folder=arguments.run)).model_.eval()
    held, seen = np.flatnonzero(unseen), torch.from_numpy(~unseen)
    to_find = torch.from_numpy(unseen[data.validation.targets])
    together = co_occurring(whole, held)
    everything = torch.ones(model.n_fields, dtype=torch.bool)
    only_item = torch.zeros_like(everything)
    only_item[0] = True
    table = model.embeddings()[0].weight
    before, result = table.clone(), {}
    for way, vectors in candidates(model, seen).items():
        table.copy_(torch.where(seen[:, None], before, vectors))
        unit = f.normalize(table, dim=1)
        (ranks,) = ranks_of(model, data.validation, everything, (unit,))
        (ranks2,) = ranks_of(model, data.validation, only_item, (unit,))
        parts = torch.cat([t(model.codes[:, j]) for j, t in enumerate(model.embeddings())], dim=1)
        similar = f.normalize(parts[held], dim=1) @ f.normalize(parts, dim=1).T
        similar[:, unseen] = -2
        near = similar.topk(NEIGHBOURS, dim=1).indices.numpy()
        result[way] = {
            "unseen targets, Metric 1": ranking_metrics(ranks[to_find], (10, 50)),
            "unseen targets, Metric 2": ranking_metrics(ranks2[to_find], (10,)),
            "seen targets, Metric 1": ranking_metrics(ranks[~to_find], (10,)),
            "neighbors that share a history": float(
                np.mean([np.isin(row, others).mean() for row, others in zip(near, together, strict=True)])
            ),
        }
        table.copy_(before)
        print(f"{way}: {json.dumps(result[way])}")
    counts = {"unseen items": int(unseen.sum()), "unseen targets": int(to_find.sum()), "validation users": len(to_find)}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps({"counts": counts, "ways": result}, indent=1) + "\n")


if __name__ == "__main__":
    main()
