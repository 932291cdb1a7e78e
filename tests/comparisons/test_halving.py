"""Ladders, prices and who goes on, by hand-made scores."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedskew.comparisons.halving import (
    FINALISTS,
    SHAPES,
    USUAL,
    Rung,
    TooSmall,
    cost,
    fitting,
    going_on,
    ladder,
    ranked,
)
from fedskew.federate.rounds import Score

TEN = dict.fromkeys("abcdefghij", 1.0)


def scores(**values: float) -> dict[str, Score]:
    return {name: Score(value) for name, value in values.items()}


@given(st.integers(1, 40), st.integers(1, 200), st.sampled_from(SHAPES))
def test_a_ladder_rises_to_all_rounds_and_never_takes_anybody_back(
    contenders: int, rounds: int, shape: tuple[tuple[float, float], ...]
) -> None:
    found = ladder(shape, contenders, rounds)
    until, kept = [rung.rounds for rung in found], [rung.keeps for rung in found]
    assert until == sorted(set(until))
    assert until[-1] == rounds
    assert kept == sorted(kept, reverse=True)
    assert kept[0] <= contenders
    assert kept[-1] >= min(FINALISTS, contenders)


def test_what_a_ladder_costs_is_every_round_that_anybody_trains() -> None:
    """Ten and the yardstick for 2 rounds, four and it for 3 more, two and it for 5 more."""
    climbed = (Rung(2, 4), Rung(5, 2), Rung(10, 2))
    assert cost(climbed, TEN, alone=1.0) == 11 * 2 + 5 * 3 + 3 * 5
    assert cost(climbed, TEN, alone=0.0) == 10 * 2 + 4 * 3 + 2 * 5
    assert cost(climbed, TEN, alone=1.0, begun=1) == 11 * 1 + 5 * 3 + 3 * 5


def test_the_dearest_are_taken_to_go_on() -> None:
    assert cost((Rung(1, 2), Rung(3, 2)), {"a": 1.0, "b": 5.0, "c": 2.0}, 0.0) == 8 + 2 * 7


@pytest.mark.parametrize("budget", [1.0, 44.0, 83.9])
def test_a_budget_too_small_is_refused_with_the_least_that_works(budget: float) -> None:
    """Eleven for 3 rounds, two and the yardstick for the other 17."""
    with pytest.raises(TooSmall) as refused:
        fitting(TEN, 1.0, 20, budget)
    least = refused.value.least
    assert least == 11 * 3 + 3 * 17
    assert cost(fitting(TEN, 1.0, 20, least), TEN, 1.0) == least


@given(st.floats(84, 1000))
def test_a_budget_is_kept(budget: float) -> None:
    assert cost(fitting(TEN, 1.0, 20, budget), TEN, 1.0) <= budget


def test_more_budget_is_spent_on_more_care() -> None:
    costs = [cost(fitting(TEN, 1.0, 20, budget), TEN, 1.0) for budget in (90, 100, 130, 170, 220)]
    assert costs == sorted(costs)
    assert len(set(costs)) > 3
    assert costs[-1] == 11 * 20, "everybody to the end"


def test_the_usual_ladder_costs_half_of_all_to_the_end_for_a_dozen_methods() -> None:
    for contenders in range(6, 30):
        for rounds in (10, 20, 37, 100):
            prices = dict.fromkeys(map(str, range(contenders)), 1.0)
            share = cost(ladder(USUAL, contenders, rounds), prices, 1.0)
            assert share <= 0.6 * (contenders + 1) * rounds
            if contenders >= 12:
                assert share <= 0.52 * (contenders + 1) * rounds


def test_the_best_go_on_and_training_alone_whatever_it_scored() -> None:
    found = scores(alone=0.1, slow=0.3, good=0.8, better=0.9)
    assert going_on(found, 2, "alone", True) == ["alone", "good", "better"]
    assert going_on(found, 2, "alone", False) == ["alone", "slow", "good"]


def test_ties_are_broken_by_loss_and_then_by_the_declared_order() -> None:
    found = {"b": Score(0.5, 0.7), "a": Score(0.5, 0.7), "c": Score(0.5, 0.6), "d": Score(0.5)}
    assert ranked(found, True) == ["c", "b", "a", "d"]


def test_who_has_no_score_comes_last() -> None:
    found = scores(broken=math.nan, poor=0.1, alone=0.2)
    assert ranked(found, True) == ["alone", "poor", "broken"]
    assert ranked(found, False) == ["poor", "alone", "broken"]
    assert going_on(found, 1, "alone", True) == ["poor", "alone"]


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_few_rounds_make_few_rungs(rounds: int) -> None:
    assert len(ladder(USUAL, 10, rounds)) == min(rounds, 2 if rounds < 3 else 3)
