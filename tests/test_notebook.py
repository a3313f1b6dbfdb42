"""In a notebook: progress is shown live without being asked for, and objects are shown as HTML. A real kernel runs the cells."""

import re

import nbformat
import pytest
from nbclient import NotebookClient

CELLS = (
    """
import resid
from resid.data import synthetic_shop
from resid.evaluate import evaluate
shop = synthetic_shop(users=120, items=40, interactions=1_200, seed=0)
data = resid.Dataset.from_tables(shop.interaction_table, shop.item_table, ["store"], k_core=1)
data
""",
    """
tiny = {"epochs": 1, "encoder.width": 16, "generator.width": 16, "encoder.ffn_width": 16, "generator.ffn_width": 16}
model = resid.fit(data, "resid", changes=tiny)
""",
    "model",
    "evaluate(model, data)",
    "model.ids_",
)


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """The outputs of every cell as HTML."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell.strip()) for cell in CELLS])
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python", "language": "python"}}
    notebook.metadata.update(kernel)
    NotebookClient(notebook, timeout=250).execute(cwd=str(tmp_path_factory.mktemp("notebook")))
    found = []
    for cell in notebook.cells:
        data = [output.get("data", {}).get("text/html", output.get("text", "")) for output in cell.outputs]
        found.append("\n".join(data))
    return found


def test_progress(outputs):
    bars = re.findall(r'<progress value="(\d+)" max="(\d+)">', outputs[1])
    assert bars
    assert all(value == total for value, total in bars)  # updated in place, so that the last state is left
    assert "samples/s" in outputs[1]
    assert "validation NDCG@10" in outputs[1]


def test_objects(outputs):
    dataset, _, model, evaluation, ids = outputs
    assert re.search(r"Dataset\(\d+ users, \d+ items, 1,\d+ interactions; store\)", dataset)
    assert "<th>missing</th>" in dataset
    assert re.search(r"JointGenerator\(\d+ items, best epoch 1 of 1\)", model)
    assert '<td style="text-align: left">beam_size</td>' in model
    assert re.search(
        r"Evaluation\(test, \d+ targets: Recall@10 0\.\d{4}, NDCG@10 0\.\d{4}, seen items kept\)", evaluation
    )
    assert "<th>ndcg@5</th>" in evaluation
    assert re.search(r"SemanticIds\(\d+ items, levels of [\d, ]+\)", ids)
    assert "<th>c1</th>" in ids
