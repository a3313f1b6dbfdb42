"""What a report says: the same as the commands say, bounded, and in a page from which data cannot escape."""

import base64
import hashlib
import json
import re
import shutil

import numpy as np
import pytest

from resid import Dataset, InputError, fit, load
from resid.cli import main
from resid.quantize import SemanticIds
from resid.report import render_page, report_content
from resid.report.data import length_histogram, popularity_histogram
from resid.report.tree import ItemLabels, id_tree
from resid.runs import read_stages
from tests.report.conftest import HOSTILE


@pytest.fixture(scope="module")
def content(runs):
    return report_content([runs / "resid", runs / "popularity"])


@pytest.fixture(scope="module")
def data(runs):
    return Dataset.load(runs / "data")


def said(capsys):
    return " ".join(capsys.readouterr().err.split())


class TestContent:
    def test_results_are_those_of_evaluate(self, content, runs):
        for run in content["runs"]:
            written = json.loads((runs / run["name"] / "evaluation" / "test.json").read_text())
            for ranking in ("kept", "dropped"):
                for metric, (value, low, high) in run["evaluation"]["all"][ranking].items():
                    assert value == written[f"seen_{ranking}"][metric]
                    assert [low, high] == written[f"seen_{ranking}"]["intervals"][metric]
            for part in run["evaluation"]["slices"]:
                assert part["users"] == written["slices"][part["name"]]["users"]
                for metric, (value, low, high) in part["kept"].items():
                    assert value == pytest.approx(written["slices"][part["name"]][metric])
                    assert low <= value <= high
            assert run["missing"] == ""

    def test_differences_are_to_the_first_run(self, content):
        (found,) = content["differences"]
        assert (found["run"], found["to"]) == ("popularity", "resid")
        first, second = (run["evaluation"]["all"]["dropped"]["ndcg@10"][0] for run in content["runs"])
        assert found["dropped"]["ndcg@10"][0] == pytest.approx(second - first)

    def test_ids_are_those_of_inspect(self, content, runs, capsys):
        assert main(["inspect", str(runs / "resid"), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        first = content["runs"][0]
        assert first["weights"] == found["blend"]
        assert {"codes", "item", "seen", "added"} <= set(found["blend"])
        assert f"{found['items']:,} items, {found['ids']:,} distinct IDs" in first["quality"]["text"]
        rows = {text.strip(): values for text, values in first["quality"]["rows"]}
        assert rows["perplexity"] == [f"{level['perplexity']:,.1f}" for level in found["levels"]]
        assert "10 nearest neighbors with the same prefix" in rows  # which needs the embeddings
        assert (content["runs"][1]["tree"], content["runs"][1]["weights"]) == (None, None)

    def test_training(self, content, runs):
        lines = next((runs / "resid" / "generator").glob("*/training/metrics.jsonl")).read_text().splitlines()
        (chart,) = [chart for chart in content["training"]["charts"] if chart["title"] == "Validation NDCG@10"]
        (series,) = chart["series"]
        assert series["points"] == [(record["epoch"], record["ndcg@10"]) for record in map(json.loads, lines)]
        assert series["best"] == load(runs / "resid").best_epoch_
        named = [(row["stage"], row["kind"], row["epochs"]) for row in content["training"]["stages"]]
        assert named[:3] == [("encoder", "famae", 2), ("quantizer", "gaoq", 0), ("generator", "joint", 2)]
        alone = report_content([runs / "resid"])["training"]["charts"]
        losses = next(chart for chart in alone if chart["title"] == "Loss of the generator (joint)")
        assert [one["name"] for one in losses["series"]][:2] == ["total", "code 1"]

    def test_data(self, content, data):
        assert content["data"]["users"] == data.n_users
        assert sum(count for _, count in length_histogram(data)) == data.n_users
        assert sum(count for _, count in popularity_histogram(data)) == data.n_items
        labels = dict(popularity_histogram(data))
        assert labels.get("0", 0) == (data.training_counts == 0).sum()
        assert labels["5–8"] == ((data.training_counts >= 5) & (data.training_counts <= 8)).sum()

    def test_examples(self, content, runs, data):
        """Up to four hits and two misses, with what the model recommends and the IDs of the items."""
        model = load(runs / "resid")
        users, ranks = content["examples"]["users"], []
        for user in users:
            window = int(np.flatnonzero(data.user_ids.gather(data.test.users.astype(int)) == user["user"])[0])
            history, target = data.test.window(window)
            items, _ = model.recommend(data.item_ids.gather(history.astype(int)).to_list(), 10)
            named = [content["items"][number][0] for number in user["recommended"]["resid"]]
            assert named == items.tolist()
            assert content["items"][user["target"]][0] == data.item_ids[target]
            assert user["ids"]["resid"][user["target"]] == model.ids_.codes[target].tolist()
            ranks.append(user["target"] in user["recommended"]["resid"])
        assert ranks == sorted(ranks, reverse=True)
        assert ranks.count(False) == 2

    def test_a_run_without_its_stages(self, runs, tmp_path):
        """A run of which only the model was kept."""
        for name in ("model", "evaluation", "run.json", "recipe.toml"):
            copy = shutil.copytree if (runs / "resid" / name).is_dir() else shutil.copy
            copy(runs / "resid" / name, tmp_path / name)
        kept = report_content([tmp_path], runs / "data")
        assert [row["epochs"] for row in kept["training"]["stages"]] == [2, 0, 2]
        assert kept["runs"][0]["quality"] == report_content([runs / "resid"])["runs"][0]["quality"]

    def test_phases_of_a_training(self, runs, tmp_path):
        shutil.copytree(runs / "resid", tmp_path / "run")
        training = next((tmp_path / "run" / "generator").glob("*/training"))
        (training / "later").mkdir()
        shutil.copy(training / "metrics.jsonl", training / "later")
        stage = read_stages(tmp_path / "run")[-1]
        assert list(stage.training) == ["", "later"]
        (training / "metrics.jsonl").write_text("{")
        with pytest.raises(InputError, match=r"metrics\.jsonl: damaged"):
            read_stages(tmp_path / "run")


class TestTree:
    def test_majorities_and_purity(self, data):
        rng = np.random.default_rng(0)
        ids = SemanticIds(rng.integers(0, 3, size=(data.n_items, 3)))
        labels = ItemLabels(data)
        tree = id_tree(ids, data, labels, 1_000)
        nodes, field = tree["nodes"], next(field for field in tree["fields"] if field["name"] == "store")
        assert tree["complete"]
        assert nodes["size"][0] == data.n_items
        stores = data.item_table["store"].to_list()
        titles = [row[0] for row in labels.table()]
        for node, depth in enumerate(nodes["depth"]):
            path, at = [], node
            while at:
                path.insert(0, nodes["code"][at])
                at = nodes["parent"][at]
            members = np.flatnonzero((ids.codes[:, :depth] == path).all(axis=1))
            assert nodes["size"][node] == len(members)
            held = [stores[item] for item in members]
            common = field["values"][field["majority"][node]]
            assert held.count(common) == max(map(held.count, held))
            assert field["share"][node] == pytest.approx(held.count(common) / len(held), abs=1e-3)
            counts = sorted(data.training_counts[members], reverse=True)[:3]
            shown = data.item_indices([titles[number] for number in nodes["examples"][node]])
            assert data.training_counts[shown].tolist() == counts
        for depth, (real, chance) in enumerate(field["purity"]):
            of = [node for node, other in enumerate(nodes["depth"]) if other == depth]
            mean = sum(field["share"][node] * nodes["size"][node] for node in of) / data.n_items
            assert real == pytest.approx(mean, abs=1e-3)
            assert 0 < chance <= 1

    def test_bounded(self, data):
        """The largest nodes are expanded first, and never more than the bound."""
        ids = SemanticIds(np.column_stack([np.arange(data.n_items) // 30, np.arange(data.n_items) % 30]))
        tree = id_tree(ids, data, ItemLabels(data), 40)
        nodes = tree["nodes"]
        assert len(nodes["parent"]) <= 40
        assert not tree["complete"]
        expanded = {parent for parent in nodes["parent"] if parent > 0}
        assert expanded == {1, 3}  # the second of 30 items does not fit after the first, the last of 4 does
        many = SemanticIds(np.arange(data.n_items)[:, None] // 2)
        assert id_tree(many, data, ItemLabels(data), 20)["nodes"]["parent"] == [-1]

    def test_without_fields(self, shop):
        data = Dataset.from_tables(shop.interaction_table)
        tree = id_tree(SemanticIds(np.arange(data.n_items)[:, None] % 4), data, ItemLabels(data), 100)
        assert tree["fields"] == []
        assert len(tree["nodes"]["size"]) == 5


class TestPage:
    def test_data_cannot_leave_its_element(self, content):
        page = render_page(content)
        assert page.count("</script") == 2
        embedded = re.search(r'<script type="application/json" id="content">(.*?)</script>', page, re.DOTALL)[1]
        assert not set("<>&\u2028") & set(embedded)
        read = json.loads(embedded)
        assert {label for _, label in read["items"]} >= {HOSTILE[0], " ".join(HOSTILE[3].split())}
        assert read["data"]["fingerprint"] == content["data"]["fingerprint"]

    def test_title(self, content):
        assert "<title>&lt;b&gt; &amp; %STYLE%</title>" in render_page(content | {"title": "<b> & %STYLE%"})

    def test_policy(self, content):
        page = render_page(content)
        for element, directive in (("style", "style-src"), ("script", "script-src")):
            inline = re.search(rf"<{element}>(.*?)</{element}>", page, re.DOTALL)[1]
            checksum = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()
            assert f"{directive} 'sha256-{checksum}'" in page
        assert "default-src 'none'" in page
        outside = re.sub(r'<script type="application/json".*?</script>', "", page, flags=re.DOTALL)
        assert set(re.findall(r"https?://[^\"'\s]+", outside)) == {"http://www.w3.org/2000/svg"}


class TestCommand:
    def test_writes_a_file(self, runs, tmp_path, capsys):
        out = tmp_path / "new" / "report.html"
        assert main(["report", str(runs / "resid"), "--out", str(out)]) == 0
        assert f"Wrote {out} (" in capsys.readouterr().out
        assert out.read_text(encoding="utf-8").startswith("<!doctype html>")
        assert main(["report", str(runs / "resid"), "--out", str(out), "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == {"file": str(out), "bytes": out.stat().st_size, "missing": []}

    def test_a_run_that_was_not_evaluated(self, runs, tmp_path, capsys):
        fit(runs / "data", "popularity", tmp_path / "run")
        assert main(["report", str(tmp_path / "run"), "--out", str(tmp_path / "report.html")]) == 0
        assert f"run 'resid evaluate {tmp_path / 'run'}' first." in said(capsys)
        assert "was not evaluated on the test split" in (tmp_path / "report.html").read_text(encoding="utf-8")

    def test_invalid_input(self, runs, shop, tmp_path, capsys):
        Dataset.from_tables(shop.interaction_table).save(tmp_path / "data")
        fit(tmp_path / "data", "popularity", tmp_path / "other")
        (tmp_path / "file").write_text("")
        run, out = str(runs / "popularity"), str(tmp_path / "report.html")
        for arguments, sentence in (
            ((str(tmp_path), "--out", out), f"{tmp_path}: this is not the folder of a run; a report is written about"),
            ((str(tmp_path / "none"), "--out", out), "none: this is not the folder of a run"),
            ((str(runs / "data"), "--out", out), f"{runs / 'data'} is a Dataset; a report is written about runs"),
            ((run, str(tmp_path / "other"), "--out", out), "other: this run is on another Dataset than"),
            ((run, run, "--out", out), f"{run} is given twice; name every run once."),
            ((run, "--data", str(tmp_path / "data"), "--out", out), "use that Dataset, or fit again."),
            ((run, "--out", str(tmp_path / "report.pdf")), "report.pdf: name a file that ends with .html."),
            ((run, "--out", str(tmp_path / "file" / "report.html")), "file is a file, so the folder"),
            ((run,), "--out is missing; see resid report --help."),
        ):
            assert main(["report", *arguments]) == 2, arguments
            answer = said(capsys)
            assert sentence in answer
            assert answer.startswith("Error: ")
        assert not (tmp_path / "report.html").exists()
