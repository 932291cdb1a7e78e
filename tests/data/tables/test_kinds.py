"""What columns are, by their cells or as told; cells that are mistakes are named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedskew.data.tables.cells import text_of
from fedskew.data.tables.kinds import Column, column_of, recognised
from fedskew.data.tables.reading import Table, table_of
from fedskew.errors import DataError


def table(cells: Any) -> Table:
    return table_of("t.csv", {"a": cells})


def found(cells: Any) -> Column:
    return recognised(table(cells), {}).used[0]


def kind(cells: Any) -> str:
    column = found(cells)
    return column.fits(np.arange(len(column.values)))[0]


def read(cells: Any) -> list[float]:
    column = found(cells)
    return column.read_as(kind(cells)).values.tolist()


@pytest.mark.parametrize(
    ("cells", "expected", "values"),
    [
        (["1", " -2.5", "+3e2"], "number", [1, -2.5, 300]),
        (["1", "NA", "3"], "number", [1, np.nan, 3]),
        (["1", "0", "1"], "number", [1, 0, 1]),
        ([1, 2], "number", [1, 2]),
        (["yes", "No", "TRUE", "0"], "boolean", [1, 0, 1, 0]),
        ([True, False], "boolean", [1, 0]),
        (["1970-01-02", "1970/1/3 12:00", ""], "date", [1, 2.5, np.nan]),
        (["2.1.1970", "31.12.1969"], "date", [1, -1]),
        (["1970-01-02T00:00:00Z", "1970-01-02T01:00:00+01:00"], "date", [1, 1]),
        (np.array(["1970-01-02", "NaT"], "datetime64[ns]"), "date", [1, np.nan]),
        (["b", "a", "b"], "category", [0, 1, 0]),
        (["007", "12", "13"], "category", [0, 1, 2]),
        (["1_000", "x", "y"], "category", [0, 1, 2]),
        ([None, None], "number", [np.nan, np.nan]),
    ],
)
def test_a_column_is_the_first_kind_that_all_cells_fit(
    cells: Any, expected: str, values: list[float]
) -> None:
    assert kind(cells) == expected
    np.testing.assert_array_equal(read(cells), values)


@pytest.mark.parametrize(
    "mark", ["", " ", "NA", "n/a", "#N/A", "NaN", "null", "?", "-", ".", "<NA>", None]
)
def test_what_stands_for_a_missing_value(mark: str | None) -> None:
    assert text_of(mark) is None
    assert np.isnan(read(["1", mark, "3"])[1])


@pytest.mark.parametrize(
    ("cells", "sentence"),
    [
        (
            ["1", "2", "old", "4"],
            "t.csv: row 3, column 'a' holds 'old', which is not a number: mend it, or set "
            "federation.columns = {a = 'category'}, or 'ignore' to leave it out.",
        ),
        (["2024-01-01", "2024-02-30", "2024-03-01"], "row 2, column 'a' holds '2024-02-30', which"),
        (["", "1", "2", "x"], "row 4, column 'a' holds 'x', which is not a number"),
        (
            ["03/04/2024", "", "05/04/2024"],
            "row 1, column 'a' holds '03/04/2024', which can be read as a date in two ways: write "
            "dates like 2024-03-31",
        ),
        (["1.2.24", "2.2.24"], "row 1, column 'a' holds '1.2.24', which can be read as a date"),
    ],
)
def test_a_cell_unlike_most_of_its_column_is_a_mistake(cells: list[str], sentence: str) -> None:
    with pytest.raises(DataError) as info:
        kind(cells)
    assert sentence in str(info.value)


@pytest.mark.parametrize("cells", [["1", "1e39"], ["inf", "2"], [1.0, np.inf]])
def test_numbers_too_large_are_named(cells: list[Any]) -> None:
    with pytest.raises(
        DataError, match=r"t.csv: row ., column 'a' holds .*, which is not a finite"
    ):
        found(cells)


def test_rows_decide_and_other_rows_do_not() -> None:
    """Test rows, or those of unseen clients, change nothing but are held to what was found."""
    column = found(["1", "0", "2024-01-01", "x"])
    assert column.fits(np.array([0, 1])) == ("number", "boolean")
    assert column.fits(np.array([2])) == ("date",)
    assert column.fits(np.array([], np.int64)) == ("number", "boolean", "date", "category")
    with pytest.raises(DataError, match="row 3, column 'a' holds '2024-01-01', which is not a num"):
        column.read_as("number")


def test_what_is_told_is_believed_where_it_can_be() -> None:
    assert column_of(table(["007", "12"]), "a", "number").values.tolist() == [7, 12]
    assert column_of(table([1, 0, 1]), "a", "boolean").values.tolist() == [1, 0, 1]
    words = column_of(table([1.0, 2.5]), "a", "category")
    assert (words.words, words.values.tolist()) == (("1", "2.5"), [0, 1])
    assert column_of(table([np.nan, np.nan]), "a", "date").kind == "date"
    with pytest.raises(DataError, match="column 'a' holds 2, which is not yes or no"):
        column_of(table([1, 2]), "a", "boolean")
    with pytest.raises(
        DataError, match="column 'a' holds values of kind number, not date: mend it"
    ):
        column_of(table([1, 2]), "a", "date")


def test_columns_keep_the_rows_they_were_read_from() -> None:
    columns = recognised(table(["x", "y", "1", "2"]), {}).take(np.array([3, 0]))
    with pytest.raises(DataError, match="row 1, column 'a' holds 'x', which is not a number"):
        columns.used[0].read_as("number")


def test_a_name_that_is_no_key_is_quoted_in_the_remedy() -> None:
    made = table_of("t.csv", {"my age": ["1", "2", "x"]})
    with pytest.raises(DataError, match=r"federation.columns = \{\"my age\" = 'category'\}"):
        recognised(made, {}).used[0].fits(np.arange(3))
