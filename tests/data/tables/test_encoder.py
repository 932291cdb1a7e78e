"""Rows become samples: against scikit-learn's transformers, and by hand."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from sklearn.feature_extraction import FeatureHasher
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder, RobustScaler, StandardScaler

from fedskew.data.tables.encoder import FARTHEST, TableEncoder
from fedskew.data.tables.fitting import fitted
from fedskew.data.tables.kinds import recognised
from fedskew.data.tables.reading import table_of
from fedskew.data.tables.sums import TableSums
from fedskew.errors import DataError

RNG = np.random.default_rng(7)


def encoder_of(clients: list[dict[str, Any]], told: Any = None, **settings: Any) -> TableEncoder:
    """What follows from clients' tables, all rows of which are for training."""
    names = ("ann", "bob", "cleo")
    sums = {}
    for name, cells in zip(names, clients, strict=False):
        columns = recognised(table_of(name, cells), told or {})
        sums[name] = TableSums.of(columns, np.arange(len(next(iter(cells.values())))))
    return fitted("t.csv", sums, **settings)


def encoded(clients: list[dict[str, Any]], new: dict[str, Any] | None = None, **s: Any) -> Any:
    pooled = {name: [c for each in clients for c in each[name]] for name in clients[0]}
    return encoder_of(clients, **s).encode(table_of("t", new or pooled))


def split(cells: dict[str, Any], at: int) -> list[dict[str, Any]]:
    return [{n: c[:at] for n, c in cells.items()}, {n: c[at:] for n, c in cells.items()}]


def test_plain_numbers_are_standardised_as_by_scikit_learn_over_all_clients() -> None:
    x = RNG.normal([5, -3], [2, 10], size=(50, 2))
    made = encoded(split({"a": x[:, 0], "b": x[:, 1]}, 20))
    np.testing.assert_allclose(made, StandardScaler().fit_transform(x), rtol=1e-5, atol=1e-5)


def test_words_are_one_hot_as_by_scikit_learn_over_all_clients() -> None:
    ward = RNG.choice(["eyes", "burns", "hearts"], 60).astype(object)
    clients = split({"ward": ward}, 25)
    new = ["hearts", "ears", "burns", None]
    sk = OneHotEncoder(handle_unknown="ignore", sparse_output=False).fit(ward[:, None])
    expected = sk.transform(np.array(new, dtype=object)[:, None])
    np.testing.assert_array_equal(encoded(clients, {"ward": new}), expected)
    assert encoder_of(clients).outputs == ("ward=burns", "ward=eyes", "ward=hearts")


def test_one_client_is_scaled_as_by_scikit_learns_robust_scaler_with_medians_filled_in() -> None:
    x = RNG.normal(100, 7, size=40)
    x[[3, 9]] = np.nan
    filled = SimpleImputer(strategy="median").fit_transform(x[:, None])
    scaler = RobustScaler(unit_variance=True).fit(x[:, None])
    made = encoded([{"a": x}])
    assert made.shape == (40, 2)
    # unit_variance divides by 1.34898, the quartiles of a normal law.
    expected = scaler.transform(filled)[:, 0]
    np.testing.assert_allclose(made[:, 0], expected, rtol=2e-4, atol=2e-4)
    np.testing.assert_array_equal(made[:, 1], np.isnan(x))


def test_many_words_are_hashed_as_by_scikit_learn() -> None:
    words = [f"w{i}" for i in range(30)]
    clients = [{"code": words[:20] * 2}, {"code": words[10:] * 2}]
    hasher = FeatureHasher(32, input_type="string", alternate_sign=False)
    expected = hasher.transform([[word] for word in [*words, "new"]]).toarray()
    new = {"code": [*words, "new", None]}
    made = encoded(clients, new)
    np.testing.assert_array_equal(made[:-1], expected)
    assert not made[-1].any()


def test_what_is_missing_becomes_the_common_value_and_a_flag_by_hand() -> None:
    clients = [
        {"a": [1.0, 2.0, 3.0, None], "b": ["yes", "no", None, "yes"], "w": ["x", None, "x", "x"]},
        {"a": [5.0], "b": ["0"], "w": ["x"]},
    ]
    encoder = encoder_of(clients)
    assert encoder.outputs == ("a", "a missing", "b", "b missing", "w=x", "w missing")
    # Medians 2 of three and 5 of one: centre 11/4; share of yes 2/4.
    a, b, _ = encoder.columns
    assert (a.fill, a.shift, b.fill) == (2.75, 2.75, 0.5)
    made = encoder.encode(table_of("new", {"w": ["z", None], "b": ["NA", "true"], "a": ["", 9]}))
    assert made[0].tolist() == [0.0, 1.0, 0.5, 1.0, 0.0, 0.0]
    assert made[1, [1, 2, 3, 4, 5]].tolist() == [0.0, 1.0, 0.0, 0.0, 1.0]


def test_a_column_that_one_client_has_no_value_of_is_scaled_by_the_others() -> None:
    with_it, without = {"a": [1.0, 2.0, 6.0], "b": [1, 2, 3]}, {"a": ["", "NA"], "b": [4, 5]}
    encoder = encoder_of([with_it, without])
    assert encoder.columns[0].fill == 2.0
    assert encoder.columns[0].flagged
    assert encoder_of([without, with_it]).columns[0].fill == 2.0


