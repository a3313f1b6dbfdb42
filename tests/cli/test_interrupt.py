"""Ctrl-C at any moment: one line, exit code 130, no traceback; during imports too."""

import random
import signal
import subprocess
import sys
import time

import pytest

MESSAGE = "Interrupted; run the same command again to continue."
# Sends the signal to itself in the middle of an import.
AT_IMPORT = """
import os, sys
module, number, *arguments = sys.argv[1:]
class Hook:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            os.kill(os.getpid(), int(number))
sys.meta_path.insert(0, Hook())
from resid.cli import main
sys.argv[1:] = arguments
sys.exit(main())
"""
# Sends the signal to itself while Polars asks for the version of NumPy, as if in NumPy's own file.
AT_VERSION = """
import os, signal
import polars as pl
from numpy.lib import NumpyVersion
from resid.cli import _stop
signal.signal(signal.SIGINT, _stop)
place = NumpyVersion.__init__.__code__.co_filename
exec(compile("def stop(*_):\\n    os.kill(os.getpid(), signal.SIGINT)\\n    os.getpid()", place, "exec"))
NumpyVersion.__init__ = stop
pl.Series([1]).to_numpy()
"""
READY = "import sys\nfrom resid.cli import main\nprint('ready', flush=True)\nsys.exit(main())"


@pytest.fixture
def fit(prepared, tmp_path):
    tiny = [f"--set=recommender.{s}" for s in ("width=16", "ffn_width=16", "epochs=100000", "patience=0")]  # has no end
    return ("fit", str(prepared), "--recipe=sasrec", f"--out={tmp_path / 'run'}", *tiny)


def check(code, said, number=signal.SIGINT):
    assert "Traceback" not in said, said
    assert "Exception ignored" not in said, said
    assert code == 128 + number, (code, said)
    assert said.splitlines()[-1] == MESSAGE
    assert said.count("Interrupted") == 1


@pytest.mark.parametrize(
    "module",
    [
        "typing",
        "resid.core.errors",
        "cyclopts",
        "rich.console",
        "resid.cli.app",
        "resid.methods.fit",
        "polars.io",
        "torch._C",
        "lightning_fabric",
    ],
)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_during_an_import(module, number, fit):
    command = [sys.executable, "-c", AT_IMPORT, module, str(int(number)), *fit]
    answer = subprocess.run(command, capture_output=True, text=True)
    check(answer.returncode, answer.stderr, number)
    assert answer.stderr.splitlines() == [MESSAGE] or module == "lightning_fabric"
    assert answer.stdout == ""


def test_while_polars_loads_numpy():
    answer = subprocess.run([sys.executable, "-c", AT_VERSION], capture_output=True, text=True)
    check(answer.returncode, answer.stderr)
    assert answer.stderr.splitlines() == [MESSAGE]


@pytest.mark.parametrize("seed", range(6))
def test_at_a_random_moment(seed, fit):
    """Within start-up or training; sooner or later, so that both occur."""
    child = subprocess.Popen(
        [sys.executable, "-c", READY, *fit], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stdout.readline() == "ready\n"
    time.sleep(10 ** random.Random(seed).uniform(-3, 1))
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=120)
    check(child.returncode, said)


def test_during_training(fit):
    with subprocess.Popen([sys.executable, "-m", "resid", *fit], stderr=subprocess.PIPE, text=True) as child:
        lines = []
        for line in child.stderr:
            lines.append(line)
            if line.startswith("Epoch 2 "):
                child.send_signal(signal.SIGINT)
                break
        lines += child.stderr.readlines()
    check(child.returncode, "".join(lines))
