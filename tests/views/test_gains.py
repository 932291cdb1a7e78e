"""How gains over training alone are told."""

from __future__ import annotations

import csv
import io
import math
from typing import Any

import pytest

from fedskew.comparisons.paired import Against, ClientGain, judged
from fedskew.comparisons.statistics import Interval, interval
from fedskew.views.gains import (
    ClientScore,
    clients_csv,
    gain_caption,
    gains_markdown,
    gains_text,
    verdicts,
    without_alone,
)
from fedskew.views.leaderboard import Standing

SCORE = interval([0.5, 0.6])


def client(name: str, gain: float, low: float = math.nan, high: float = math.nan) -> ClientGain:
    return ClientGain(name, 0, 10, 0.5 + gain, 0.5, Interval(gain, low, high, 1))


def standing(
    method: str, gain: Interval | None, clients: tuple[ClientGain, ...] = (), **more: Any
) -> Standing:
    against = None
    if gain is not None:
        verdict = judged(gain, 0.01)
        against = Against(gain, 0.01, verdict, clients, clients, more.pop("unpaired", 0))
    return Standing(
        method, more.pop("reference", False), "global", SCORE, against, SCORE, SCORE, SCORE, None,
        None, None, 0.0, None, 1.0, (),
    )  # fmt: skip


UP = standing("up", Interval(0.03, 0.02, 0.04, 3), (client("a", 0.03), client("b", 0.03)))
DOWN = standing(
    "down",
    Interval(-0.2, -0.3, -0.1, 3),
    (client("a", -0.3, -0.5, -0.1), client("b", -0.1, -0.3, 0.1)),
)
OPEN = standing("open", Interval(0.0, -0.2, 0.2, 3), (client("a", 0.0), client("b", 0.0)))
SAME = standing("same", Interval(0.001, -0.004, 0.006, 3), (client("a", 0.001),))
ALONE = standing("local", None, reference=True)
POOLED = standing("central", Interval(0.05, 0.04, 0.06, 3), (), reference=True)


def test_each_answer_is_a_sentence_and_references_are_in_none() -> None:
    assert list(verdicts([POOLED, UP, SAME, OPEN, ALONE, DOWN], "accuracy")) == [
        "Better than training alone: up +0.030 [+0.020, +0.040].",
        "As good as training alone, within ±0.010: same +0.001 [-0.004, +0.006].",
        "Worse than training alone: down -0.200 [-0.300, -0.100].",
        "Cannot tell, the interval is too wide: open +0.000 [-0.200, +0.200].",
    ]
    assert next(verdicts([OPEN, ALONE], "accuracy")) == (
        "No method is shown to be better than training alone."
    )


def test_one_seed_gets_one_sentence_whatever_the_gain() -> None:
    once = standing("fedavg", interval([0.4]), (client("a", 0.4),))
    assert list(verdicts([once, ALONE], "accuracy")) == [
        "One seed does not tell gains over training alone from chance: run more (--seeds 5)."
    ]


def test_losers_are_counted_and_the_largest_loss_is_named() -> None:
    lines = gains_text([POOLED, UP, DOWN, ALONE], "accuracy").splitlines()
    cells = [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in lines]
    assert cells[3] == ["up", "+0.030 [+0.020, +0.040]", "better", "0 of 2", "–", "–"]
    assert cells[4] == [
        "down", "-0.200 [-0.300, -0.100]", "worse", "2 of 2", "1", "-0.300 (a, seed 0)",
    ]  # fmt: skip
    assert len(lines) == 5
    assert "| down | -0.200 [-0.300, -0.100] | worse | 2 of 2 | 1 | -0.300 (a, seed 0) |" in (
        gains_markdown([UP, DOWN], "accuracy")
    )


def test_a_caption_says_what_is_not_known() -> None:
    assert "one in 40" in gain_caption([DOWN], "accuracy")
    assert "no answers for single test samples" in gain_caption([UP], "accuracy")
    assert gain_caption([ALONE], "accuracy") == ""


def test_clients_that_could_not_be_paired_are_told() -> None:
    found = list(
        verdicts([standing("fedavg", UP.gain, (client("a", 0.1),), unpaired=2)], "accuracy")
    )
    assert found[-1] == "fedavg: 2 clients have a score with or without it, but not both."


def test_without_training_alone_a_user_is_told_how_to_have_it() -> None:
    [told] = without_alone([standing("fedavg", None)])
    assert "--no-references" in told
    assert list(without_alone([UP, ALONE])) == []
    assert list(without_alone([ALONE])) == []
    assert gains_text([standing("fedavg", None)], "accuracy") == ""


def test_a_file_has_a_line_for_each_client_and_nothing_for_what_is_unknown() -> None:
    told = clients_csv(
        [
            ClientScore("up", 0, "a, b", 10, 0.5, 0.4, 0.1, 0.0, 0.2),
            ClientScore("local", 0, "a, b", 10, 0.4),
        ],
        "accuracy",
    )
    first, second = csv.DictReader(io.StringIO(told))
    assert first == {
        "method": "up", "seed": "0", "client": "a, b", "test_samples": "10", "metric": "accuracy",
        "score": "0.5", "alone": "0.4", "gain": "0.1", "low": "0.0", "high": "0.2",
    }  # fmt: skip
    assert (second["score"], second["alone"], second["gain"]) == ("0.4", "", "")


@pytest.mark.parametrize(("metric", "text"), [("accuracy", "+0.030"), ("rmse", "+0.03")])
def test_numbers_are_written_as_their_metric_wants(metric: str, text: str) -> None:
    assert f"up {text} [" in " ".join(verdicts([UP], metric))
