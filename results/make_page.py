"""Write docs/results.md from the records in this folder.

    python results/make_page.py

A comparison is a folder results/DATA with the ``comparison.json`` of `resid compare`. A single run is a folder with the ``test.json`` of
`resid evaluate`; earlier runs have only a ``result.json``. Its data set and its name follow from its path: results/DATA/NAME-SEED, or
results/GROUP/DATA-NAME/seed-SEED. Runs with the same name and settings that differ in the seed are one row. Beside them, the page has
paired differences (``against-*.json``), the figures in results/DATA and results/analyses/DATA, the published metrics in
``published.json`` and the notes in notes/DATA.md.
"""

import json
import re
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from resid.comparison.tables import COLD_COLUMNS, cold_cells
from resid.core.files import write_text

RESULTS = Path(__file__).resolve().parent
PAGE = RESULTS.parent / "docs" / "results.md"
METRICS = ("recall@5", "ndcg@5", "recall@10", "ndcg@10")
RULES = ("seen_kept", "seen_dropped")
SLICES = {"seen_kept": "slices", "seen_dropped": "slices_seen_dropped"}  # in the output of `resid evaluate`
SHORT = {"recall@5": "R@5", "ndcg@5": "N@5", "recall@10": "R@10", "ndcg@10": "N@10"}
COMPARISON = "comparison.json"
NO_NAME = {"runs", "evaluation"}  # folders between a data set and its runs
NO_RECORD = {"stages", "tuning"}  # folders of a comparison without results

HEAD = """\
# Results

<!-- Written by `python results/make_page.py`. Edit results/notes/*.md, results/published.json or results/datasets.json. -->

All test metrics that are in [results/](../results/README.md), beside published ones. The whole catalogue is ranked, hits are counted on
items, the validation item is part of the history at test time, and settings and the best epoch are chosen on validation. *Seen kept* ranks
all items; *seen dropped* removes the items of the history from the ranking. ± is the standard deviation over seeds. The best value of a
column is bold.

[Choosing a method](choosing.md) draws conclusions from this page, and [Methods](method.md) explains the methods.
"""


@dataclass
class Record:
    """The test metrics of one run."""

    folder: Path
    data: str
    name: str
    metrics: dict[str, dict[str, float]]  # by rule for seen items
    slices: dict[str, dict[str, dict[str, float]]]  # of the users, by rule for seen items
    seed: int | None
    settings: str  # without seeds
    compared: bool = False  # part of a comparison


@dataclass
class Row:
    """Runs that differ only in the seed."""

    name: str
    compared: bool
    runs: list[Record] = field(default_factory=list)

    def values(self, rule: str, metric: str) -> list[float]:
        """Return a metric of every run that has it."""
        return [run.metrics[rule][metric] for run in self.runs if metric in run.metrics.get(rule, {})]

    def mean(self, rule: str, metric: str) -> float:
        """Return the mean of a metric over the runs; -1 if no run has it."""
        values = self.values(rule, metric)
        return statistics.fmean(values) if values else -1.0

    def slice_mean(self, rule: str, name: str, metric: str = "ndcg@10") -> float | None:
        """Return the mean over the runs for a slice of the users."""
        values = [run.slices[rule][name][metric] for run in self.runs if name in run.slices[rule]]
        return statistics.fmean(values) if values else None

    @property
    def seeds(self) -> str:
        """The seeds of the runs; empty without training."""
        return ", ".join(str(run.seed) for run in self.runs if run.seed is not None)

    @property
    def label(self) -> str:
        """The name, with a link to the first run."""
        return f"[`{self.name}`]({link(self.runs[0].folder)})"


def read_records(results: Path) -> list[Record]:
    """Return all records, in the order of their paths; the runs of a comparison in its order."""
    known = list(json.loads((results / "datasets.json").read_text()))
    compared = [record for file in sorted(results.glob(f"*/{COMPARISON}")) for record in read_comparison(file)]
    there = {record.folder for record in compared}
    files = [path for name in ("test.json", "result.json") for path in results.rglob(name)]
    folders = {file.parent for file in files if there.isdisjoint(file.parents) and NO_RECORD.isdisjoint(file.parts)}
    single = (read_record(folder, results, known) for folder in sorted(folders))
    return [*compared, *(record for record in single if record is not None)]


