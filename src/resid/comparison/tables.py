"""The record of a comparison as Markdown and LaTeX."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from resid.comparison.results import COLD_ITEMS
from resid.evaluate.cold_items import NEW, OLD, WITHOUT

METRICS = {"recall@5": "R@5", "recall@10": "R@10", "ndcg@5": "N@5", "ndcg@10": "N@10"}
RULES = {
    "seen_kept": ("Seen items kept", "The items of a user's history stay in the ranking."),
    "seen_dropped": (
        "Seen items dropped",
        "The items of a user's history are removed from the ranking; a target among them counts as missed.",
    ),
}
SIGNIFICANT = 0.05
_LATEX = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}"}
)


def markdown(record: Mapping[str, Any]) -> str:
    """Return a comparison as Markdown: results for both rules of seen items, significance, costs and the protocol."""
    lines = [f"# Comparison on {record['data']['name']}", "", _protocol_sentence(record), ""]
    if "cold_items" in record["protocol"]:
        lines += _cold_section(record)
    for ranking, (title, rule) in RULES.items():
        lines += [
            f"## {title}",
            "",
            rule,
            "",
            *_markdown_table(["method", *METRICS.values()], _results(record, ranking, _MARKDOWN)),
            "",
        ]
        lines += [_legend(record, _MARKDOWN), ""]
    if any(row["significance"] for row in record["rows"]):
        lines += ["## Significance", "", _SIGNIFICANCE, ""]
        for ranking, (title, _) in RULES.items():
            header = [title.lower(), *METRICS.values()]
            lines += [*_markdown_table(header, _differences(record, ranking)), ""]
    lines += ["## Cost", "", "Per seed, mean over seeds. Stages that several methods share were fitted once.", ""]
    lines += [*_markdown_table(["method", "stage", "time", "peak memory"], _costs(record)), ""]
    if record["tuning"]:
        lines += ["## Tuning", "", f"By NDCG@10 of validation users, {RULES['seen_kept'][0].lower()}.", ""]
        lines += [*_markdown_table(["method", "trials that ended well", "best settings", "N@10"], _tuned(record)), ""]
    lines += ["## Protocol", "", *_protocol(record), ""]
    return "\n".join(lines)


def latex(record: Mapping[str, Any]) -> str:
    r"""Return the results of a comparison as LaTeX tables, which need ``\usepackage{booktabs}``."""
    lines = []
    for ranking, (title, rule) in RULES.items():
        legend = _legend(record, _LATEX_STYLE)
        lines += [
            r"\begin{table}[t]",
            r"  \centering",
            f"  \\caption{{{_escaped(record['data']['name'])}. {title}: {rule} {legend}}}",
            r"  \begin{tabular}{@{}lcccc@{}}",
            r"    \toprule",
            f"    Method & {' & '.join(METRICS.values())} \\\\",
            r"    \midrule",
            *(f"    {' & '.join(cells)} \\\\" for cells in _results(record, ranking, _LATEX_STYLE)),
            r"    \bottomrule",
            r"  \end{tabular}",
            r"\end{table}",
            "",
        ]
    return "\n".join(lines)


@dataclass(frozen=True)
class _Style:
    """How a language marks text."""

    bold: str
    underline: str
    plus_minus: str
    star: str
    level: str  # of significance
    failed: str
    escape: Callable[[str], str]


def _escaped(text: str) -> str:
    return text.translate(_LATEX)


def _cell(text: str) -> str:
    """Return text as it can stand in a cell of a Markdown table."""
    return text.replace("|", "\\|").replace("*", "\\*")


_MARKDOWN = _Style(
    bold="**{}**",
    underline="<u>{}</u>",
    plus_minus=" ± ",
    star="\\*",
    level=f"p < {SIGNIFICANT}",
    failed="failed: {}",
    escape=_cell,
)
_LATEX_STYLE = _Style(
    bold=r"\textbf{{{}}}",
    underline=r"\underline{{{}}}",
    plus_minus=r" $\pm$ ",
    star="$^{*}$",
    level=f"$p < {SIGNIFICANT}$",
    failed=r"\multicolumn{{4}}{{l}}{{failed: {}}}",
    escape=_escaped,
)


def _results(record: Mapping[str, Any], ranking: str, style: _Style) -> Iterator[list[str]]:
    """Yield the cells of every row: its name, and the metrics, or why there are none."""
    rows = record["rows"]
    places = {
        metric: sorted({row["mean"][ranking][metric] for row in rows if row["mean"]}, reverse=True)
        for metric in METRICS
    }
    for row in rows:
        name = style.escape(row["name"])
        errors = [f"{run['label']}: {run['error']}" for run in row["runs"] if run["error"]]
        if not row["mean"]:
            yield [name, style.failed.format(style.escape(errors[0])) if errors else "…"]
            continue
        if missing := len(row["runs"]) - row["done"]:
            name += style.escape(
                f" ({row['done']} of {len(row['runs'])} seeds{'; ' + errors[0] if errors else f'; {missing} left'})"
            )
        cells = []
        for metric in METRICS:
            value, deviation = row["mean"][ranking][metric], row["deviation"].get(ranking, {}).get(metric)
            text = f"{value:.4f}"
            if value == places[metric][0]:
                text = style.bold.format(text)
            elif value == places[metric][1]:
                text = style.underline.format(text)
            against = row["significance"].get(ranking, {}).get(metric)
            if value == places[metric][0] and against and against["p"] < SIGNIFICANT:
                text += style.star
            cells.append(text if deviation is None else f"{text}{style.plus_minus}{deviation:.4f}")
        yield [name, *cells]


COLD_METRICS = ("recall@10", "ndcg@10")
COLD_COLUMNS = (
    *(f"{group} {METRICS[metric]}" for group in (NEW, OLD, "both") for metric in COLD_METRICS),
    *(f"old {METRICS[metric]} lost" for metric in COLD_METRICS),
)


def cold_cells(row: Mapping[str, Any], ranking: str) -> list[str]:
    """Return the metrics of a row in the order of `COLD_COLUMNS`; empty if it has none."""
    if not row["mean"]:
        return []
    groups = row["groups"] | {"both": row["mean"]}
    cells = [f"{groups[group][ranking][metric]:.4f}" for group in (NEW, OLD, "both") for metric in COLD_METRICS]
    for metric in COLD_METRICS:
        before, after = (groups[group][ranking][metric] for group in (WITHOUT, OLD))
        cells.append(f"{1 - after / before:.1%}" if before else "")
    return cells


def _cold_section(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield the metrics of new, old and all targets, and what the new items cost the old targets."""
    facts = record["protocol"]["cold_items"]
    yield from ("## New and old targets", "")
    yield (
        f"Protocol {COLD_ITEMS}: the {facts['items'][NEW]:,} items of {record['data']['items']:,} that appeared last "
        f"({facts['order']}) are hidden from training and validation with all of their {facts['hidden_interactions']:,} interactions. "
        "Then they are added to the fitted model, which ranks all items, old and new. "
        f"{facts['targets'][NEW]:,} targets are new, {facts['targets'][OLD]:,} are old. *Lost* is the share that old targets "
        "lose against the same model without the new items, neither among its items nor in histories; below zero, they gain."
    )
    yield ""
    for ranking, (title, _) in RULES.items():
        rows = []
        for row in record["rows"]:
            name, cells = _cell(row["name"]), cold_cells(row, ranking)
            errors = [run["error"] for run in row["runs"] if run["error"]]
            best = row.get("significance_on_new", {}).get(ranking, {}).get("recall@10")
            if cells and best and best["difference"] > 0 and best["p"] < SIGNIFICANT:
                cells[0] += _MARKDOWN.star
            rows.append([name, *(cells or [f"failed: {_cell(errors[0])}" if errors else "…"])])
        yield from (*_markdown_table([title.lower(), *COLD_COLUMNS], iter(rows)), "")
    yield f"{_MARKDOWN.star} R@10 of new targets is better than that of the best rival, {_MARKDOWN.level} (paired bootstrap over users, Holm)."
    yield from ("", "All targets, old and new, are in the tables below.", "")


