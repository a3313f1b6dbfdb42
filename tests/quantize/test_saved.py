"""Every registered quantizer: saved and loaded, IDs of new items, collisions."""

import json

import numpy as np
import polars as pl
import pytest
import torch

from resid import Dataset, InputError, Runtime
from resid.core.artifact import Artifact
from resid.core.checksums import manifest_text
from resid.core.part import Part
from resid.core.registry import find_part, kinds
from resid.quantize import GAOQ, LETTER, RQVAE, HierarchicalKMeans, Quantizer, RQKMeans
from tests.quantize.test_kmeans import blobs

pytestmark = pytest.mark.filterwarnings("ignore:there are up to")  # more anchors than dimensions, in small trees

QUICK = {  # settings with which the registered quantizers are fitted quickly, and have free codes for new items
    "gaoq": {"branching": (4, 5), "anchors": (6, 20)},
    "hierarchical": {"branching": 6},
    "rq-kmeans": {"n_levels": 2, "codebook_size": 8},
    "rq-vae": {
        "n_levels": 2,
        "codebook_size": 8,
        "hidden_layer_sizes": (16,),
        "latent_dim": 4,
        "epochs": 10,
        "evaluate_every": 5,
    },
}
QUICK["letter"] = {**QUICK["rq-vae"], "collisions": "deduplicate"}
KINDS = kinds("quantizer")
FITTED = blobs(160, d=12)
NEW = np.concatenate([FITTED[:10] + 0.05, FITTED[10:13], blobs(5, d=12, seed=7)]).astype(np.float32)  # 15 new rows


def make(kind, **more):
    part = find_part("quantizer", kind)
    return part.from_settings(part.settings_class(**{**QUICK.get(kind, {}), "seed": 3, **more}))


@pytest.fixture(scope="module", params=KINDS)
def fitted(request):
    return make(request.param).fit(FITTED)


@pytest.fixture
def copy(fitted, tmp_path):
    """Return a quantizer of its own, loaded from what `fitted` saved."""
    fitted.save(tmp_path / "quantizer")
    return type(fitted).load(tmp_path / "quantizer")


class TestLoaded:
    def test_equals_the_original(self, fitted, copy):
        assert type(copy) is type(fitted)
        assert copy is not fitted
        assert copy.settings == fitted.settings
        assert np.array_equal(copy.codes_, fitted.codes_)
        assert copy.codes_.dtype == np.int32
        assert (copy.level_sizes_, copy.n_iter_) == (fitted.level_sizes_, fitted.n_iter_)
        assert copy.semantic_ids_.digest == fitted.semantic_ids_.digest
        assert np.array_equal(copy.transform(FITTED), fitted.codes_)
        assert np.array_equal(copy.transform(NEW), fitted.transform(NEW))
        assert np.array_equal(copy.new_ids(NEW), fitted.new_ids(NEW))
        assert np.array_equal(copy.transform(torch.from_numpy(NEW)), fitted.transform(NEW))

    def test_extend(self, copy, fitted, tmp_path):
        before = copy.semantic_ids_.codes.copy()
        Part.load(tmp_path / "quantizer").save(tmp_path / "other")
        other = Quantizer.load(tmp_path / "other")
        expected = copy.new_ids(NEW)
        assert np.array_equal(copy.semantic_ids_.codes, before)  # new_ids keeps nothing
        for quantizer in (copy, other):
            assert np.array_equal(quantizer.extend(NEW), expected)
            ids = quantizer.semantic_ids_
            assert len(quantizer.codes_) == 160 + 15  # the known rows are not appended
            assert ids.unique
            assert np.array_equal(ids.codes[:160], before)
            assert np.array_equal(quantizer.extend(NEW), expected)  # they are known now
            assert np.array_equal(quantizer.new_ids(FITTED), before)
            assert len(quantizer.codes_) == 160 + 15
        assert len(fitted.codes_) == 160
        # The extended quantizer is saved with the new items, and extended again.
        copy.save(tmp_path / "quantizer")
        again = Quantizer.load(tmp_path / "quantizer")
        more = blobs(4, d=12, seed=9)
        assert np.array_equal(again.new_ids(np.concatenate([NEW, more])), copy.new_ids(np.concatenate([NEW, more])))
        assert np.array_equal(again.extend(more), copy.extend(more))
        assert np.array_equal(again.semantic_ids_.codes, copy.semantic_ids_.codes)
        assert np.array_equal(again.semantic_ids_.codes[:160], before)

    def test_in_another_process(self, fitted, forks, tmp_path):
        fitted.save(tmp_path / "quantizer")
        np.save(tmp_path / "new.npy", NEW)
        script = (
            "import sys, json, numpy as np\n"
            "from resid.core.part import Part\n"
            "quantizer, new = Part.load(sys.argv[1]), np.load(sys.argv[2])\n"
            "print(json.dumps([quantizer.transform(new).tolist(), quantizer.extend(new).tolist()]))\n"
        )
        printed = forks.output(script, tmp_path / "quantizer", tmp_path / "new.npy")
        assert json.loads(printed) == [fitted.transform(NEW).tolist(), fitted.new_ids(NEW).tolist()]

    def test_input_is_checked(self, copy):
        with pytest.raises(ValueError, match="12 features"):
            copy.transform(np.ones((3, 5)))


