"""`resid info`: show the counts of a Dataset."""

from pathlib import Path

from resid.cli.app import AsJson, print_json
from resid.cli.show import print_info


def info(data: Path, *, as_json: AsJson = False) -> None:
    """Show the counts, fields and history lengths of a Dataset.

    Example: ``resid info data/mine``

    Parameters
    ----------
    data
        The folder of the Dataset.
    as_json
        Print the result as JSON.
    """
    from resid import Dataset  # here, as this import takes a while

    dataset = Dataset.load(data)
    if as_json:
        print_json(dataset.info())
    else:
        print_info(dataset)