def read_comparison(file: Path) -> Iterator[Record]:
    """Yield the runs of a comparison that did not fail, with the slices of those whose evaluation is there."""
    for row in json.loads(file.read_text())["rows"]:
        for run in row["runs"]:
            if run["metrics"]:
                folder = file.parent / run["folder"]
                test = folder / "evaluation" / "test.json"
                slices = slices_of(json.loads(test.read_text()) if test.exists() else {})
                digits = re.search(r"\d+$", run["label"])
                seed = int(digits[0]) if digits else None
                yield Record(folder, file.parent.name, row["name"], run["metrics"], slices, seed, "", compared=True)


def slices_of(found: dict[str, Any]) -> dict[str, dict[str, dict[str, float]]]:
    """Return the slices in the output of `resid evaluate`, by rule for seen items."""
    return {rule: found.get(name, {}) for rule, name in SLICES.items()}


def failures(file: Path) -> Iterator[str]:
    """Yield the runs of a comparison that failed, and why."""
    for row in json.loads(file.read_text())["rows"]:
        for run in row["runs"]:
            if run["error"]:
                yield f"- `{row['name']}`, {run['label']}, failed: {run['error']}"


def read_record(folder: Path, results: Path, known: Sequence[str]) -> Record | None:
    """Return the record of a folder; None if it has no test metrics of a recommender."""
    if (folder / "test.json").exists():
        found = json.loads((folder / "test.json").read_text())
        metrics = {rule: found[rule] for rule in RULES if rule in found}
    else:
        found = json.loads((folder / "result.json").read_text())
        metrics = {"seen_kept": found.get("test", {})}
    if not any(metric in values for values in metrics.values() for metric in METRICS):
        return None
    path = folder.relative_to(results)
    words = f"-{path.as_posix().replace('/', '-')}-"
    named = (name for name in known if f"-{name}-" in words)
    data = path.parts[0] if path.parts[0] in known else next(named, path.parts[0])
    recipe = (folder.parent if folder.name == "evaluation" else folder) / "recipe.toml"
    text = recipe.read_text() if recipe.exists() else json.dumps(found.get("settings", {}), sort_keys=True)
    seeds = re.findall(r'"?seed"? ?[=:] ?(\d+)', text)
    settings = re.sub(r'(description|"?seed"?) ?[=:] ?[^,\n}]*', "", text)
    has_seed = found.get("settings", {}).get("seed") is not None or seeds
    seed = int(found.get("settings", {}).get("seed", seeds[-1] if seeds else 0)) if has_seed else None
    return Record(folder, data, name_of(path, data), metrics, slices_of(found), seed, settings)


def name_of(path: Path, data: str) -> str:
    """Return the name of a run: its path without the group, the data set and the seed."""
    parts = [part for part in path.parts[1:] if part not in NO_NAME and not re.fullmatch(r"(seed-?)?\d+", part)]
    name = f"-{'-'.join(parts)}-".replace(f"-{data}-", "-").strip("-")
    return re.sub(r"-(seed-?)?\d+$", "", name)


def rows_of(records: Sequence[Record]) -> list[Row]:
    """Return the rows of a data set, the best R@10 with seen items dropped first; where it is missing, that with seen items kept."""
    rows: dict[tuple[bool, str, str], Row] = {}
    for record in records:
        key = (record.compared, record.name, record.settings)
        rows.setdefault(key, Row(record.name, record.compared)).runs.append(record)
    rules = RULES[::-1]
    return sorted(rows.values(), key=lambda row: -next(v for r in rules if (v := row.mean(r, "recall@10")) >= 0))


def link(path: Path) -> str:
    """Return the address of a path from the page; of a run that is not in the repository, that of its comparison."""
    while not path.exists():
        path = path.parent
    return "../" + path.relative_to(RESULTS.parent).as_posix() if path.is_relative_to(RESULTS.parent) else path.name


def number(value: float | None) -> str:
    """Return .1234 for 0.1234; nothing for a metric that is missing."""
    return "" if value is None or value < 0 else f"{value:.4f}".removeprefix("0")


def signed(value: float) -> str:
    """Return +.1234 for 0.1234."""
    return f"{value:+.4f}".replace("0.", ".", 1)