class TestRefused:
    def test_newer_version(self, fitted, copy, tmp_path):
        artifact = fitted.to_artifact()
        newer = Artifact(**vars(artifact) | {"version": type(fitted).format_version + 1})
        with pytest.raises(InputError, match=r"version \d+ of a \w+ is not supported, .* reads up to 1; update resid"):
            Quantizer.from_artifact(newer)
        path = tmp_path / "quantizer" / "manifest.json"
        content = json.loads(path.read_text()) | {"version": 2}
        del content["sha256"]
        path.write_text(manifest_text(content))
        with pytest.raises(InputError, match="quantizer: version 2 of a"):
            Quantizer.load(tmp_path / "quantizer")

    def test_altered_files(self, fitted, copy, tmp_path):
        for path in sorted((tmp_path / "quantizer").iterdir()):
            content = path.read_bytes()
            for place in np.linspace(0, len(content) - 2, 12).astype(int):
                path.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
                with pytest.raises(InputError, match=f"{path.name}: (missing or )?altered|{path.name}: damaged"):
                    Quantizer.load(tmp_path / "quantizer")
            path.unlink()
            with pytest.raises(InputError, match=r"is missing|missing or altered"):
                Quantizer.load(tmp_path / "quantizer")
            path.write_bytes(content)
        Quantizer.load(tmp_path / "quantizer")

    def test_another_class(self, fitted, copy, tmp_path):
        other = GAOQ if not isinstance(fitted, GAOQ) else RQKMeans
        with pytest.raises(InputError, match=f"this is a {type(fitted).__name__}, not a {other.__name__}"):
            other.load(tmp_path / "quantizer")

    def test_not_fitted(self, fitted, tmp_path):
        new = type(fitted).from_settings(fitted.settings)
        for use in (lambda: new.save(tmp_path / "x"), lambda: new.semantic_ids_, lambda: new.transform(FITTED)):
            with pytest.raises(ValueError, match="not fitted yet"):
                use()
        assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("kind", KINDS)
class TestSettings:
    def test_constructor(self, kind):
        """The settings are all arguments of the constructor."""
        quantizer = make(kind)
        names = set(quantizer.get_params()) - {"random_state"} | {"seed"}
        assert set(quantizer.settings.to_dict()) == names
        assert quantizer.settings == quantizer.settings_class(**quantizer.settings.to_dict())
        assert type(quantizer).from_settings(quantizer.settings).get_params() == quantizer.get_params()
        assert quantizer.random_state == quantizer.settings.seed == 3

    def test_random_state_that_is_no_integer(self, kind):
        quantizer = make(kind)
        for state, seed in ((None, 0), (np.random.RandomState(5), 0), (np.int64(5), 5)):
            assert quantizer.set_params(random_state=state).settings.seed == seed

    def test_check_before_fit(self, kind):
        """Settings that do not suit the catalogue are refused by `check`, before any stage is fitted."""
        log = pl.DataFrame({"user": ["a"] * 5 + ["b"] * 5, "item": list("vwxyz") * 2, "timestamp": range(10)})
        data = Dataset.from_tables(log, k_core=1)
        part = find_part("quantizer", kind)
        part.from_settings(part.settings_class()).check(data)  # the defaults suit any catalogue
        too_many = {"branching": (5, 5)} if "branching" in QUICK.get(kind, {}) else {"codebook_size": 6}
        with pytest.raises(InputError, match=r"\[quantizer\] .*n_samples=5"):
            part.from_settings(part.settings_class(**too_many)).check(data)
        for name in {"max_iter", "n_levels", "epochs"} & set(part.settings_class().to_dict()):
            with pytest.raises(InputError, match=rf"\[quantizer\] {name}=0 is invalid"):
                part.from_settings(part.settings_class(**{name: 0})).check(data)

    def test_fit_part(self, kind, tmp_path):
        assert np.array_equal(
            make(kind).fit_part(FITTED, runtime=Runtime(tmp_path)).codes_, make(kind).fit(FITTED).codes_
        )
        with pytest.raises(InputError, match=r"\[quantizer\] .*NaN"):
            make(kind).fit_part(np.full((160, 12), np.nan))


