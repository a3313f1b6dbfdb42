"""Analyses of finished runs."""

import json
import shutil
import sys

import numpy as np
import polars as pl
import pytest
from scipy import stats

from resid import Dataset, InputError
from resid.analyse import analyse_density, analyse_diagnostics, analyse_overlap, analyse_tsne
from resid.analyse.correlation import pearson, shown, spearman
from resid.analyse.diagnostics import _correlate, _rank_correlation
from resid.analyse.groups import Groups, communities, field_groups, neighbor_purity
from resid.analyse.projection import project
from resid.analyse.run_parts import embeddings_of, encoder_of, ids_of, labels
from resid.analyse.verdict import diagnostics_of, verdict
from resid.cli import main
from resid.core.progress import Silent
from resid.quantize import id_quality
from tests.analyse.conftest import read


def call(name, out, *arguments):
    return main(["analyse", name, *map(str, arguments), "--out", str(out)])


def test_listed(capsys):
    assert main(["analyse", "--json"]) == 0
    known = json.loads(capsys.readouterr().out)
    names = [
        "embeddings",
        "branching",
        "scaling",
        "tsne",
        "density",
        "attention",
        "overlap",
        "quantizers",
        "diagnostics",
    ]
    assert list(known) == names
    assert main(["analyse"]) == 0
    assert all(name in capsys.readouterr().out for name in names[:1])
    assert main(["analyse", "overlaps", "run", "--out", "folder"]) == 2
    assert "there is no analysis 'overlaps' (did you mean 'overlap'?)" in " ".join(capsys.readouterr().err.split())


def test_overlap(runs, tiny_data, tmp_path, capsys):
    assert call("overlap", tmp_path, *runs[:2]) == 0
    told, table = capsys.readouterr().out, read(tmp_path, "overlap")
    data, ids = Dataset.load(tiny_data), ids_of(runs[1])
    level = id_quality(ids, embeddings_of(runs[1], data, ids).vectors, data)["levels"][1]
    own = table.filter((pl.col("run") == "b") & (pl.col("level") == 2)).row(0, named=True)
    for name in ("overlap", "overlap_chance", "cosine", "cosine_between"):
        assert own[name] == pytest.approx(level[name])
    assert f"{table.filter(pl.col('level') == 2)['cosine'].max():.4f}" in told


def test_runs_without_ids_or_stages(runs, sasrec, tmp_path):
    with pytest.raises(InputError, match="is a SASRec model, which has no semantic IDs"):
        analyse_overlap([sasrec])
    with pytest.raises(InputError, match="there is no such folder"):
        analyse_overlap([tmp_path / "nothing"])
    for part in ("model", "run.json", "recipe.toml"):  # what is kept of a run; the folders of its stages are gone
        copy = shutil.copytree if (runs[0] / part).is_dir() else shutil.copy
        (tmp_path / "kept").mkdir(exist_ok=True)
        copy(runs[0] / part, tmp_path / "kept" / part)
    kept = analyse_overlap([tmp_path / "kept"]).table
    assert kept.drop("run").equals(analyse_overlap(runs[:1]).table.drop("run"))
    assert kept["cosine"].is_not_null().any()
    assert labels([runs[0], tmp_path / "a"]) == [f"{runs[0].parent.name}/a", f"{tmp_path.name}/a"]


def test_tsne(runs, sasrec, tmp_path, capsys):
    assert call("tsne", tmp_path, runs[0], sasrec) == 0
    told, table = " ".join(capsys.readouterr().out.split()), read(tmp_path, "tsne")
    assert table["embeddings"].unique(maintain_order=True).to_list() == ["a", "a, item ID", "sasrec", "sasrec, item ID"]
    assert table["silhouette"].is_between(-1, 1).all()
    best = table.filter(pl.col("groups") == "community").sort("purity", descending=True).row(0, named=True)
    assert f"community {best['purity']:.1%} in {best['embeddings']}" in told
    with pytest.raises(InputError, match="there is no category 'cat9'"):
        analyse_tsne([sasrec], field="cat9", progress=Silent())
    with pytest.raises(InputError, match="t-SNE needs at least 10 items"):
        analyse_tsne([sasrec], items=3, progress=Silent())


