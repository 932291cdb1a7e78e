"""``fedskew recommend`` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedskew.cli import main

QUICK = [
    "--set", "federation.samples=300", "--set", "federation.clients=3", "--set",
    "train.rounds=2", "--set", "model=logistic",
]  # fmt: skip


def recommended(out: Path, *more: str) -> int:
    return main(["recommend", "digits", *QUICK, "--out", str(out), *more])


def test_a_recommendation_is_printed_and_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert recommended(tmp_path, "--methods", "fedavg", "fedprox:mu=0.1") == 0
    told = capsys.readouterr().out
    for text in ("rung 1 of 2", "settings:", "runner-up:", "who loses:", "cost:", "clients:"):
        assert text in told
    progress, _, after = told.partition("\n\n")
    assert "test" not in progress, "test scores are looked at once, at the end"
    kept = json.loads((tmp_path / "recommendation.json").read_text())
    assert kept["sentence"] in told
    assert kept["reasons"] in after
    assert (tmp_path / "recommendation.md").read_text().count(kept["sentence"]) == 1

    assert recommended(tmp_path, "--methods", "fedavg", "fedprox:mu=0.1") == 0
    again = capsys.readouterr().out
    assert "rung" not in again
    assert kept == json.loads((tmp_path / "recommendation.json").read_text())


def test_several_jobs_recommend_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, more in (("one", ()), ("two", ("--jobs", "2"))):
        assert recommended(tmp_path / name, "--methods", "fedavg", "ditto", *more) == 0
    assert "going on to" not in capsys.readouterr().out
    one, two = (
        json.loads((tmp_path / name / "recommendation.json").read_text()) for name in ("one", "two")
    )
    for name in ("sentence", "best", "gain", "scores"):
        assert one[name] == two[name]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--budget", "0"], "budget must be above 0"),
        (["--budget", "much"], "(200), minutes (30m) or megabytes (500MB)"),
        (["--budget", "3", "--methods", "fedavg"], "4 is the smallest that works"),
        (["--methods", "fedavgg"], "did you mean 'fedavg'?"),
        (["--methods", "fed-civae"], "no method but local can run here: fed-civae:"),
        (["--set", "federation.clients=1"], "at least two clients"),
        (["--set", "federation.validation=0"], "set federation.validation above 0"),
        (["--seeds", "0"], "0 is not in the range"),
        (["--sites", "lab"], "no such option"),
    ],
)
def test_what_cannot_be_recommended_is_one_sentence(
    more: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert recommended(tmp_path / "out", *more) == 2
    told = capsys.readouterr().err.strip()
    assert said in told
    assert "\n" not in told
    assert not list(tmp_path.rglob("checkpoint.json"))
