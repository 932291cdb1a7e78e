"""What clients tell of columns, against the same figures of all rows together."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedskew.data.tables.kinds import Column, recognised
from fedskew.data.tables.reading import table_of
from fedskew.data.tables.sums import ColumnSums, TableSums, centre_and_scale, words_of

numbers = arrays(np.float64, st.integers(1, 30), elements=st.floats(-1e6, 1e6, width=32))


def told(values: np.ndarray) -> ColumnSums:
    return ColumnSums.of(Column("a", "number", values), np.arange(len(values)))


@given(st.lists(numbers, min_size=1, max_size=5))
def test_mean_and_deviation_are_those_of_all_rows(parts: list[np.ndarray]) -> None:
    pooled = np.concatenate(parts)
    centre, scale = centre_and_scale([told(part) for part in parts], robust=False)
    assert centre == pytest.approx(pooled.mean(), rel=1e-9, abs=1e-6)
    if scale:
        assert scale == pytest.approx(pooled.std(), rel=1e-6, abs=1e-6)
    else:
        assert pooled.std() <= 1e-5 * max(1.0, np.abs(pooled).max())


@given(st.lists(numbers, min_size=1, max_size=5))
def test_the_centre_lies_as_the_median_between_those_of_clients(parts: list[np.ndarray]) -> None:
    """So it is off by no more than clients' medians lie apart, and exact for one client."""
    medians = [float(np.median(part)) for part in parts]
    centre, _ = centre_and_scale([told(part) for part in parts], robust=True)
    slack = 1e-9 * max(1.0, *map(abs, medians))
    for each in (centre, float(np.median(np.concatenate(parts)))):
        assert min(medians) - slack <= each <= max(medians) + slack


def test_the_scale_of_one_client_is_its_quartiles_and_wild_values_do_not_move_it() -> None:
    values = np.random.default_rng(0).normal(size=2001)
    centre, scale = centre_and_scale([told(values)], robust=True)
    low, high = np.quantile(values, (0.25, 0.75))
    assert centre == pytest.approx(np.median(values))
    assert scale == pytest.approx((high - low) / 1.349)
    assert scale == pytest.approx(1.0, abs=0.05)
    values[:20] = 1e9
    assert centre_and_scale([told(values)], robust=True)[1] == pytest.approx(1.0, abs=0.1)


def test_half_of_all_values_alike_do_not_make_the_scale_zero() -> None:
    values = np.array([0.0] * 8 + [1.0, 5.0])
    assert centre_and_scale([told(values)], robust=True)[1] == pytest.approx(values.std())


def test_clients_apart_are_far_apart_in_the_scale() -> None:
    """Var = mean of the clients' + that of their medians: by hand, 1 and 10² over two like it."""
    near, far = np.linspace(-1, 1, 101), np.linspace(19, 21, 101)
    within = (1.0 / 1.349) ** 2
    centre, scale = centre_and_scale([told(near), told(far)], robust=True)
    assert centre == pytest.approx(10.0)
    assert scale == pytest.approx(np.sqrt(within + 100))


def words(*cells: str) -> ColumnSums:
    columns = recognised(table_of("t", {"a": list(cells)}), {"a": "category"})
    return ColumnSums.of(columns.used[0], np.arange(len(cells)))


def test_words_are_told_where_they_do_not_name_a_row() -> None:
    assert words("b", "a", "b", "a").words == ("a", "b")
    assert words("b", "a", "b").words == ()
    assert words(*[f"w{i}" for i in range(21)] * 2).words is None
    assert words_of([words("b", "b", "a", "a"), words("c", "c"), words("z")]) == ("a", "b", "c")
    many = [words(*[f"{k}{i}" for i in range(11)] * 2) for k in "xy"]
    assert words_of(many[:1]) == tuple(sorted(f"x{i}" for i in range(11)))
    assert words_of(many) == ()
    assert words_of([words("b", "b"), words(*[f"w{i}" for i in range(21)] * 2)]) == ()


def test_a_message_holds_all_of_it() -> None:
    cells = {"a": ["1", "2.5", "", "4"], "w": ["x", "y", "x", "y"], "n": [1, 2, 3, 4]}
    columns = recognised(table_of("t", cells), {})
    for rows in (np.arange(4), np.array([0, 1, 3])):
        sent = TableSums.of(columns, rows)
        assert TableSums.read(json.loads(json.dumps(sent.plain()))) == sent
    assert sent.without_words().columns["w"].words is None
    assert sent.without_words().columns["a"] == sent.columns["a"]


def test_plain_numbers_tell_the_moments_of_any_samples() -> None:
    columns = recognised(table_of("t", {"a": [1, 2, 3], "b": ["5", "", "x"]}), {})
    assert TableSums.of(columns, np.arange(2)).moments is None
    moments = TableSums.of(columns, np.array([0])).moments
    assert moments is not None
    assert (moments.count, moments.total.tolist()) == (1, [[1.0, 5.0]])