class TestGroups:
    def test_largest(self):
        groups = Groups("t", np.array([0, 2, 2, 1, 2, 1, -1]), ["a", "b", "c"]).largest(2)
        assert groups.names == ["c", "b"]
        assert groups.of_item.tolist() == [-1, 0, 0, 1, 0, 1, -1]

    def test_field(self, tiny_data):
        data = Dataset.load(tiny_data)
        groups = field_groups(data, "store")
        values = data.item_table["store"].to_list()
        assert [groups.names[group] if group >= 0 else None for group in groups.of_item] == values

    def test_communities_are_those_of_users_who_never_meet(self):
        """Users of two kinds with items of their own."""
        rng = np.random.default_rng(0)
        rows = [
            (f"u{user}", f"i{item}", step)
            for user in range(60)
            for step, item in enumerate(20 * (user % 2) + rng.choice(20, 8, replace=False))
        ]
        log = pl.DataFrame(rows, schema=["user", "item", "timestamp"], orient="row")
        items = pl.DataFrame({"item": [f"i{item}" for item in range(40)], "kind": ["x", "y"] * 20})
        data = Dataset.from_tables(log, items, ["kind"], k_core=1)
        found = communities(data).of_item
        first = np.array([int(name[1:]) < 20 for name in data.item_ids])
        assert not set(found[first]) & set(found[~first])

    def test_purity(self):
        rng, groups = np.random.default_rng(0), np.repeat([0, 1], 40)
        apart = rng.normal(size=(80, 3)) * 0.1 + np.where(groups, 1, -1)[:, None]
        assert neighbor_purity(apart, groups) == (1.0, 0.5)
        mixed, _ = neighbor_purity(rng.normal(size=(80, 3)), groups)
        assert 0.35 < mixed < 0.65


def test_density(runs, sasrec, tiny_data, tmp_path, capsys):
    assert call("density", tmp_path, runs[0], sasrec, "--projection=tsne", "--fields=cat1") == 0
    assert "Of the ten items nearest to the embedding of a category" in capsys.readouterr().out
    table = read(tmp_path, "density")
    assert table["category_vector"].to_list() == ["embedding", "embedding"]
    # The same by hand.
    data, encoder = Dataset.load(tiny_data), encoder_of(runs[0])
    groups, items = field_groups(data, "cat1"), encoder.embed(data).part("item")
    categories = encoder.initial_tables()["cat1"][1:]
    shares = []
    for group, vector in enumerate(categories):
        size = (groups.of_item == group).sum()
        if size > 1:
            nearest = np.argsort(-(items @ vector) / np.linalg.norm(items, axis=1))[:10]
            shares.append((groups.of_item[nearest] == group).sum() / min(size, 10))
    assert table["aligned"][0] == pytest.approx(np.mean(shares))


def test_projection_keeps_clusters_apart():
    """UMAP compiles for ten seconds, so that only t-SNE is tried here."""
    rng = np.random.default_rng(0)
    vectors = np.concatenate([center + 0.1 * rng.normal(size=(40, 6)) for center in np.eye(6)[:2]])
    places = project(vectors, "tsne", seed=0)
    assert places.shape == (80, 2)
    middles = places[:40].mean(axis=0), places[40:].mean(axis=0)
    nearer = [int(np.argmin([np.linalg.norm(place - middle) for middle in middles])) for place in places]
    assert nearer == [0] * 40 + [1] * 40


def test_without_umap(runs, monkeypatch):
    monkeypatch.setitem(sys.modules, "umap", None)
    with pytest.raises(InputError, match=r"UMAP needs umap-learn; .* or use --projection tsne"):
        analyse_density(runs[:1], progress=Silent())


def test_attention(runs, tiny_data, tmp_path, capsys):
    assert call("attention", tmp_path, runs[0], "--min-history=3", "--windows=100") == 0
    assert "the 5 most recent items get" in capsys.readouterr().out
    table = read(tmp_path, "attention")
    windows = table["windows"][0]
    assert windows == 100
    assert (table["weight"] * table["windows"]).sum() / windows == pytest.approx(1)  # of the one layer
    assert (table["relative"] >= table["weight"] * 4).all()  # a window has at least three items and the target
    data = Dataset.load(tiny_data)
    assert table["distance"].max() <= data.settings.max_length - 1
    assert call("attention", tmp_path, runs[0], "--min-history=1000") == 2
    assert "use a smaller --min-history" in capsys.readouterr().err


def test_attention_needs_famae(sasrec, tmp_path, capsys):
    assert call("attention", tmp_path, sasrec) == 2
    assert "the encoder is not FAMAE" in " ".join(capsys.readouterr().err.split())


def test_quantizers(runs, tmp_path, capsys):
    assert call("quantizers", tmp_path, runs[0], "--passes=1") == 0
    assert "GAOQ" in capsys.readouterr().out
    table = read(tmp_path, "quantizers")
    assert table["quantizer"].to_list() == ["gaoq", "rq-vae", "rq-vae", "letter", "letter"]
    seconds = table["seconds"].to_numpy()
    assert np.allclose(table["ratio"], seconds / seconds[0])
    trained = table.filter(pl.col("passes").is_not_null())
    assert np.allclose(trained["seconds"], trained["seconds_once"] + trained["passes"] * trained["seconds_per_pass"])


