"""docs/results.md is current, and what other pages say about results is in it."""

import importlib.util
import json
import re
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"
OTHER_PAGES = [ROOT / "README.md", ROOT / "docs" / "choosing.md", *sorted(RESULTS.glob("notes/*.md"))]


@pytest.fixture(scope="module")
def page():
    spec = importlib.util.spec_from_file_location("make_page", RESULTS / "make_page.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_current(page):
    assert page.make_page() == (ROOT / "docs" / "results.md").read_text(), "run `python results/make_page.py`"


def test_every_run_is_shown(page):
    shown = (ROOT / "docs" / "results.md").read_text()
    records = page.read_records(RESULTS)
    assert len(records) > 30
    for record in records:
        assert f"[`{record.name}`](" in shown
    places = {record.folder for record in records}
    for path in RESULTS.rglob("test.json"):
        assert path.parent in places or path.parents[1] in places  # the evaluation of a run of a comparison


@pytest.mark.parametrize(
    ("path", "data", "name"),
    [
        ("scientific/resid-0", "scientific", "resid"),
        ("scientific/runs/resid-e1-2/evaluation", "scientific", "resid-e1"),
        ("scientific/runs/resid-e1/seed-2", "scientific", "resid-e1"),
        ("complete-journey/sasrec-fields/0", "complete-journey", "sasrec-fields"),
        ("sequential/scientific-s3rec-fields/seed-1", "scientific", "s3rec-fields"),
        ("generate/resid-codes-beauty-0", "beauty", "resid-codes"),
    ],
)
def test_names(page, tmp_path, path, data, name):
    folder = tmp_path / path
    folder.mkdir(parents=True)
    metrics = dict.fromkeys(page.METRICS, 0.25)
    (folder / "test.json").write_text(json.dumps({"seen_kept": metrics, "seen_dropped": metrics}))
    place = folder.parent if folder.name == "evaluation" else folder
    (place / "recipe.toml").write_text('[generator]\nkind = "t5"\nseed = 2\n')
    record = page.read_record(folder, tmp_path, ["scientific", "beauty"])
    assert (record.data, record.name, record.seed) == (data, name, 2)


def test_new_comparison(page, tmp_path):
    """A comparison has its own table with mean and deviation over seeds, also on a data set without facts or notes."""
    for name in ("datasets.json", "published.json"):
        shutil.copy(RESULTS / name, tmp_path)
    runs = []
    for seed, recall in enumerate((0.1, 0.2)):
        metrics = dict.fromkeys(page.METRICS, recall)
        run = {"label": f"seed {seed}", "folder": f"runs/resid-{seed}", "error": None}
        runs.append(run | {"metrics": {"seen_kept": metrics, "seen_dropped": metrics}})
    failed = {"label": "seed 0", "folder": "runs/tiger-0", "error": "the Dataset has no titles.", "metrics": {}}
    rows = [{"name": "resid", "runs": runs}, {"name": "tiger", "runs": [failed]}]
    evaluation = tmp_path / "shop" / "runs" / "resid-0" / "evaluation"
    evaluation.mkdir(parents=True)
    slices = {f"target {name}": {"users": 3, "ndcg@10": 0.3} for name in ("popular", "rare", "unseen")}
    (evaluation / "test.json").write_text(json.dumps({"seen_kept": metrics, "slices": slices}))
    (tmp_path / "shop" / "comparison.json").write_text(json.dumps({"rows": rows}))
    (tmp_path / "shop" / "table.md").write_text("")
    (tmp_path / "analyses" / "shop").mkdir(parents=True)
    for end in ("png", "svg"):
        (tmp_path / "analyses" / "shop" / f"tree-map.{end}").write_bytes(b"")
    text = page.make_page(tmp_path)
    section = text[text.index("## shop") :]
    assert "### Comparison on shop" in section
    assert "### Single runs on shop" not in section
    assert "| 0, 1 | **.1500** ± .0707 |" in section
    assert "| .3000 | .3000 | .3000 |" in section
    assert "- `tiger`, seed 0, failed: the Dataset has no titles." in section
    assert "[table.md](" in section
    assert section.count("![tree map](") == 1


@pytest.mark.parametrize("path", OTHER_PAGES, ids=lambda path: path.name)
def test_figures_of_other_pages(path):
    """Metrics that a page states are in a table of the results, those of a note also in the text of another page."""
    known = "\n".join(line for line in (ROOT / "docs" / "results.md").read_text().splitlines() if line.startswith("|"))
    if path.parent.name == "notes":
        known += "\n".join(page.read_text() for page in RESULTS.glob("*/README.md"))
    stated = set(re.findall(r"(?<!\d)\.\d{4}\b", path.read_text()))
    assert stated
    assert not {figure for figure in stated if figure not in known}


def test_times_of_choosing():
    stated = re.findall(r"\d[\d.]*(?:×| ms| s\b)", (ROOT / "docs" / "choosing.md").read_text())
    known = (ROOT / "benchmarks" / "README.md").read_text()
    assert len(stated) > 5
    assert not [time for time in stated if time not in known]
