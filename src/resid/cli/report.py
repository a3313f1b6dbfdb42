"""`resid report`: one HTML page about runs."""

from pathlib import Path

from resid.cli.app import AsJson, errors, output, print_json


def report(run: Path, *others: Path, out: Path, data: Path | None = None, as_json: AsJson = False) -> None:
    """Write a report about runs to one HTML file: data, training, semantic IDs, results and example users.

    The page needs no network. Evaluate the runs before, so that it has results.

    Example: ``resid report runs/mine runs/sasrec --out report.html``

    Parameters
    ----------
    run
        A run's folder.
    others
        More of them, on the same Dataset, to compare.
    out
        The file to write.
    data
        The Dataset's folder; by default the Dataset of the runs.
    as_json
        Print the name and the size of the file, and what is missing in it, as JSON.
    """
    from resid import ConsoleProgress  # here, as these imports take a second
    from resid.report import write_report

    content = write_report((run, *others), out, data, progress=ConsoleProgress(errors))
    missing = [described["missing"] for described in content["runs"] if described["missing"]]
    size = out.stat().st_size
    if as_json:
        print_json({"file": str(out), "bytes": size, "missing": missing})
        return
    for sentence in missing:
        errors.print(f"No test results: {sentence}", highlight=False, markup=False, soft_wrap=True)
    output.print(f"Wrote {out} ({size / 1e6:.1f} MB)", highlight=False, markup=False, soft_wrap=True)