def table(head: Sequence[str], body: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a Markdown table."""
    yield f"| {' | '.join(head)} |"
    yield "|" + "---|" * len(head)
    for cells in body:
        yield f"| {' | '.join(cells)} |"
    yield ""


def metric_table(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the metrics of rows, with seen items kept and dropped."""
    best = {(rule, m): max(row.mean(rule, m) for row in rows) for rule in RULES for m in METRICS}

    def cell(row: Row, rule: str, metric: str) -> str:
        values, mean = row.values(rule, metric), row.mean(rule, metric)
        text = number(mean)
        text = f"**{text}**" if text and mean == best[rule, metric] else text
        return f"{text} ± {number(statistics.stdev(values))}" if len(values) > 1 else text

    head = [
        "recipe",
        "seeds",
        *(f"{'kept' if rule == 'seen_kept' else 'dropped'} {SHORT[m]}" for rule in RULES for m in METRICS),
    ]
    yield from table(head, [[row.label, row.seeds, *(cell(row, r, m) for r in RULES for m in METRICS)] for row in rows])


def slice_tables(rows: Sequence[Row]) -> Iterator[str]:
    """Yield N@10 by the frequency of the target in training and by the length of the history, for both rules for seen items."""
    for rule in RULES:
        slices = [run.slices[rule] for row in rows for run in row.runs if run.slices[rule]]
        if not slices:
            continue
        names = sorted(slices[0], key=lambda name: name.startswith("history"))  # targets first
        shown = [row for row in rows if any(run.slices[rule] for run in row.runs)]
        counts = ", ".join(f"{name.removeprefix('target ')} {int(slices[0][name]['users']):,}" for name in names)
        if rule == RULES[0]:
            yield "N@10 by the frequency of the target in training and the length of the history, with seen items kept. Popular items and rare items"
            yield f"have half of the interactions each, unseen items have none. Users: {counts}."
        else:
            yield "The same with seen items dropped:"
        yield ""
        body = [[row.label, row.seeds, *(number(row.slice_mean(rule, name)) for name in names)] for row in shown]
        yield from table(["recipe", "seeds", *(name.removeprefix("target ") for name in names)], body)


def cold_tables(comparison: Path) -> Iterator[str]:
    """Yield the metrics of new and old targets, if the protocol of a comparison is cold-items."""
    record = json.loads(comparison.read_text()) if comparison.exists() else {}
    facts = record.get("protocol", {}).get("cold_items")
    if not facts:
        return
    yield f"The {facts['items']['new']:,} items that appeared last ({facts['order']}) are hidden from training and validation, and added to"
    yield f"the fitted models. {facts['targets']['new']:,} targets are new, {facts['targets']['old']:,} are old. *Lost* is what old targets lose against the"
    yield "same model without the new items."
    yield ""
    for rule in RULES:
        title = "seen items kept" if rule == "seen_kept" else "seen items dropped"
        yield from table(
            [title, *COLD_COLUMNS], [[f"`{row['name']}`", *cold_cells(row, rule)] for row in record["rows"]]
        )
    yield "All targets together:"
    yield ""


def paired_table(folders: Sequence[Path]) -> Iterator[str]:
    """Yield the differences to rivals, with 95% intervals of a paired bootstrap over users."""
    body = []
    for file in sorted(file for folder in folders for file in folder.glob("against-*.json")):
        found = json.loads(file.read_text())
        cells = [found[rule][metric] for rule in RULES for metric in ("recall@10", "ndcg@10")]
        texts = [f"{signed(c['difference'])} ({' to '.join(map(signed, c['interval']))})" for c in cells]
        body.append([f"[{file.parent.name}]({link(file)})", found["model"].removeprefix("runs/"), *texts])
    if body:
        yield "Differences of the same users, with 95% intervals of a paired bootstrap:"
        yield ""
        yield from table(["run", "minus", "kept R@10", "kept N@10", "dropped R@10", "dropped N@10"], body)


def published_table(published: Sequence[dict[str, Any]], rows: Sequence[Row]) -> Iterator[str]:
    """Yield published metrics, each beside that of the same method here, by the same rule for seen items."""
    own = {row.name: row for row in sorted(rows, key=lambda row: (row.compared, len(row.runs)))}
    body = []
    for entry in published:
        rule = "seen_dropped" if entry["seen"] == "dropped" else "seen_kept"
        row = own.get(entry["recipe"])
        here = [number(row.mean(rule, m)) if row else "" for m in ("recall@10", "ndcg@10")]
        name = f"`{row.name}`" if row else ""
        body.append(
            [
                entry["method"],
                entry["source"],
                entry["seen"] or "",
                *(number(entry.get(m)) for m in METRICS),
                name,
                *here,
            ]
        )
    head = ["method", "source", "seen", *(SHORT[m] for m in METRICS), "here", "R@10", "N@10"]
    yield from table(head, body)


def figures(results: Path, data: str) -> Iterator[str]:
    """Yield the figures of a data set; of a figure in several formats, one."""
    found = {
        p.with_suffix(""): p
        for end in ("svg", "png")
        for d in (data, f"analyses/{data}")
        for p in results.glob(f"{d}/**/*.{end}")
    }
    for path in sorted(found.values()):
        yield f"![{path.stem.replace('-', ' ')}]({link(path)})"
        yield ""


def data_section(
    results: Path, data: str, facts: dict[str, Any], records: Sequence[Record], published: Any
) -> Iterator[str]:
    """Yield what the page has about a data set."""
    yield f"## {facts.get('title', data)}"
    yield ""
    if facts:
        counts = ", ".join(f"{facts[name]:,} {name}" for name in ("users", "items", "interactions"))
        yield f"{counts}; fields {', '.join(facts['fields'])}; {facts['protocol']}."
        yield ""
    rows = rows_of(records)
    compared, single = [row for row in rows if row.compared], [row for row in rows if not row.compared]
    for title, some in ((f"Comparison on {data}", compared), (f"Single runs on {data}", single)):
        if some:
            yield f"### {title}"
            yield ""
            comparison = results / data / COMPARISON
            if some is compared:
                files = [file for file in (comparison.with_name("table.md"), comparison) if file.exists()]
                links = ", ".join(f"[{file.name}]({link(file)})" for file in files)
                yield f"Significance, costs of every stage and the protocol: {links}."
                yield ""
                if failed := list(failures(comparison)):
                    yield from [*failed, ""]
                yield from cold_tables(comparison)
            yield from metric_table(some)
            yield from slice_tables(some)
            yield from paired_table(sorted({run.folder for row in some for run in row.runs}))
    if data in published:
        yield f"### Published results on {data}"
        yield ""
        yield "*Seen* is the published rule for items of the history, where it is known; the columns on the right have the same rule, or seen items kept."
        yield ""
        yield from published_table(published[data], rows)
    notes = results / "notes" / f"{data}.md"
    if notes.exists():
        yield f"### Notes on {data}"
        yield ""
        yield notes.read_text().replace("](../", "](../results/").strip()
        yield ""
    if shown := list(figures(results, data)):
        yield f"### Figures of {data}"
        yield ""
        yield from shown


def paper_section(published: dict[str, Any], known: Sequence[str]) -> Iterator[str]:
    """Yield the published metrics of data sets that have not been run here."""
    others = {name: rows for name, rows in published.items() if name not in known}
    yield "## The data sets of the ReSID paper"
    yield ""
    yield "R@10 / N@10 as published, on three of its ten data sets (Amazon Reviews 2023). They have not been run here."
    yield ""
    methods = [entry["method"] for entry in next(iter(others.values()))]
    body = []
    for place, method in enumerate(methods):
        entries = [rows[place] for rows in others.values()]
        body.append([method, *(f"{number(e['recall@10'])} / {number(e['ndcg@10'])}" for e in entries)])
    yield from table(["method", *(name.replace("-", " ") for name in others)], body)


def make_page(results: Path = RESULTS) -> str:
    """Return the page."""
    facts = json.loads((results / "datasets.json").read_text())
    published = json.loads((results / "published.json").read_text())
    records = read_records(results)
    names = [*facts, *sorted({record.data for record in records} - set(facts))]
    lines = [HEAD]
    for name in names:
        some = [record for record in records if record.data == name]
        lines += data_section(results, name, facts.get(name, {}), some, published)
    lines += paper_section(published, names)
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    write_text(PAGE, make_page())
