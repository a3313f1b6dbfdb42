"""`resid info`: what is in a Dataset."""

from pathlib import Path

from resid import Dataset
from resid.cli.app import AsJson, app, print_json
from resid.cli.show import print_info


@app.command
def info(data: Path, *, as_json: AsJson = False) -> None:
    """Show what is in a Dataset: counts, fields, history lengths.

    Parameters
    ----------
    data
        The Dataset's folder.
    as_json
        Print it as JSON.
    """
    dataset = Dataset.load(data)
    if as_json:
        print_json(dataset.info())
    else:
        print_info(dataset)
