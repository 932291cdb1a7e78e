"""CSV files as spreadsheets and programs write them, Parquet, and tables below one another."""

from __future__ import annotations

import csv
import gzip
import io
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedskew.data.tables.reading import joined, read_table
from fedskew.errors import DataError


def cells_of(path: Path) -> dict[str, list[Any]]:
    return {name: cells.tolist() for name, cells in read_table(path).columns.items()}


def written(folder: Path, content: str | bytes, name: str = "t.csv") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
def test_any_usual_separator_and_line_ending(separator: str, ending: str, tmp_path: Path) -> None:
    lines = [separator.join(cells) for cells in (("age", "ward"), ("1", "a b"), ("2.5", "c"))]
    found = cells_of(written(tmp_path, ending.join(lines) + ending))
    assert found == {"age": ["1", "2.5"], "ward": ["a b", "c"]}


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@given(
    rows=st.lists(
        st.tuples(*[st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]))] * 2),
        min_size=1, max_size=8,
    )
)  # fmt: skip
def test_what_the_csv_module_wrote_is_read_back(
    separator: str, rows: list[tuple[str, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Quotes, separators and line breaks inside cells; without commas, which numbers may have."""
    rows = [tuple(f"w{cell.replace(',', '')}\n" for cell in row) for row in rows]
    out = io.StringIO(newline="")
    csv.writer(out, delimiter=separator).writerows([("first", "second"), *rows])
    found = cells_of(written(tmp_path_factory.mktemp("csv"), out.getvalue()))
    assert list(zip(found["first"], found["second"], strict=True)) == rows


@pytest.mark.parametrize(
    ("encoding", "mark"),
    [("utf-8", b""), ("utf-8", b"\xef\xbb\xbf"), ("utf-16", b""), ("cp1252", b""),
     ("utf-16-be", b"\xfe\xff"), ("utf-16-le", b"\xff\xfe")],
)  # fmt: skip
def test_any_usual_encoding(encoding: str, mark: bytes, tmp_path: Path) -> None:
    text = "größe;lieu\n1;Orléans\n"
    found = cells_of(written(tmp_path, mark + text.encode(encoding)))
    assert found == {"größe": ["1"], "lieu": ["Orléans"]}


def test_bytes_that_windows_does_not_use_are_latin_1(tmp_path: Path) -> None:
    assert cells_of(written(tmp_path, b"a,b\n1,caf\xe9\x81\n"))["b"] == ["caf\xe9\x81"]


def test_a_packed_table_is_unpacked(tmp_path: Path) -> None:
    assert cells_of(written(tmp_path, gzip.compress(b"a,b\n1,2\n"))) == {"a": ["1"], "b": ["2"]}


@pytest.mark.parametrize(
    ("content", "numbers"),
    [
        ("a;b\n1,5;x\n-2,25;y\n", ["1.5", "-2.25"]),
        ("a;b\n1.234,5;x\n2;y\n", ["1234.5", "2"]),
        ("a;b\n1,234;x\n12;y\n", ["1.234", "12"]),
        ('a,b\n"1,234",x\n"1,234,567.5",y\n', ["1234", "1234567.5"]),
        ('a,b\n"1,5",x\n2,y\n', ["1.5", "2"]),
        ('a,b\n"0,123",x\n2,y\n', ["0.123", "2"]),
        ("a\tb\n1,5\tx\n2,125\ty\n", ["1.5", "2.125"]),
        ("a;b\n1,5;x\nNA;y\n", ["1.5", "NA"]),
        ("a;b\n1,5e3;x\n+2;y\n", ["1.5e3", "+2"]),
    ],
)
def test_decimal_commas_and_thousands(content: str, numbers: list[str], tmp_path: Path) -> None:
    assert cells_of(written(tmp_path, content))["a"] == numbers


@pytest.mark.parametrize("cells", ["1,5;A2,x", "red, green;blue", "1,5;1.5", "1,23,4;2"])
def test_commas_in_words_stay(cells: str, tmp_path: Path) -> None:
    first, second = cells.split(";")
    assert cells_of(written(tmp_path, f"a;b\n{first};x\n{second};y\n"))["a"] == [first, second]


def test_a_number_that_may_be_two_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "a\tb\n1,234\tx\n2,345\ty\n")
    with pytest.raises(DataError, match=r"column 'a' holds '.,...', which may be .* or .*: write"):
        read_table(path)


def test_blank_lines_and_empty_ends_are_left_out(tmp_path: Path) -> None:
    content = "\na,b\n1,2\n\n   \n3,4\n,\n,\n\n"
    assert cells_of(written(tmp_path, content)) == {"a": ["1", "3"], "b": ["2", "4"]}


def test_a_gap_in_the_middle_is_a_row(tmp_path: Path) -> None:
    assert cells_of(written(tmp_path, "a,b\n1,2\n,\n3,4\n"))["a"] == ["1", "", "3"]


def test_columns_without_a_name_are_numbered(tmp_path: Path) -> None:
    assert list(cells_of(written(tmp_path, ",a, b \n0,1,2\n"))) == ["column 1", "a", "b"]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "t.csv is empty: it needs a header row."),
        ("\n \n\n", "t.csv is empty: it needs a header row."),
        ("a,b\n1,2\n1,2,3\n", "t.csv: line 3 has 3 cells where the header has 2"),
        ('a,b\n"1\n\n",2\n\n1\n', "t.csv: line 6 has 1 cells where the header has 2"),
        ("a;b;a\n1;2;3\n", "t.csv has two columns named 'a'."),
        ('a,b\n1,"2\n3,4\n', "t.csv: a quote is opened after line 1 and never closed."),
        ("a,b\n1,\x002\n", "t.csv is not a table in text: it holds control characters."),
        (b"\xff\xfea\x00\x00", "t.csv begins like utf-16 text, but is not."),
        (f"a,b\n1,{'x' * 1_000_001}\n", "t.csv is not a CSV file: field larger than field limit"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(
    content: str | bytes, sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError) as info:
        read_table(written(tmp_path, content))
    assert sentence in str(info.value)


def test_long_cells_are_read(tmp_path: Path) -> None:
    assert cells_of(written(tmp_path, f"a,b\n{'x' * 999_999},1\n"))["a"] == ["x" * 999_999]


def test_quotes_inside_a_cell_are_letters(tmp_path: Path) -> None:
    assert cells_of(written(tmp_path, 'a,b\n5" pipe,"6"" pipe"\n')) == {
        "a": ['5" pipe'], "b": ['6" pipe'],
    }  # fmt: skip


pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def parquet_at(folder: Path, **columns: Any) -> Path:
    parquet.write_table(pyarrow.table(columns), folder / "t.parquet")
    return folder / "t.parquet"


def test_parquet_keeps_the_kinds_of_columns(tmp_path: Path) -> None:
    day = datetime(2024, 3, 1, 12)
    path = parquet_at(
        tmp_path,
        number=[1, None, 3],
        truth=[True, None, False],
        day=[date(2024, 3, 1), None, date(2024, 3, 2)],
        moment=pyarrow.array([day, None, day], pyarrow.timestamp("ns", tz="Europe/Berlin")),
        word=pyarrow.array(["a", None, "b"]).dictionary_encode(),
        price=[Decimal("1.50"), None, Decimal("2.25")],
        stay=pyarrow.array([86_400, None, 43_200], pyarrow.duration("s")),
    )
    found = read_table(path).columns
    np.testing.assert_array_equal(found["number"], [1.0, np.nan, 3.0])
    assert found["truth"].tolist() == [True, None, False]
    days = np.array(["2024-03-01", "NaT", "2024-03-02"], "datetime64[us]")
    np.testing.assert_array_equal(found["day"], days)
    moments = np.array(["2024-03-01T12:00", "NaT", "2024-03-01T12:00"], "datetime64[us]")
    np.testing.assert_array_equal(found["moment"], moments)
    assert found["word"].tolist() == ["a", None, "b"]
    np.testing.assert_array_equal(found["price"], [1.5, np.nan, 2.25])
    np.testing.assert_array_equal(found["stay"], [1.0, np.nan, 0.5])


def test_parquet_that_is_no_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"column 'a' holds list.*not one value a row: leave it out"
    ):
        read_table(parquet_at(tmp_path, a=[[1], [2]]))
    twice = pyarrow.table([[1], [2]], names=["a", "a"])
    parquet.write_table(twice, tmp_path / "t.parquet")
    with pytest.raises(DataError, match="has two columns named 'a'"):
        read_table(tmp_path / "t.parquet")
    with pytest.raises(DataError, match="is not a complete Parquet file"):
        read_table(written(tmp_path, b"PAR1 and nothing", "t.parquet"))


def test_tables_below_one_another_name_the_row_of_a_file(tmp_path: Path) -> None:
    one = read_table(written(tmp_path, "a,b\n1,x\n2,y\n", "one.csv"))
    two = read_table(written(tmp_path, "b,a\nz,3\n", "two.csv"))
    table = joined(tmp_path, [one, two])
    assert table.columns["a"].tolist() == ["1", "2", "3"]
    assert table.columns["b"].tolist() == ["x", "y", "z"]
    assert table.places.at(1).endswith("one.csv: row 2")
    assert table.places.at(2).endswith("two.csv: row 1")
    assert table.places.take(np.array([2, 0])).at(0).endswith("two.csv: row 1")
    with pytest.raises(DataError, match=r"two\.csv and .*one\.csv differ in column 'b'"):
        joined(tmp_path, [one, two.without(["b"])])


def test_dates_below_text_stay_dates(tmp_path: Path) -> None:
    one = read_table(parquet_at(tmp_path, day=[date(2024, 3, 1)]))
    two = read_table(written(tmp_path, "day,x\n2024-03-02,1\n")).without(["x"])
    cells = joined(tmp_path, [one, two]).columns["day"].tolist()
    assert [str(cell) for cell in cells] == ["2024-03-01 00:00:00", "2024-03-02"]