_SIGNIFICANCE = (
    "The difference of each method to its best rival: the best method, or for that method itself the second. In brackets the "
    "p-value of a paired bootstrap over users of the means over seeds, corrected for the number of rivals by Holm's method."
)


def _differences(record: Mapping[str, Any], ranking: str) -> Iterator[list[str]]:
    for row in record["rows"]:
        if found := row["significance"].get(ranking):
            cells = (f"{found[metric]['difference']:+.4f} ({_p(found[metric]['p'])})" for metric in METRICS)
            yield [_cell(row["name"]), *cells]


def _p(value: float) -> str:
    return "p < 0.01" if value < 0.01 else f"p = {value:.2f}"


def _legend(record: Mapping[str, Any], style: _Style) -> str:
    seeds = len(record["seeds"])
    spread = f"Mean{style.plus_minus}standard deviation of {seeds} seeds" if seeds > 1 else "One seed"
    marks = f"{style.bold.format('best')}, {style.underline.format('second')}"
    return f"{spread}; {marks}; {style.star} better than the best rival, {style.level} (paired bootstrap over users, Holm)."


def _costs(record: Mapping[str, Any]) -> Iterator[list[str]]:
    for row in record["rows"]:
        runs = [run for run in row["runs"] if run["stages"]]
        stages = list(dict.fromkeys(stage for run in runs for stage in run["stages"]))
        for stage, costs in (
            *((stage, [run["stages"][stage] for run in runs if stage in run["stages"]]) for stage in stages),
            *([("evaluation", [run["evaluation"] for run in runs])] if runs else []),
        ):
            seconds = [cost["seconds"] for cost in costs if cost.get("seconds") is not None]
            peaks = [cost["peak_memory"] for cost in costs if cost.get("peak_memory")]
            on_device = [cost["peak_device_memory"] for cost in costs if cost.get("peak_device_memory")]
            at_least = "" if all(cost.get("complete", True) for cost in costs) else "at least "
            time = f"{at_least}{sum(seconds) / len(seconds):,.1f} s" if seconds else "not measured"
            memory = f"{max(peaks) / 2**20:,.0f} MB" if peaks else "not measured"
            memory += f", {max(on_device) / 2**20:,.0f} MB on the GPU" if on_device else ""
            yield [_cell(row["name"]), stage, time, memory]


