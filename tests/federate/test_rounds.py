"""Which of two rounds is better, by hand: clients, score, loss, time; and what patience counts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from helpers import OpenBackend, Run, method_holdings, run
from hypothesis import given
from hypothesis import strategies as st

from fedskew.engine.optim import Optimiser
from fedskew.federate.plan import Settings
from fedskew.federate.rounds import Choice, Rounds, Score
from fedskew.federate.tasks import Answer, Ask


def after(scores: Sequence[Score], higher_is_better: bool = True) -> Choice:
    """The choice when these are the scores of rounds 1, 2, ..."""
    choice = Choice()
    for number, score in enumerate(scores, start=1):
        choice = choice.see(number, score, higher_is_better)
    return choice


def test_the_better_score_is_chosen_whatever_the_loss() -> None:
    rising = after([Score(0.5, 0.1), Score(0.7, 0.9), Score(0.6, 0.0)])
    assert rising == Choice(2, 0.7, waited=1, loss=0.9, clients=1)
    falling = after([Score(0.5, 0.5), Score(0.4, 0.4), Score(0.9, 0.9)], higher_is_better=False)
    assert falling == Choice(2, 0.4, waited=1, loss=0.4, clients=1)


def test_of_equal_scores_the_smaller_loss_is_chosen_and_of_equal_losses_the_later_round() -> None:
    assert after([Score(0.7, 0.3), Score(0.7, 0.2), Score(0.7, 0.4)]).round == 2
    assert after([Score(0.7, 0.3), Score(0.7, 0.2), Score(0.7, 0.2)]).round == 3
    assert after([Score(0.7), Score(0.7), Score(0.6)]).round == 2
    assert after([Score(0.4), Score(0.4)], higher_is_better=False).round == 2


def test_an_unknown_loss_is_larger_than_any_other() -> None:
    assert after([Score(0.7), Score(0.7, 1e9)]).round == 2
    assert after([Score(0.7, 1e9), Score(0.7)]).round == 1


def test_scores_that_differ_by_rounding_alone_are_equal() -> None:
    """.1 + .2 + .3 is not .3 + .2 + .1 in floats, and 1/3 + 2/3 not 0 + 1 in single ones."""
    one, other = Score.of([0.1, 0.2, 0.3], [0.9] * 3), Score.of([0.3, 0.2, 0.1], [0.8] * 3)
    assert one.value > other.value
    assert after([one, other]).round == 2
    third, two_thirds = (float(np.float32(n / 3)) for n in (1, 2))
    spread, apart = Score.of([third, two_thirds], [0.9] * 2), Score.of([0.0, 1.0], [0.8] * 2)
    assert spread.value > apart.value
    assert after([spread, apart]).round == 2
    assert after([Score(0.9, 0.9), Score(0.9 - 1e-5, 0.1)]).round == 1


def test_a_round_without_a_score_changes_nothing() -> None:
    before = after([Score(0.7, 0.3), Score(0.6, 0.3)])
    assert before.see(3, Score(math.nan, 0.1, clients=9), True) == before
    assert Choice().see(1, Score.of([], []), True).round == 0


def test_a_round_that_lacks_clients_is_no_candidate_and_uses_up_no_patience() -> None:
    full = after([Score(0.7, 0.3, clients=4), Score(0.6, 0.3, clients=4)])
    assert full.see(3, Score(0.9, 0.1, clients=3), True) == full
    assert full.see(3, Score(0.1, 0.9, clients=3), True) == full


def test_a_fuller_round_takes_the_place_of_any_with_fewer_clients() -> None:
    found = after([Score(0.9, 0.1, clients=3), Score(0.8, clients=3), Score(0.2, 0.9, clients=4)])
    assert found == Choice(3, 0.2, waited=0, loss=0.9, clients=4)


def test_patience_counts_worse_scores_and_no_equal_ones() -> None:
    best = [Score(0.7, 0.3)]
    worse, equal, costlier = Score(0.6, 0.1), Score(0.7, 0.3), Score(0.7, 0.4)
    assert after([*best, worse, worse]).waited == 2
    assert after([*best, worse, equal]) == Choice(3, 0.7, waited=1, loss=0.3, clients=1)
    assert after([*best, worse, costlier]) == Choice(1, 0.7, waited=1, loss=0.3, clients=1)
    assert after([*best, worse, Score(0.7, 0.2)]).waited == 0
    assert after([*best, worse, Score(0.8, 0.9)]).waited == 0


def test_a_stage_with_patience_ends_when_it_is_used_up_or_with_its_number_of_rounds() -> None:
    rounds = Rounds(9, patience=2)
    assert not rounds.over(8, Choice(1, 0.5, waited=1))
    assert rounds.over(8, Choice(1, 0.5, waited=2))
    assert rounds.over(9, Choice(9, 0.5, waited=0))


grid = st.sampled_from([0.0, 0.25, 0.5, 1.0])
scored = st.builds(Score, grid | st.just(math.nan), grid | st.just(math.nan), st.integers(1, 3))


@given(st.lists(scored, min_size=1, max_size=12), st.booleans())
def test_whatever_the_curve_the_best_round_is_the_largest_of_all(
    scores: list[Score], higher: bool
) -> None:
    """Seen one by one, and sorted at once by another hand: the order in which they come is no
    matter but for exact equals."""
    sign = 1 if higher else -1
    known = [
        (score.clients, sign * score.value, -math.inf if math.isnan(score.loss) else -score.loss, n)
        for n, score in enumerate(scores, start=1)
        if not math.isnan(score.value)
    ]
    assert after(scores, higher).round == max(known, default=(0, 0.0, 0.0, 0))[-1]


def with_rate(rate: float) -> Settings:
    return Settings(Optimiser("sgd", rate), 1, 8)


def test_a_plateau_uses_up_no_patience_and_its_last_round_is_selected() -> None:
    """Without a learning rate all rounds are equal: the stage ends with its number of rounds."""
    still = method_holdings("fedavg", settings=with_rate(0.0))
    done = run(still, Rounds(5, patience=2)).progress
    assert (done.round, done.selected.round, done.selected.waited) == (5, 5, 0)
    assert done.finished


def test_models_that_learn_on_a_plateau_of_accuracy_are_told_apart_by_their_loss() -> None:
    """Steps too small to move a single answer, each of which lowers the loss."""
    slow = run(method_holdings("fedavg", settings=with_rate(1e-4)), 4)
    means = {
        metric: [mean_of(slow, t, metric) for t in (1, 2, 3, 4)] for metric in ("accuracy", "loss")
    }
    assert len(set(means["accuracy"])) == 1
    assert means["loss"] == sorted(means["loss"], reverse=True)
    assert slow.progress.selected.round == 4
    assert slow.progress.selected.loss == pytest.approx(means["loss"][3], rel=1e-12)
    assert slow.progress.selected.clients == 4


def mean_of(result: Run, number: int, metric: str) -> float:
    values = [
        row.value
        for row in result.journal.rows
        if (row.round, row.on, row.split, row.metric) == (number, "seen", "validation", metric)
    ]
    return sum(values) / len(values)


class Deaf(OpenBackend):
    """A client who does not answer when it is asked for scores in some rounds."""

    silent: tuple[int, ...] = ()

    def exchange(self, asks: Sequence[Ask]) -> list[Answer]:
        return [
            replace(answer, scored=())
            if ask.client == "c1" and ask.scores and ask.scores[0].round in self.silent
            else answer
            for ask, answer in zip(asks, super().exchange(asks), strict=True)
        ]


@pytest.mark.parametrize(
    ("silent", "selected"), [((), 5), ((4, 5), 3), ((1, 2, 3, 4), 5), ((1, 2, 3, 4, 5), 5)]
)
def test_the_server_does_not_compare_rounds_of_some_clients_with_rounds_of_all(
    silent: tuple[int, ...], selected: int
) -> None:
    """On a plateau the last candidate is selected, so the selected round tells who was one."""
    holdings = method_holdings("fedavg", settings=with_rate(0.0))
    backend = Deaf(holdings)
    backend.silent = silent
    found = run(holdings, 5, backend).progress.selected
    assert (found.round, found.clients) == (selected, 3 if len(silent) == 5 else 4)
