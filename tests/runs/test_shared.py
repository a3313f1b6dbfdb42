"""Stages that several runs share, and what a stage cost."""

import json
import shutil
import time
from threading import Thread

import pytest

import resid
from resid import Dataset, Runtime
from resid.core.locks import exclusive
from resid.runs import load_stage, measured, read_cost, read_run
from tests.runs.test_run import Recorder

TINY = {"encoder.width": 16, "encoder.ffn_width": 16, "epochs": 1, "generator.width": 16, "generator.layers": 1}


@pytest.fixture(scope="module")
def data(prepared):
    return Dataset.load(prepared)


def test_the_second_run_reuses_what_the_first_fitted(data, tmp_path):
    shared = tmp_path / "stages"
    resid.fit(data, "resid-codes", tmp_path / "runs" / "a", changes=TINY, stages=shared)
    heard = Recorder()
    changes = TINY | {"generator.dropout": 0.3}
    resid.fit(
        data, "resid-codes", tmp_path / "runs" / "b", changes=changes, stages=shared, runtime=Runtime(progress=heard)
    )
    assert [step.split(":")[0] for step in heard.steps if "reusing" in step] == ["Encoder", "Quantizer"]
    assert len(list(shared.glob("encoder/*"))) == len(list(shared.glob("quantizer/*"))) == 1
    assert len(list(shared.glob("generator/*"))) == 2
    assert {path.name for path in (tmp_path / "runs" / "a").iterdir() if path.name[0] != "."} == {
        "model",
        "recipe.toml",
        "run.json",
    }
    stages = read_run(tmp_path / "runs" / "b").stages
    assert stages["encoder"].startswith("../../stages/encoder/")
    assert (
        load_stage(tmp_path / "runs" / "b", "encoder").digest == load_stage(tmp_path / "runs" / "a", "encoder").digest
    )


def test_keys_are_those_of_a_single_run(data, tmp_path):
    """So stages that `resid fit` made can be moved to a shared folder."""
    resid.fit(data, "cooccurrence", tmp_path / "alone")
    resid.fit(data, "cooccurrence", tmp_path / "run", stages=tmp_path / "stages")
    alone = read_run(tmp_path / "alone").stages["recommender"]
    assert read_run(tmp_path / "run").stages["recommender"] == f"../stages/{alone}"


def test_who_comes_second_waits_and_reuses(data, tmp_path):
    resid.fit(data, "cooccurrence", tmp_path / "alone")
    stage = read_run(tmp_path / "alone").stages["recommender"]
    heard = Recorder()
    run = Thread(
        target=resid.fit,
        args=(data, "cooccurrence", tmp_path / "run"),
        kwargs={"stages": tmp_path / "stages", "runtime": Runtime(progress=heard)},
    )
    with exclusive(tmp_path / "stages" / stage):  # as a run that is fitting it
        run.start()
        while "Recommender: waiting for another run that fits it" not in heard.steps:
            assert run.is_alive()
            time.sleep(0.01)
        shutil.copytree(tmp_path / "alone" / stage / "part", tmp_path / "stages" / stage / "part")
        assert run.is_alive()
    run.join(60)
    assert [step for step in heard.steps if "fitting" in step] == []
    assert heard.steps[-1].startswith("Recommender: reusing cooccurrence")
    assert (tmp_path / "run" / "model").is_dir()


class TestCost:
    def test_sessions_add_up(self, tmp_path):
        assert read_cost(tmp_path) is None
        with pytest.raises(KeyboardInterrupt), measured(tmp_path):
            raise KeyboardInterrupt
        with measured(tmp_path):
            pass
        content = json.loads((tmp_path / "cost.json").read_text())
        cost = read_cost(tmp_path)
        assert len(content["sessions"]) == 2
        assert cost.seconds == sum(content["sessions"])
        assert cost.complete
        assert cost.peak_memory > 10**6
        assert cost.peak_device_memory is None

    def test_a_killed_session_is_known_to_be_missing(self, forks, tmp_path):
        program = "import os, sys, pathlib\nfrom resid.runs import measured\n" \
                  "with measured(pathlib.Path(sys.argv[1])):\n    os.kill(os.getpid(), 9)"  # fmt: skip
        assert forks.run([tmp_path], program=program).code == -9
        assert read_cost(tmp_path).complete is False
        with measured(tmp_path):
            pass
        assert read_cost(tmp_path).complete is False

    def test_damage_is_no_obstacle(self, tmp_path):
        (tmp_path / "cost.json").write_text("[")
        assert read_cost(tmp_path) is None
        with measured(tmp_path):
            pass
        assert read_cost(tmp_path).complete
