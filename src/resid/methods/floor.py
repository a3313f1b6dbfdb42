"""The floor: whether a fitted model ranks the items of validation users better than popularity and co-occurrence do."""

import logging
from collections.abc import Mapping

from resid.core.errors import counted
from resid.data.dataset import Dataset
from resid.evaluate.metrics import paired_differences, ranking_metrics
from resid.recommend import Recommender
from resid.runs import Run

log = logging.getLogger(__name__)

_FLOOR = {"popularity": "popularity", "cooccurrence": "co-occurrence"}  # kind → its name in messages
_USERS = 5_000  # that are ranked
_METRIC = "ndcg@10"


def compare_with_floor(run: Run, model: Recommender, data: Dataset) -> Mapping[str, Mapping[str, float]]:
    """Compare a model with the floor on validation users, report it, and warn if the model is below.

    Parameters
    ----------
    run
        The run that fitted the model; what it has measured already is not measured again.
    model
        The fitted recommender.
    data
        Its Dataset.

    Returns
    -------
    dict
        Recall@10 and NDCG@10, with seen items kept, of the ``model`` and of the recommenders of the floor by kind, there with the
        95% interval of the model's lead in NDCG@10, from a paired bootstrap over users; empty for these recommenders themselves,
        and if there are no validation users.
    """
    from resid.sequential import CoOccurrence, Popularity  # here, as SciPy takes a while to import

    users = data.validation.sample(_USERS)
    if model.kind in _FLOOR or not len(users) or not run.runtime.is_first:
        return {}
    found = dict(run.validation)
    if any("lead_low" not in found.get(kind, {}) for kind in _FLOOR):  # or it is a run of an earlier version
        ranks = model.ranks(users, whole=False)[0]
        found["model"] = ranking_metrics(ranks, (10,))
        for recommender in (Popularity().fit(data), CoOccurrence().fit(data)):
            others = recommender.ranks(users, whole=False)[0]
            low, high = paired_differences(ranks, others, (10,), users=users.users)[_METRIC]["interval"]
            found[recommender.kind] = {**ranking_metrics(others, (10,)), "lead_low": low, "lead_high": high}
    values = {name: metrics[_METRIC] for name, metrics in found.items()}
    best = max(_FLOOR, key=values.__getitem__)
    shown = ", ".join(f"{_FLOOR.get(name, name)} {value:.4f}" for name, value in values.items())
    run.runtime.progress.result(f"NDCG@10 of {counted(len(users), 'validation user')}, seen items kept: {shown}")
    low, high = found[best]["lead_low"], found[best]["lead_high"]
    if low <= 0:
        log.warning(
            "The model is %s than %s on validation users (NDCG@10 %.4f against %.4f, 95%% interval of the difference %+.4f to %+.4f); "
            "train it longer, or change its settings, before you use it",
            *("worse" if high < 0 else "not clearly better", _FLOOR[best], values["model"], values[best], low, high),
        )
    return found
