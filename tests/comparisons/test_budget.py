"""What a bake-off may cost: how users write it, and what a round is worth."""

from __future__ import annotations

from typing import Any

import pytest

from fedskew.comparisons.budget import Budget, Spent, prices, total
from fedskew.errors import ConfigError


@pytest.mark.parametrize(
    ("given", "amount", "unit"),
    [
        ("200", 200, "rounds"), (200, 200, "rounds"), ("200 rounds", 200, "rounds"),
        ("30m", 30, "minutes"), ("1.5h", 90, "minutes"), ("30 min", 30, "minutes"),
        ("500MB", 500, "MB"), ("500mb", 500, "MB"), ("2GB", 2000, "MB"),
    ],
)  # fmt: skip
def test_a_budget_is_read_as_users_write_it(given: Any, amount: float, unit: str) -> None:
    assert Budget.of(given) == Budget(amount, unit)  # type: ignore[arg-type]


@pytest.mark.parametrize("given", ["", "many", "10 parsecs", "m30", "1e3", True, "nan"])
def test_what_is_no_budget_is_refused_with_what_would_be_one(given: Any) -> None:
    with pytest.raises(ConfigError, match=r"rounds .*\(200\), minutes \(30m\) or megabytes"):
        Budget.of(given)


@pytest.mark.parametrize("given", ["0", 0, "-5", "0m", "-1MB"])
def test_a_budget_of_nothing_is_refused(given: Any) -> None:
    with pytest.raises(ConfigError, match="budget must be above 0"):
        Budget.of(given)


@pytest.mark.parametrize(
    ("budget", "least", "told"),
    [("10", 17, "17 is"), ("1m", 7.234, "7.3m is"), ("0.1MB", 0.4592, "0.46MB is"),
     ("1m", 123.2, "124m is")],
)  # fmt: skip
def test_the_smallest_budget_that_works_is_told_rounded_up(
    budget: str, least: float, told: str
) -> None:
    assert told in str(Budget.of(budget).too_small(least))


def test_prices_are_by_round_and_minutes_by_the_clock() -> None:
    spent = {"a": Spent(4, 2.0, 8_000_000), "b": Spent(2, 2.0, 1_000_000)}
    assert prices(spent, "rounds", elapsed=99) == {"a": 1, "b": 1}
    assert prices(spent, "MB", elapsed=99) == {"a": 2.0, "b": 0.5}
    assert prices(spent, "minutes", elapsed=360) == {"a": 1.0, "b": 1.0}
    assert total(spent) == Spent(6, 4.0, 9_000_000)
