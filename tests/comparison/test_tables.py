"""What is shown of a comparison: tables from a record, and the progress."""

import io
import re

import pytest
from rich.console import Console

from resid import Recipe
from resid.comparison import latex, markdown
from resid.comparison.display import Display, estimate_left
from resid.comparison.results import Task

METRICS = ("recall@5", "recall@10", "ndcg@5", "ndcg@10")


def make_row(name, value, deviation=None, p=None, error=None, done=2):
    def metrics(number):
        return {ranking: dict.fromkeys(METRICS, number) for ranking in ("seen_kept", "seen_dropped")}

    cost = {"seconds": 2.0, "peak_memory": 2**20, "complete": error is None}
    runs = [
        {
            "label": f"seed {seed}",
            "error": error if seed >= done else None,
            "stages": {"encoder": cost},
            "evaluation": cost | {"environment": None},
        }
        for seed in range(2)
    ]
    against = {"rival": "x", "difference": 0.01, "p": p}
    return {
        "name": name,
        "settings": {"generator": {"beam_size": 50}},
        "done": done,
        "mean": metrics(value) if value is not None else {},
        "deviation": metrics(deviation) if deviation is not None else {},
        "significance": {r: dict.fromkeys(METRICS, against) for r in ("seen_kept", "seen_dropped")} if p else {},
        "runs": runs,
    }


@pytest.fixture
def record():
    return {
        "data": {"name": "a_b", "fingerprint": "f" * 64, "users": 10, "items": 5, "interactions": 99, "targets": 10},
        "protocol": {"split": "leave-one-out", "evaluated": "test", "k_core": 5, "max_length": 32, "unseen_targets": "keep"},
        "seeds": [0, 1],
        "tuning": {},
        "rows": [
            make_row("third", 0.1),
            make_row("first", 0.3, 0.0123, 0.04),
            make_row("second_one", 0.2, 0.001, 0.2),
            make_row("half", 0.05, error="out of memory.", done=1),
            make_row("broken", None, error="100% wrong.", done=0),
        ],
    }  # fmt: skip


def test_markdown(record):
    text = markdown(record)
    assert text.count("| first | **0.3000**\\* ± 0.0123 | **0.3000**\\* ± 0.0123 |") == 2  # both rules for seen items
    assert "| second_one | <u>0.2000</u> ± 0.0010 |" in text
    assert "| third | 0.1000 | 0.1000 |" in text
    assert "| half (1 of 2 seeds; seed 1: out of memory.) | 0.0500 |" in text
    assert "| broken | failed: seed 0: 100% wrong. |" in text
    assert "| first | +0.0100 (p = 0.04) |" in text
    assert "| half | encoder | at least 2.0 s | 1 MB |" in text
    assert "Mean ± standard deviation of 2 seeds" in text
    assert "10 test targets of 10 users, leave-one-out split, ranking of all 5 items" in text


def test_not_significant_has_no_star(record):
    record["rows"][1] = make_row("first", 0.3, 0.0123, 0.06)
    assert "| first | **0.3000** ± 0.0123 |" in markdown(record)


def test_latex(record):
    text = latex(record)
    assert text.count(r"\begin{table}") == text.count(r"\end{table}") == 2
    assert r"\caption{a\_b. Seen items kept:" in text
    assert r"    first & \textbf{0.3000}$^{*}$ $\pm$ 0.0123 &" in text
    assert r"    second\_one & \underline{0.2000} $\pm$ 0.0010 &" in text
    assert r"    broken & \multicolumn{4}{l}{failed: seed 0: 100\% wrong.} \\" in text
    for line in text.splitlines():
        if line.endswith(r"\\") and "multicolumn" not in line:
            assert line.count("&") == 4, line


def test_estimate():
    assert estimate_left(["a"], {}, {}, 1) is None
    assert estimate_left(["a", "b"], {}, {"a": [10, 20]}, 1) == 30  # b as long as the mean of all
    assert estimate_left(["a", "a"], {"a": [5]}, {"a": [10]}, 1) == 25
    assert estimate_left(["a", "a"], {}, {"a": [10]}, 2) == 10
    assert estimate_left(["b"], {"b": [50]}, {"a": [10]}, 1) == 50  # b takes at least what it has taken


@pytest.mark.parametrize("terminal", [True, False])
def test_display(tmp_path, terminal):
    written = io.StringIO()
    console = Console(file=written, force_terminal=terminal, width=100)
    tasks = [Task("resid", f"seed {seed}", Recipe.read("popularity"), tmp_path) for seed in (0, 1)]
    with Display(console, "Comparison", {("popularity", "seed 0"): "there"}, tasks, {"resid": [60.0]}, 1) as display:
        display.started(tasks[0])
        display.reported(tasks[0], {"step": "Encoder: fitting famae in some/folder"})
        display.reported(tasks[0], {"bar": "Epoch 2 of 5", "share": 0.5, "note": "loss 1.0"})
        table = Console(file=io.StringIO(), width=100, record=True)
        table.print(display.table())
        shown = table.export_text()
        display.finished(tasks[0], "no luck.")
    assert "resid, seed 0: Encoder: fitting famae, Epoch 2 of 5, 50%, loss 1.0" in shown
    assert re.search(r"Comparison: 0 of 2 done, about 0:0\d:\d\d left", shown)
    assert re.search(r"│ popularity │ there +│ +│", shown)
    assert re.search(r"│ resid +│ running 0:00:\d\d │ waiting │", shown)
    assert "resid, seed 0: failed: no luck. (1 of 2 done, about 0:01:00 left)" in written.getvalue()
    assert ("resid, seed 0: started" in written.getvalue()) is not terminal