def test_wild_values_are_held_at_six_deviations() -> None:
    made = encoded([{"a": [*np.linspace(-1, 1, 99), None, 1e12]}])
    assert made[-1, 0] == FARTHEST
    assert np.abs(made[:99, 0]).max() < 2


def test_large_numbers_keep_their_differences() -> None:
    """Single precision tells seconds since 1970 apart by two minutes."""
    made = encoded([{"time": [1.7e9 + i for i in range(9)] + [None]}])
    assert np.diff(made[:9, 0]).min() > 0


def test_dates_are_days_and_read_alike_whatever_they_are_written_like() -> None:
    days = ["2024-03-01", "2024-03-03", "2024-03-05", "2024-03-09"]
    clients = [{"seen": days, "n": [1, 2, 3, 5]}]
    same = {"seen": ["1.3.2024", "2024/3/3", "2024-03-05T00:00", "2024-03-09 00:00:00"]}
    stored = {"seen": np.array(days, "datetime64[ns]")}
    expected = encoded(clients, {"seen": days, "n": [1, 2, 3, 5]})
    for new in (same, stored):
        np.testing.assert_array_equal(encoded(clients, {**new, "n": [1, 2, 3, 5]}), expected)


@pytest.mark.parametrize(
    ("cells", "why"),
    [
        ([None, "NA"] * 15, "empty in the training rows"),
        ([3.0] * 30, "always the same"),
        (["x"] * 30, "always the same"),
        ([f"P{i}" for i in range(30)], "another word in every row, like a name or number of the r"),
    ],
)
def test_columns_that_tell_nothing_are_left_out_and_said(cells: list[Any], why: str) -> None:
    encoder = encoder_of(split({"a": cells, "w": ["x", "y"] * 15}, 14))
    assert encoder.ignored["a"].startswith(why)
    assert encoder.outputs == ("w=x", "w=y")
    with pytest.raises(DataError, match=r"t\.csv has no column to learn from: 'a' is"):
        encoder_of([{"a": cells, "w": ["x"] * 30}])


def test_as_stored_numbers_are_not_scaled() -> None:
    made = encoded(split({"a": [1.0, 2.0, None, 7.0], "w": list("xyxy")}, 4)[:1], scaled=False)
    assert made[:, 0].tolist() == [1.0, 2.0, 2.0, 7.0]


@pytest.mark.parametrize(
    ("one", "other", "sentence"),
    [
        (
            {"a": ["x", "y"]}, {"a": [1, 2]},
            "t.csv: column 'a' is a category at client 'ann' and a number at 'bob': mend it, or "
            "set federation.columns = {a = 'category'} for everybody.",
        ),
        (
            {"a": ["2024-01-01", "2024-01-02"]}, {"a": ["yes", "no"]},
            "t.csv: column 'a' is a date at client 'ann' and a boolean at 'bob'",
        ),
        (
            {"a": [1, 2], "b": [1, 2]}, {"a": [1, 2]},
            "t.csv: client 'ann' has a column 'b' and client 'bob' has not: add it, or set "
            "federation.columns = {b = 'ignore'}.",
        ),
    ],
)  # fmt: skip
def test_clients_that_differ_in_columns_are_named(one: Any, other: Any, sentence: str) -> None:
    with pytest.raises(DataError) as info:
        encoder_of([one, other])
    assert sentence in str(info.value)


@pytest.mark.parametrize(
    ("one", "other", "kind"),
    [(["yes", "no"], [1, 0], "boolean"), ([1, 0], [2, 3], "number"), (["", "NA"], ["x", "y"], "")],
)
def test_kinds_that_fit_everybody_are_found(one: Any, other: Any, kind: str) -> None:
    encoder = encoder_of([{"a": one, "b": [1, 2]}, {"a": other, "b": [None, 2]}])
    assert encoder.columns[0].kind == (kind or "category")


def test_new_rows_are_held_to_what_columns_are() -> None:
    encoder = encoder_of([{"age": [1, 2, 3, 4], "ward": ["x", "y", "x", "y"]}])
    with pytest.raises(DataError, match="new lacks column 'age': is it 'Age'"):
        encoder.encode(table_of("new", {"Age": [1], "ward": ["x"]}))
    with pytest.raises(DataError, match=r"lacks columns 'age', 'ward': it has q, b\."):
        encoder.encode(table_of("new", {"q": [1], "b": ["x"]}))
    with pytest.raises(
        DataError, match=r"row 1, column 'age' holds 'old', .* a number: mend it\.$"
    ):
        encoder.encode(table_of("new", {"age": ["old"], "ward": ["x"]}))
    more = table_of("new", {"id": ["7"], "ward": ["y"], "age": ["2"]})
    assert encoder.encode(more).shape == (1, 3)


def test_an_encoder_survives_json() -> None:
    cells = {"a": [1, None, 3], "w": ["x", "y", "x"], "d": ["2024-01-01", "", "2024-01-05"]}
    encoder = encoder_of([cells], label=("ill",), ignored={"id": "as you say"})
    again = TableEncoder.from_plain(json.loads(json.dumps(encoder.to_plain())))
    assert again == encoder
    table = table_of("t", cells)
    np.testing.assert_array_equal(again.encode(table), encoder.encode(table))
