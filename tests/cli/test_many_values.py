"""Options of several words, and one that may have none."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedskew.cli import main
from fedskew.cli.many_values import gathered

QUICK = ["--set", "model=logistic", "--set", "train.rounds=1", "--no-references"]


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (["a", "--tune", "lr=1,2", "mu=3", "--seeds", "2"], ["lr=1,2 mu=3", "--seeds", "2"]),
        (["a", "--tune", "--trials", "3"], ["all", "--trials", "3"]),
        (["a", "--tune"], ["all"]),
        (["a", "--tune", "lr=1", "--tune", "mu"], ["lr=1", "--tune", "mu"]),
    ],
)
def test_words_after_tune_are_its_values_and_none_stands_for_all(
    given: list[str], wanted: list[str]
) -> None:
    assert gathered(given) == ["a", "--tune", *wanted]
    assert gathered([*given, "-"])[-1] == "-"


def test_compare_tunes_and_tells_validation_scores_of_trials(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    assert main(["compare", "fedavg", "--tune", "lr=0.1,0.3", *QUICK, "--out", out]) == 0
    told = capsys.readouterr().out
    assert "[1/3] fedavg, lr=0.1: validation accuracy" in told
    assert "[3/3] fedavg, seed 0: test accuracy" in told
    assert (tmp_path / "out" / "tuning.csv").is_file()
    assert main(["compare", "fedavg", "--tune", "mu=1", *QUICK, "--out", out]) == 2
    assert "unknown knob 'mu' of any compared method" in capsys.readouterr().err
