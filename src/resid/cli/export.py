"""`resid export`: a model for other systems."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from rich.markup import escape

from resid.cli.app import AsJson, output, print_json


def export(
    model: Path,
    *,
    format_: Annotated[Literal["parquet", "onnx", "transformers"], Parameter(name="--format")],
    out: Path,
    as_json: AsJson = False,
) -> None:
    """Export a model to other systems, with a model card.

    Example: ``resid export runs/mine --format parquet --out export/mine``

    Parameters
    ----------
    model
        A run's folder, or a saved model.
    format_
        IDs, item vectors and catalogue as Parquet tables; a one-pass or joint generator as ONNX, with a decoder that needs only
        onnxruntime and NumPy; or a T5 as a folder of transformers.
    out
        The folder to write; an earlier export is replaced.
    as_json
        Print the names of the files as JSON.
    """
    from resid.export import export as export_model  # here, as this import takes a while

    folder = export_model(model, format_, out)
    files = sorted(path.name for path in folder.iterdir())
    if as_json:
        print_json({"folder": str(out), "files": files})
    else:
        output.print(f"Wrote {escape(str(out))}: {escape(', '.join(files))}", highlight=False, soft_wrap=True)