def _tuned(record: Mapping[str, Any]) -> Iterator[list[str]]:
    for name, study in record["tuning"].items():
        done = [trial for trial in study["trials"] if trial["value"] is not None]
        best = ", ".join(f"{setting} = {value}" for setting, value in study["best"].items())
        value = f"{max(trial['value'] for trial in done):.4f}" if done else ""
        yield [_cell(name), f"{len(done)} of {len(study['trials'])}", _cell(best), value]


def _protocol_sentence(record: Mapping[str, Any]) -> str:
    data, protocol = record["data"], record["protocol"]
    return (
        f"{data['targets']:,} {protocol['evaluated']} targets of {data['users']:,} users, {protocol['split']} split, ranking of all "
        f"{data['items']:,} items, windows of at most {protocol['max_length']} items, {protocol['k_core']}-core."
    )


def _protocol(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield the facts that a reader needs to repeat the comparison; `comparison.json` has all settings."""
    yield f"- Dataset: fingerprint `{record['data']['fingerprint'][:16]}`, {record['data']['interactions']:,} interactions"
    yield f"- Targets that no training history contains: {record['protocol']['unseen_targets']}"
    yield f"- Seeds: {', '.join(map(str, record['seeds']))}"
    beams = dict[int, list[str]]()
    for row in record["rows"]:
        for settings in row["settings"].values():
            if isinstance(settings, dict) and "beam_size" in settings:
                beams.setdefault(settings["beam_size"], []).append(row["name"])
    for size, names in sorted(beams.items()):
        yield f"- Beam size {size}: {_cell(', '.join(names))}"
    environments = [run["evaluation"].get("environment") for row in record["rows"] for run in row["runs"]]
    distinct = list({str(known): known for known in environments if known}.values())
    for known in distinct:
        versions = ", ".join(f"{name} {version}" for name, version in known["versions"].items())
        threads = f"{known['threads']} of {known['cores']} cores"
        yield f"- {versions}; {known['device'] or known['processor']}, {threads}, {known['precision']}"
    yield "- All settings, keys of stages and p-values: `comparison.json`"


def _markdown_table(header: Sequence[str], rows: Iterator[list[str]]) -> Iterator[str]:
    yield f"| {' | '.join(header)} |"
    yield f"|{'---|' * len(header)}"
    for cells in rows:
        padded = [*cells, *[""] * (len(header) - len(cells))]
        yield f"| {' | '.join(padded)} |"