class TestDiagnostics:
    def test_runs(self, runs, sasrec, tmp_path, capsys):
        assert call("diagnostics", tmp_path, *runs, sasrec) == 0
        told, table = capsys.readouterr(), read(tmp_path, "diagnostics")
        assert "Left out" in told.err
        assert "Over 4 runs with 1 generator, the highest rank correlation" in " ".join(told.out.split())
        assert table["run"].unique().sort().to_list() == ["a", "b", "c", "d"]
        for (_,), part in table.group_by("diagnostic"):
            found = stats.spearmanr(part["value"], part["recall@10"]).statistic
            assert part["spearman"][0] == pytest.approx(found)
        record = json.loads((tmp_path / "diagnostics.json").read_text())
        assert record["highest"] == table["diagnostic"][0]
        assert record["diagnostic"] is None  # four runs cannot show it
        assert record["p_corrected"] > 0.05

    def test_too_few(self, runs):
        with pytest.raises(InputError, match="there are too few runs to compare"):
            analyse_diagnostics(runs[:3], progress=Silent())

    def test_one_stratum_is_spearman(self):
        rng = np.random.default_rng(0)
        x, y = rng.integers(0, 6, (2, 5, 12)).astype(float)
        found = _rank_correlation(x, y, np.repeat("a", 12))
        assert found == pytest.approx([stats.spearmanr(*pair).statistic for pair in zip(x, y, strict=True)])

    def test_strata_are_compared_within(self):
        """Recall rises with the value in each of two strata, and falls from one to the other."""
        x = np.array([[1, 2, 3, 11, 12, 13.0]])
        y = np.array([[11, 12, 13, 1, 2, 3.0]])
        strata = np.repeat(["a", "b"], 3)
        assert _rank_correlation(x, y, strata) == pytest.approx([1.0])
        assert stats.spearmanr(x[0], y[0]).statistic < 0
        missing = np.where(x == 2, np.nan, x)
        assert _rank_correlation(missing, y, strata) == pytest.approx([1.0])
        assert np.isnan(_rank_correlation(np.ones((1, 6)), y, strata)).all()

    def test_what_predicts_is_found_and_noise_is_not(self):
        rng = np.random.default_rng(0)
        recall, strata = rng.normal(size=18), np.array(["a", "b"] * 9)
        noise = {f"noise{number}": rng.normal(size=18) for number in range(20)}
        found = _correlate(noise | {"real": recall + 0.2 * rng.normal(size=18)}, recall, strata, rng)
        assert found["diagnostic"][0] == "real"
        assert found["p"][0] < 0.01
        assert found["p"][1] > 0.05
        assert found["low"][0] > 0.5

    def test_verdict(self, runs):
        quality = id_quality(ids_of(runs[0]))
        value = diagnostics_of(quality)["conditional_entropy 2"]
        record = {"diagnostic": "conditional_entropy 2", "values": [value - 1, value, value + 1, value + 2], "runs": 4}
        record |= {"data": "scientific", "spearman": -0.8, "interval": [-0.9, -0.5]}
        said = verdict(quality, record)
        assert said.startswith(f"entropy given the prefix, code 2: {value:.4g}, above 25% of 4 runs on scientific")
        assert "IDs with lower values reached a higher Recall@10" in said
        assert verdict(quality, record | {"diagnostic": "overlap 2"}) is None  # not measured
        assert verdict(quality, {"diagnostic": None}) is None

    def test_inspect_says_it(self, runs, monkeypatch, capsys):
        monkeypatch.setattr("resid.analyse.verdict.verdict", lambda quality: f"{quality['items']} items are judged.")
        assert main(["inspect", str(runs[0])]) == 0
        assert "64 items are judged." in capsys.readouterr().out


def test_correlations():
    assert pearson([1, 2, 3], [2, 4, 6]) == pytest.approx(1)
    assert spearman([1, 2, 3], [9, 4, 1]) == pytest.approx(-1)
    assert pearson([1, 2], [1, 2]) is None
    assert spearman([1, 1, 1], [1, 2, 3]) is None
    assert (shown(None), shown(-0.5)) == ("–", "−0.50")


def test_where_categories_are_not_embedded_they_are_means(runs, monkeypatch):
    monkeypatch.setattr("resid.encode.famae.FAMAE.initial_tables", lambda self: {})
    found = analyse_density(runs[:1], fields=["cat1"], projection="tsne", progress=Silent())
    assert found.table["category_vector"].to_list() == ["mean of its items"]
