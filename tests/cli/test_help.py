"""Help, completion, and options that many commands share."""

import importlib
import os
import re
import shlex
import subprocess
import sys

import pytest
from cyclopts import App

from resid import InputError, Recipe
from resid.cli import main
from resid.cli.analyse import analyse
from resid.cli.app import _COMMANDS, app
from resid.cli.waiting import choose_waiting

WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


@pytest.mark.parametrize(
    "command", [*_COMMANDS, "recipes show", *(f"analyse {name}" for name in analyse if not name.startswith("-"))]
)
def test_every_help_has_an_example_with_valid_arguments(command, capsys):
    assert main([*command.split(), "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    module = importlib.import_module(f"resid.cli.{command.split()[0]}")
    found = getattr(module, command.split()[-1])
    about = found.help if isinstance(found, App) else found.__doc__
    examples = re.findall(r"``(resid .*?)``", about)
    assert examples
    for example in examples:
        assert example in shown
        app.parse_args(shlex.split(example)[1:], exit_on_error=False, print_error=False)


def test_the_list_of_commands_says_what_each_does(capsys):
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    for command in _COMMANDS:
        assert re.search(rf"│ {command} +[A-Z]\w+ ", shown), shown


def test_names_and_defaults(capsys):
    assert main(["prepare", "--help"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"\* +INTERACTIONS +The interactions", shown), shown
    assert re.search(r"│ +ITEMS +The item table", shown), shown
    assert main(["fit", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "[default: resid]" in shown
    for noise in ("()", '""', "False"):
        assert f"[default: {noise}]" not in shown
    assert main(["recommend", "--help"]) == 0
    shown = capsys.readouterr().out
    for option, about in (("separator", "Of a CSV"), ("encoding", "Of a text"), ("timestamp-format", "Of timestamps")):
        assert re.search(rf"--{option} STR +{about}", shown), shown


def test_numbers(capsys):
    assert main(["fit", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "--epochs INT" in shown
    assert "--seed INT" in shown
    assert main(["fit", "data", "--out", "run", "--epochs", "many"]) == 2
    assert "--epochs" in capsys.readouterr().err


def test_epochs_and_seed_of_all_parts():
    _, bound, _ = app.parse_args(["fit", "data", "--out", "run", "--epochs", "3", "--seed", "7"], exit_on_error=False)
    recipe = bound.arguments["training"].changed_recipe()
    for section in ("encoder", "generator"):
        assert recipe.part(section).settings.epochs == 3
        assert recipe.part(section).settings.seed == 7
    assert recipe.part("quantizer").settings.seed == 7
    changed = Recipe.read("s3rec").replace({"epochs": 3}).part("recommender").settings
    assert (changed.pretrain_epochs, changed.epochs) == (3, 3)
    single = Recipe.read("etegrec").replace({"generator.finetune_epochs": 5, "epochs": 3}).part("generator").settings
    assert (single.epochs, single.finetune_epochs) == (3, 5)
    with pytest.raises(InputError, match="'popularity' has no trained part, so it takes no epochs"):
        Recipe.read("popularity").replace({"epochs": 3})


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell, tmp_path, monkeypatch):
    """The script is written and knows the commands and their options; bash accepts it. The home folder is not touched."""
    home, script = tmp_path / "home", tmp_path / "completion"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    assert main(["--install-completion", "--shell", shell, "--output", str(script)]) == 0
    assert not list(home.iterdir())
    text = script.read_text()
    for word in ("evaluate", "recommend", "install-completion", "recipe", "epochs"):
        assert word in text
    if shell == "bash":
        assert subprocess.run(["bash", "-n", script]).returncode == 0


def test_completion_is_loaded_by_the_start_up_file(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main(["--install-completion", "--shell", "bash"]) == 0
    script = tmp_path / ".local" / "share" / "bash-completion" / "completions" / "resid"
    assert script.is_file()
    assert str(script) in (tmp_path / ".bashrc").read_text()


class TestWaiting:
    @pytest.fixture(autouse=True)
    def nothing_is_set(self, monkeypatch):
        for name in (*WAITING, "OMP_NUM_THREADS"):
            monkeypatch.setenv(name, "")  # so that it is restored
            monkeypatch.delenv(name)

    def test_chosen_before_torch_is_imported(self):
        program = (
            "import os, pathlib, sys\nimport resid.cli.waiting as w\nfrom resid.cli import main\n"
            "w.choose_waiting.__defaults__ = (pathlib.Path('missing'),)\nmain(['recipes'])\n"
            "sys.stderr.write(f\"{os.environ['GOMP_SPINCOUNT']} {'torch' in sys.modules}\")"
        )
        answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        assert answer.stderr == "1000 False"

    @pytest.mark.parametrize(
        ("running", "threads", "policy"), [(1, None, None), (2, None, "passive"), (2, "1", None), (3, "1", "passive")]
    )
    def test_threads_sleep_beside_other_processes(self, running, threads, policy, tmp_path, monkeypatch):
        monkeypatch.setattr(os, "cpu_count", lambda: 2)
        if threads:
            monkeypatch.setenv("OMP_NUM_THREADS", threads)
        (tmp_path / "loadavg").write_text(f"0.50 0.40 0.30 {running}/250 12345\n")
        choose_waiting(tmp_path / "loadavg")
        assert os.environ.get("OMP_WAIT_POLICY") == policy
        assert "GOMP_SPINCOUNT" not in os.environ

    @pytest.mark.parametrize("name", WAITING)
    def test_what_the_user_set_is_respected(self, name, monkeypatch):
        monkeypatch.setenv(name, "7")
        before = dict(os.environ)
        choose_waiting()
        assert dict(os.environ) == before

    def test_results_do_not_depend_on_it(self, prepared, tmp_path):
        tiny = ("--set=recommender.width=16", "--set=recommender.ffn_width=16", "--epochs=1", "--recipe=sasrec")
        weights = []
        for policy in ("active", "passive"):
            run = tmp_path / policy
            environment = os.environ | {"OMP_WAIT_POLICY": policy, "OMP_NUM_THREADS": "2"}
            command = [sys.executable, "-m", "resid", "fit", str(prepared), f"--out={run}", *tiny]
            subprocess.run(command, env=environment, check=True, capture_output=True)
            weights.append((run / "model" / "weights.safetensors").read_bytes())
        assert weights[0] == weights[1]
