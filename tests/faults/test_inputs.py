"""Random tables, files, recipes and arguments: each is either read, or refused with an `InputError` of one line.

``RESID_FAULT_TRIALS=5000 pytest tests/faults`` tries many more.
"""

import gzip
import io
import json
import os
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from resid import Dataset, InputError
from resid.data.catalogue import parse_ids
from resid.data.tables import ENGINE_ERRORS
from resid.methods.recipe import Recipe
from resid.sequential.popularity import Popularity
from tests.faults.counts import COUNTS

TRIALS = int(os.environ.get("RESID_FAULT_TRIALS", "0"))
pytestmark = pytest.mark.timeout(300 + TRIALS)

COLUMNS = ("user", "item", "timestamp")


def trials(normally: int) -> settings:
    return settings(
        max_examples=TRIALS or normally,
        derandomize=not TRIALS,  # the normal run finds the same on every machine
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


def survives(call: Callable[[], object], kind: str) -> None:
    """Call; the only exception may be an `InputError`, whose message is one line that can be printed."""
    COUNTS[f"generated {kind}"] += 1
    try:
        call()
    except InputError as error:
        message = str(error)
        assert message
        assert "\n" not in message
        assert len(message) < 2_000


text = st.text(st.characters(codec="utf-8"), max_size=6)
integers = st.one_of(
    st.integers(0, 3), st.integers(-(2**127), 2**127 - 1), st.sampled_from([2**63, 2**64, -(2**63) - 1])
)
numbers = st.one_of(integers, st.floats(), st.sampled_from([1_582_848_000, 1_582_848_000_000]))
times = st.one_of(
    st.dates().map(str),
    st.datetimes().map(str),
    st.sampled_from(["28/02/2020", "02/03/2020", "2020-02-28 10:00:00 UTC", "28.2.20", "1e3", "0", "", "99/99/9999"]),
)
scalars = st.one_of(st.none(), st.booleans(), numbers, text, times, st.binary(max_size=4))
# Values of one type, so that most of them make a column.
kinds = st.sampled_from(
    [
        *(text, times, integers, st.floats(), st.booleans(), st.none(), st.binary(max_size=3), st.integers(0, 3)),
        *(
            st.dates(),
            st.datetimes(),
            st.times(),
            st.timedeltas(),
            st.decimals(allow_nan=False, allow_infinity=False, places=2),
        ),
        *(
            st.lists(text, max_size=3),
            st.lists(st.integers(0, 9), max_size=3),
            st.lists(st.lists(text, max_size=2), max_size=2),
        ),
        *(st.fixed_dictionaries({"a": st.integers(0, 9)}), scalars),
    ]
)


@st.composite
def tables(draw: st.DrawFn, names: tuple[str, ...]) -> pl.DataFrame:
    """A table with a few columns of a random type; the others are valid."""
    rows = draw(st.sampled_from([8, 12, 8, 12, 1, 0]))
    frame = pl.DataFrame({name: [n if name == "timestamp" else n % 2 for n in range(rows)] for name in names})
    if "store" in names:  # one row per item
        frame = frame.head(2)
        rows = len(frame)
    for name in draw(st.lists(st.sampled_from((*names, "__row__", "extra")), max_size=2)):
        kind = draw(kinds)
        values = draw(st.lists(kind, min_size=rows, max_size=rows))
        try:
            frame = frame.with_columns(pl.Series(name, values, strict=False))
        except ENGINE_ERRORS:
            continue  # Polars itself refuses to make such a column
    return frame


@trials(100)
@given(tables(COLUMNS), tables(("item", "store")), st.data())
def test_tables(log, items, data):
    options = {
        "k_core": 1,
        "missing": data.draw(st.sampled_from(["keep", "drop"])),
        "unlisted_items": data.draw(st.sampled_from(["missing", "error"])),
        "duplicates": data.draw(st.sampled_from(["keep", "drop"])),
        "keep": data.draw(st.sampled_from([None, ["extra"], []])),
    }
    fields = data.draw(st.sampled_from([["store"], [], ["store", "extra"]]))
    survives(lambda: Dataset.from_tables(log, items, fields, **options), "tables")


def damage(content: bytes, data: st.DataObject) -> bytes:
    """Return a file's content with some bytes replaced, removed or inserted."""
    for _ in range(data.draw(st.sampled_from([0, 0, 1, 2]))):
        place = data.draw(st.integers(0, len(content)))
        removed = data.draw(st.integers(0, 5))
        content = content[:place] + data.draw(st.binary(max_size=5)) + content[place + removed :]
    return content


json_values = st.recursive(
    scalars.filter(lambda value: not isinstance(value, bytes)),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(text, inner, max_size=2),
    max_leaves=4,
)


@st.composite
def files(draw: st.DrawFn) -> tuple[str, bytes]:
    """The name and the content of a file that is a table, or nearly."""
    suffix = draw(st.sampled_from([".csv", ".tsv", ".jsonl", ".parquet"]))
    if suffix == ".jsonl":
        odd = draw(st.lists(st.fixed_dictionaries({}, optional=dict.fromkeys(COLUMNS, json_values)), max_size=2))
        rows = [{"user": 1, "item": 2, "timestamp": 3} for _ in range(6)]
        content = "".join(json.dumps(row) + "\n" for row in [*rows, *(rows[0] | row for row in odd)]).encode()
    elif suffix == ".parquet":
        frame = draw(tables(COLUMNS))
        buffer = io.BytesIO()
        frame.select(name for name, type_ in frame.schema.items() if type_ != pl.Object).write_parquet(buffer)
        content = buffer.getvalue()
    else:
        separator = draw(st.sampled_from([{".csv": ",", ".tsv": "\t"}[suffix]] * 3 + [";"]))
        odd = draw(st.lists(st.lists(scalars.map(str), max_size=4), max_size=2))
        content = "\n".join(separator.join(row) for row in [list(COLUMNS), *[["a", "b", "3"]] * 6, *odd]).encode()
    encoding = draw(st.sampled_from(["utf-8"] * 6 + ["utf-16", "utf-16-le", "utf-8-sig"]))
    if suffix != ".parquet" and encoding != "utf-8":
        content = content.decode().encode(encoding)
    return suffix, content


@trials(100)
@given(files(), st.data())
def test_files(tmp_path_factory, file, data):
    suffix, content = file
    if suffix != ".parquet" and data.draw(st.booleans()):
        suffix, content = suffix + ".gz", gzip.compress(content)
    path = tmp_path_factory.getbasetemp() / f"table{suffix}"
    path.write_bytes(damage(content, data))
    chosen = data.draw(
        st.fixed_dictionaries(
            {},
            optional={
                "separator": st.sampled_from([";", "tab"]),
                "encoding": st.sampled_from(["utf-16", "latin-1"]),
                "timestamp_format": st.sampled_from(["%d/%m/%Y", "%Q", "%", "%s", "%z%z", "%+", "%H"]),
                "skip_bad_lines": st.booleans(),
            },
        )
    )
    # Each of them makes most files invalid, so that more than one is rarely of interest.
    options = dict(list(chosen.items())[:1]) if data.draw(st.booleans()) else {}
    survives(lambda: Dataset.from_tables(path, k_core=1, **options), "files")


toml_values = st.one_of(
    st.sampled_from(
        ["1", "-1", "0.5", "nan", '"x"', "true", "[]", "[1, 2]", "{a = 1}", "1979-05-27", "0x" + "f" * 5_000]
    ),
    st.integers().map(str),
)
toml_lines = st.one_of(
    st.builds("{} = {}".format, st.sampled_from(["kind", "epochs", "seed", "description", "method", "x"]), toml_values),
    st.sampled_from(
        ["[recommender]", "[encoder]", "[[recommender]]", "[x]", 'kind = "popularity"', 'kind = "sasrec"', "="]
    ),
    st.text(max_size=8),
)


@trials(60)
@example(["[recommender]", "x = " + "[" * 20_000 + "]" * 20_000], [])
@example(["[recommender]", "seed = " + "9" * 5_000], [])
@example(['method = ["a"]'], [])
@given(st.lists(toml_lines, max_size=5), st.lists(st.binary(max_size=3), max_size=1))
def test_recipes(tmp_path_factory, lines, rest):
    path = tmp_path_factory.getbasetemp() / "recipe.toml"
    path.write_bytes("\n".join(lines).encode(errors="surrogatepass") + b"".join(rest))
    survives(lambda: Recipe.read(path), "recipes")


arguments = st.one_of(
    scalars,
    st.lists(scalars, max_size=3),
    st.dictionaries(st.sampled_from(["user", "item", "x"]), scalars, max_size=2),
    st.sampled_from(
        ["drop", "keep", ["store"], {"user": "item"}, {"item": 5}, object(), slice(1), 10**5_000, "\ud800"]
    ),
)
names = st.sampled_from(
    (
        *(
            "fields",
            "columns",
            "keep",
            "k_core",
            "missing",
            "min_interactions",
            "max_length",
            "path_levels",
            "unlisted_items",
        ),
        *("unseen_targets", "duplicates", "separator", "encoding", "timestamp_format", "scratch"),
    )
)
LOG = pl.DataFrame({"user": [1] * 4, "item": [1, 2, 3, 1], "timestamp": [1, 2, 3, 4]})
ITEMS = pl.DataFrame({"item": [1, 2, 3], "store": ["a", "b", "a"]})


@trials(60)
@given(st.dictionaries(names, arguments, min_size=1, max_size=2))
def test_arguments(changes):
    survives(lambda: Dataset.from_tables(LOG, ITEMS, **{"fields": ["store"], "k_core": 1} | changes), "arguments")


@pytest.fixture(scope="module")
def model():
    return Popularity().fit(Dataset.from_tables(LOG, k_core=1))


ids = st.one_of(
    scalars,
    st.sampled_from(
        [np.array(3), np.int64(2), np.str_("a"), slice(1), (1, 2), [1], {1}, {1: 2}, "\ud800", date(2020, 1, 1)]
    ),
    st.sampled_from([float("nan"), Decimal(1), datetime(2020, 1, 1), object(), 10**5_000, pl.Series([1]), range(2)]),
)
histories = st.one_of(
    ids,
    st.lists(ids, max_size=3),
    st.lists(st.lists(ids, max_size=3) | ids, max_size=3),
    st.lists(st.integers(1, 3), max_size=3).map(np.array),
    st.lists(st.integers(1, 3), max_size=3).map(pl.Series),
    st.lists(st.lists(st.integers(1, 3), max_size=3), max_size=3).map(pl.Series),
    st.sampled_from([LOG, ITEMS.to_dict(), np.zeros((2, 2, 2), dtype=int), np.array(3), iter([1]), None, Ellipsis]),
)


@trials(150)
@example(np.array(3), None, None, None)
@example([[["nested"]]], None, None, None)
@example([slice(1)], None, None, None)
@example([["\ud800"]], None, None, None)
@example([[1], pl.Series([2])], {1}, iter([2]), [slice(1), 2])
@given(histories, st.none() | histories, st.none() | histories, st.none() | histories)
def test_histories(model, history, allow, deny, users):
    survives(lambda: model.recommend(history, 2, allow=allow, deny=deny, users=users), "histories and filters")


def test_series_and_arrays_are_lists(model):
    expected = model.recommend([[1, 2], [3]], 2, exclude_seen=True)[0].tolist()
    for same in (
        pl.Series([[1, 2], [3]]),
        [np.array([1, 2]), pl.Series([3])],
        ((1, 2), (3,)),
        (row for row in ([1, 2], [3])),
    ):
        assert model.recommend(same, 2, exclude_seen=True)[0].tolist() == expected


@pytest.mark.parametrize("history", [[{1, 2}], {1: 2}, {1}, [frozenset([1])]])
def test_a_history_has_an_order(model, history):
    with pytest.raises(InputError, match="of item ids"):
        model.recommend(history, 2)


def test_ids_as_text():
    texts = ["5", " -7 ", "--5", "1_000", "9" * 5_000, "x", "²"]
    assert parse_ids(texts, pl.Int64()) == [5, -7, "--5", "1_000", "9" * 5_000, "x", "²"]


def test_indices_of_what_is_no_id(model):
    data = Dataset.from_tables(LOG, k_core=1)
    for find in (data.item_indices, data.user_indices, model.catalogue_.find):
        for wrong in (5, "abc", np.array(3), [[1]], [slice(1)]):
            with pytest.raises(InputError):
                find(wrong)


def test_a_setting_of_many_digits():
    with pytest.raises(InputError, match=r"invalid value .* for 'epochs'"):
        Recipe.read("sasrec").replace({"recommender.epochs": -(10**5_000)})
