"""Imports go one way: every folder may import only those that are listed for it, and no module imports itself in a circle."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import resid

ROOT = Path(resid.__file__).parent
ALLOWED = {  # folder → the folders that it may import
    "core": set(),
    "data": {"core"},
    "evaluate": {"core", "data"},
    "nn": {"core", "data"},
    "train": {"core", "data"},
    "quantize": {"core", "data", "train"},
    "recommend": {"core", "data", "evaluate", "quantize", "train"},
    "sequential": {"core", "data", "evaluate", "nn", "recommend", "train"},
    "encode": {"core", "data", "evaluate", "nn", "sequential", "train"},
    "generate": {"core", "data", "encode", "evaluate", "nn", "quantize", "recommend", "sequential", "train"},
    "runs": {"core", "data", "recommend", "train"},
    "methods": {
        "core",
        "data",
        "encode",
        "evaluate",
        "generate",
        "nn",
        "quantize",
        "recommend",
        "runs",
        "sequential",
        "train",
    },
    "export": {"core", "data", "encode", "generate", "recommend", "runs"},
    "report": {"core", "data", "encode", "evaluate", "generate", "quantize", "recommend", "runs"},
    "comparison": {"core", "data", "evaluate", "generate", "methods", "runs", "train"},
    "analyse": {
        "core",
        "data",
        "encode",
        "evaluate",
        "generate",
        "methods",
        "quantize",
        "recommend",
        "report",
        "runs",
        "sequential",
    },
    "serve": {"core", "data", "recommend", "runs"},
    "spark": {"core", "data", "recommend", "runs"},  # a module: users call `resid.spark.recommend`
    "cli": {
        "analyse",
        "comparison",
        "core",
        "data",
        "encode",
        "evaluate",
        "export",
        "generate",
        "methods",
        "quantize",
        "recommend",
        "report",
        "runs",
        "serve",
        "train",
    },
}


def _name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(("resid", *(parts[:-1] if parts[-1] == "__init__" else parts)))


MODULES = {_name(path): path for path in ROOT.rglob("*.py")}


def _imports(path: Path, *, types: bool) -> set[str]:
    """Return the modules of resid that a file imports, also within functions; `types` includes those for type checkers."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    if not types:
        tree.body = [
            node for node in tree.body if not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test))
        ]
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "resid":
            submodules = {f"{node.module}.{alias.name}" for alias in node.names} & set(MODULES)
            found |= submodules or {node.module}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.split(".")[0] == "resid"}
    return found & set(MODULES)


def _folder(module: str) -> str:
    return module.split(".")[1] if module.count(".") else ""


def test_folders_import_only_what_they_may():
    wrong = [
        f"{module} imports {imported}"
        for module, path in MODULES.items()
        for imported in _imports(path, types=True)
        if (here := _folder(module)) in ALLOWED
        and (there := _folder(imported)) not in {here, ""}
        and there not in ALLOWED[here]
    ]
    assert wrong == []


def test_every_folder_is_listed_and_the_list_has_no_circle():
    folders = {path.name for path in ROOT.iterdir() if path.is_dir() and (path / "__init__.py").exists()}
    assert folders | {"spark"} == set(ALLOWED)
    assert {path.stem for path in ROOT.glob("*.py")} == {"__init__", "__main__", "spark"}
    TopologicalSorter(ALLOWED).prepare()  # raises CycleError


def test_the_library_does_not_import_its_own_face():
    """`import resid` is for users and the command; the folders import what they need from where it is."""
    wrong = [
        name
        for name, path in MODULES.items()
        if _folder(name) not in {"", "cli"} and "resid" in _imports(path, types=True)
    ]
    assert wrong == []


# The files and folders of a run; "a run" is recognised by its record also in `core`, which says what a folder is.
LAYOUT = {"run.json", "recipe.toml", "cost.json", "model", "final", "evaluation", "new-ids", "part", "training"}


def _spelled(path: Path) -> set[str]:
    """Return the names of the layout that a file imports, or writes as a file name or below a folder: ``folder / "model"``."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("resid.runs."):
            found |= {alias.name for alias in node.names if alias.name.startswith("_") or alias.name.isupper()}
        elif isinstance(node, ast.ImportFrom) and node.module == "resid.core.files":
            found |= {alias.name for alias in node.names if alias.name == "RUN"}
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and isinstance(node.right, ast.Constant):
            found |= {name for name in LAYOUT if str(node.right.value).split(".")[0] == name}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= {name for name in LAYOUT if node.value == name and "." in name}
    return found


def test_only_runs_knows_the_layout_of_a_run():
    found = {name: _spelled(path) for name, path in MODULES.items() if _folder(name) != "runs"}
    assert {name: names for name, names in found.items() if names} == {"resid.core.files": {"run.json"}}


# Within a function, as they would close a circle: reading tables builds Datasets, and Datasets offer to read tables.
LATE = {("resid.data.catalogue", "resid.data.new_items"), ("resid.data.dataset", "resid.data.prepare")}


def test_modules_have_no_circle():
    graph = {
        name: {
            other for other in _imports(path, types=False) if other not in (name, "resid") and (name, other) not in LATE
        }
        for name, path in MODULES.items()
        if name != "resid"  # the public face, which imports lazily
    }
    TopologicalSorter(graph).prepare()


def test_importing_resid_does_not_import_torch():
    """So that `resid prepare` and `resid --help` start at once."""
    import subprocess
    import sys

    program = "import sys, resid.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