def test_arguments_as_arrays(tmp_path):
    """NumPy values are accepted as arguments, and saved."""
    quantizer = GAOQ(np.array([4, 5]), max_iter=np.int64(9), random_state=np.int32(1)).fit(FITTED)
    quantizer.save(tmp_path / "quantizer")
    loaded = GAOQ.load(tmp_path / "quantizer")
    assert (loaded.branching, loaded.max_iter, loaded.random_state) == ((4, 5), 9, 1)
    assert np.array_equal(GAOQ((4, 5), max_iter=9, random_state=1).fit(FITTED).codes_, loaded.codes_)


class TestCollisions:
    """Of residual quantizers; the IDs of tree quantizers are unique."""

    VECTORS = np.concatenate([FITTED, FITTED[:4] + np.float32(1e-4)])  # four pairs with the same codes

    @pytest.fixture(scope="class", params=["letter", "rq-kmeans", "rq-vae"])
    @classmethod
    def pair(cls, request):
        """Return the same quantizer with both settings."""
        return tuple(make(request.param, collisions=each).fit(cls.VECTORS) for each in ("keep", "deduplicate"))

    def test_keep(self, pair):
        keep, _ = pair
        ids = keep.semantic_ids_
        assert np.array_equal(ids.codes, keep.codes_)
        assert ids.level_sizes == keep.level_sizes_ == (8, 8)
        assert not ids.unique
        assert np.array_equal(keep.new_ids(NEW), keep.transform(NEW))
        assert np.array_equal(keep.extend(NEW), keep.transform(NEW))

    def test_deduplicate(self, pair):
        keep, more = pair
        ids = more.semantic_ids_
        assert np.array_equal(more.codes_, keep.codes_[:164])  # the codes are the same, the IDs have one more level
        assert ids.unique
        assert ids.levels == 3
        assert np.array_equal(ids.codes[:, :2], more.codes_)
        for code in np.unique(more.codes_, axis=0):
            own = ids.codes[(more.codes_ == code).all(axis=1), 2]
            assert own.tolist() == list(range(len(own)))  # in item order
        assert ids.level_sizes[2] == ids.codes[:, 2].max() + 1

    def test_new_items_get_the_next_numbers(self, pair):
        _, more = pair
        before = more.semantic_ids_
        near = self.VECTORS[:4] + np.float32(2e-4)
        found = more.new_ids(near)
        assert found.shape == (4, 3)
        for row, code in zip(found, more.transform(near), strict=True):
            taken = (more.codes_ == code).all(axis=1).sum()
            assert row[:2].tolist() == code.tolist()
            assert row[2] >= taken  # after all items with the same codes
        everything = np.concatenate([before.codes, found])
        assert len(np.unique(everything, axis=0)) == len(everything)

    def test_the_level_is_added_even_if_codes_are_unique(self):
        vectors = np.eye(4, dtype=np.float32) * 10
        quantizer = RQKMeans(1, 4, random_state=0).fit(vectors)
        assert len(np.unique(quantizer.codes_)) == 4
        assert quantizer.semantic_ids_.level_sizes == (4, 1)
        assert quantizer.semantic_ids_.codes[:, 1].tolist() == [0, 0, 0, 0]

    def test_equal_rows(self):
        """Equal rows are known one by one; a further copy is a new item."""
        vectors = np.concatenate([FITTED[:20], FITTED[:1], FITTED[:1]])
        quantizer = RQKMeans(2, 4, random_state=0).fit(vectors)
        ids = quantizer.semantic_ids_.codes
        copies = np.repeat(FITTED[:1], 4, axis=0)
        found = quantizer.extend(copies)
        assert np.array_equal(found[:3], ids[[0, 20, 21]])
        assert len(quantizer.codes_) == 23
        assert len(np.unique(found, axis=0)) == 4
        assert np.array_equal(quantizer.semantic_ids_.codes[:22], ids)

    def test_tree_quantizers_have_unique_ids(self):
        for quantizer in (GAOQ((4, 5), random_state=0), HierarchicalKMeans((4, 5), random_state=0)):
            ids = quantizer.fit(self.VECTORS).semantic_ids_
            assert ids.unique
            assert ids.level_sizes == quantizer.level_sizes_
            assert "collisions" not in quantizer.get_params()

    @pytest.mark.parametrize("part", [RQKMeans, RQVAE])
    def test_setting(self, part):
        assert part.settings_class().collisions == "deduplicate"
        with pytest.raises(InputError, match="invalid value 'count' for 'collisions': it must be 'deduplicate'"):
            part.settings_class(collisions="count")

    def test_letter_keeps_them_by_default(self):
        assert LETTER.settings_class().collisions == "keep"
