"""Tables of any content at all: they are used, or refused in a sentence that names the file."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest
from harness import EXAMPLES, refused, run, survived
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from fedskew.data.build import build
from fedskew.data.own import check_learnable, load_own
from fedskew.errors import FedskewError

CELLS = st.one_of(
    st.sampled_from([
        "", " ", "NA", "?", "0", "1", "-0", "007", "1_0", "1e400", "-inf", "nan", "9" * 400, "yes",
        "No", "TRUE", "2024-02-30", "2024-02-28", "1.2.2024", "3/4/2024", "0000-00-00",
        "9999-99-99", "1,5", "1.234,5", "1,234", "−1", "½", "١٢", "\u2028", "\ufeff", "'", '"',
        '""', "a;b", "\t", "=1+1", "2024-01-01T25:00", "2024-01-01 00:00:00+99:99", "x" * 2000,
    ]),
    st.integers(-(10**20), 10**20).map(str),
    st.floats().map(str),
    st.text(st.characters(exclude_categories=["Cc", "Cs"]), max_size=6),
)  # fmt: skip
COLUMNS = st.one_of(
    st.lists(CELLS, min_size=12, max_size=12),
    st.lists(st.sampled_from(["a", "b", "7", ""]), min_size=12, max_size=12),
    st.lists(st.integers(0, 9).map(str), min_size=12, max_size=12),
    st.lists(st.floats(width=16).map(str), min_size=12, max_size=12),
)
KINDS = st.sampled_from(["number", "category", "hash", "boolean", "date", "ignore", "client"])


def content(names: list[str], columns: list[list[str]], separator: str, encoding: str) -> bytes:
    out = io.StringIO(newline="")
    writer = csv.writer(out, delimiter=separator)
    writer.writerows([[*names, "label"], *zip(*columns, "ab" * 6, strict=True)])
    return out.getvalue().encode(encoding, "replace")


@settings(max_examples=15 * EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    columns=st.lists(COLUMNS, min_size=1, max_size=4),
    names=st.lists(st.text('abc ,;é"', max_size=3), min_size=4, max_size=4, unique=True),
    separator=st.sampled_from(",;\t|"),
    encoding=st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "cp1252"]),
    told=st.dictionaries(st.integers(0, 4), KINDS, max_size=3),
    normalise=st.sampled_from(["standard", "unit", "client"]),
    clients=st.booleans(),
)
def test_tables_of_anything_are_used_or_refused(
    columns: list[list[str]], names: list[str], separator: str, encoding: str,
    told: dict[int, str], normalise: str, clients: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:  # fmt: skip
    folder = tmp_path_factory.mktemp("table")
    header = [names[i] for i in range(len(columns))]
    files = ("ann.csv", "bob.csv") if clients else ("all.csv",)
    for name in files:
        (folder / name).write_bytes(content(header, columns, separator, encoding))
    listed: Any = {[*header, "label"][i % (len(columns) + 1)]: k for i, k in told.items()}
    try:
        dataset = load_own(
            folder if clients else folder / files[0], normalise=normalise, columns=listed or None
        )
        check_learnable(str(folder), dataset)
        made = build(
            dataset, partition="owner" if clients else "iid", clients=None if clients else 2, seed=0
        )
    except FedskewError as error:
        said = str(error)
        assert len(said) < 3000
        assert said.endswith((".", "?")), said
        return
    assert made.x.isfinite().all()


DAMAGE = {
    "a quote that never closes": b'f,g,label\n1,"2,a\n3,4,b\n',
    "half of a UTF-16 letter": "f,g,label\n1,2,a\n".encode("utf-16")[:-1],
    "UTF-32": "f,g,label\n1,2,a\n".encode("utf-32"),
    "no header": b"1,2,0\n3,4,1\n" * 9,
    "an empty name for the label": b"f,g,\n1,2,a\n3,4,b\n",
    "columns told in one column": b"f g label\n1 2 a\n3 4 b\n",
    "words where numbers were": b"f,g,label\n" + b"1,2,a\n3,4,b\n" * 9 + b"x,4,b\n",
    "two dates in one": b"f,g,label\n" + b"03/04/2024,2,a\n05/06/2024,4,b\n" * 9,
    "thousands or not": b"f\tg\tlabel\n" + b"1,234\t2\ta\n5,678\t4\tb\n" * 9,
    "nothing but names": b"f,g,label\n" + b"".join(b"x%d,y%d,%c\n" % (i, i, 97 + i % 2)
                                                   for i in range(30)),
    "nothing at all": b"f,g,label\n" + b"NA,,a\n?,-,b\n" * 9,
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGE)
def test_tables_nobody_can_learn_from_are_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(DAMAGE[name])
    assert str(path) in refused(tmp_path, *run(tmp_path, f"federation.dataset={path}"))


FINE = b"f,g,label\n" + b"1,x,a\n3,y,b\n2,x,a\n5,y,b\n" * 9


@pytest.mark.parametrize(
    "columns", ["{f='numbr'}", "{ff='number'}", "{label='ignore'}", "{f='client',g='client'}",
                "{f='ignore',g='ignore'}", "{f='date'}", "3", "{f=1}"],
)  # fmt: skip
def test_columns_told_wrongly_are_refused(columns: str, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(FINE)
    told = (f"federation.dataset={path}", f"federation.columns={columns}")
    refused(tmp_path, *run(tmp_path, *told))


def test_the_same_table_without_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(FINE)
    assert survived(tmp_path, *run(tmp_path, f"federation.dataset={path}")) == 0


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(place=st.integers(0, 10**6), change=st.binary(min_size=1, max_size=8), cut=st.booleans())
def test_damaged_parquet_is_used_or_refused(
    place: int, change: bytes, cut: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    folder = tmp_path_factory.mktemp("parquet")
    cells = {"f": [1, None, 3, 5] * 9, "w": ["x", "y", "x", None] * 9, "label": ["a", "b"] * 18}
    parquet.write_table(pyarrow.table(cells), folder / "a.parquet")
    whole = (folder / "a.parquet").read_bytes()
    at = place % len(whole)
    damaged = whole[:at] + change + (b"" if cut else whole[at + len(change) :])
    assume(damaged != whole)
    (folder / "a.parquet").write_bytes(damaged)
    survived(folder, *run(folder, f"federation.dataset={folder / 'a.parquet'}"))
