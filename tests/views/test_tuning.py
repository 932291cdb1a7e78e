"""How it is told what methods tried and chose."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path

from fedskew.comparisons.trials import Setting
from fedskew.comparisons.tuning import Edge, Trial, Tuned
from fedskew.views.tuning import trials_csv, tuning_markdown, tuning_remarks, tuning_text


def setting(rate: float) -> Setting:
    return Setting((("train", "lr", rate),))


GOOD = Tuned(
    "fedavg", "accuracy", True,
    (Trial(setting(0.1), 0.5, Path("runs/a")), Trial(setting(1), 0.75, Path("runs/b"))), 1,
    (Edge("lr", 1, largest=True),),
)  # fmt: skip
BAD = Tuned("odd", "accuracy", True, (Trial(setting(9), math.nan, None, "no client left"),), None)


def test_a_line_says_what_was_chosen_by_which_score_of_how_many() -> None:
    lines = tuning_text([GOOD, BAD]).splitlines()
    assert lines[0].split() == ["tuned", "chosen", "validation", "settings", "tried"]
    assert lines[2].split() == ["fedavg", "lr=1", "0.750", "2"]
    assert lines[3].split() == ["odd", "as", "configured", "–", "1,", "1", "without", "a", "score"]
    assert "| fedavg | lr=1 | 0.750 | 2 |" in tuning_markdown([GOOD])


def test_edges_unequal_budgets_and_methods_without_a_score_are_told() -> None:
    assert list(tuning_remarks([GOOD, BAD])) == [
        "lr=1 is the largest value tried, and chosen by fedavg: the best may be larger still.",
        "Not all tried as many settings (fedavg 2, odd 1), which favours those with more: "
        "--trials 1 gives all of them the same number.",
        "odd: no trial has a validation score, so it is as configured.",
    ]
    assert list(tuning_remarks([Tuned("a", "accuracy", True, GOOD.trials, 1)])) == []


def test_a_file_has_a_line_for_every_trial() -> None:
    lines = list(csv.DictReader(io.StringIO(trials_csv([GOOD, BAD]))))
    assert [(line["setting"], line["chosen"], line["run"]) for line in lines] == [
        ("lr=0.1", "False", "a"), ("lr=1", "True", "b"), ("lr=9", "False", ""),
    ]  # fmt: skip
    assert (lines[2]["validation"], lines[2]["why"]) == ("", "no client left")
