"""Running a plan: what is told meanwhile, what counts as the whole of a run, whose line it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from recorder import Recorder
from toy_claims import TOY

from fedskew.papers.excerpt import Excerpt
from fedskew.papers.ledger import Ledger
from fedskew.papers.reading import MADE_WITH
from fedskew.papers.running import SELDOM
from fedskew.papers.suite import reproduce

ONE = Excerpt(arms=["avg"], seeds=1)


def test_a_run_that_was_interrupted_has_no_time_of_its_own(toy: Path, tmp_path: Path) -> None:
    outcomes = tmp_path / "o.jsonl"
    stopping = Recorder(stop=lambda run: run.rounds == [1])
    with pytest.raises(KeyboardInterrupt):
        reproduce(str(toy), out=tmp_path, excerpt=ONE, outcomes=outcomes, watch=stopping)
    assert not outcomes.exists()
    reproduce(str(toy), out=tmp_path, excerpt=ONE, outcomes=outcomes)
    (line,) = Ledger.read(outcomes).lines
    assert line.seconds is None
    assert line.outcome.summary["seconds"] > 0


def test_a_run_in_one_go_says_how_long_all_of_it_took(toy: Path, tmp_path: Path) -> None:
    reproduce(str(toy), out=tmp_path, excerpt=ONE, outcomes=tmp_path / "o.jsonl")
    (line,) = Ledger.read(tmp_path / "o.jsonl").lines
    (made_with,) = (tmp_path / "runs").glob(f"*/{MADE_WITH}")
    assert line.seconds == json.loads(made_with.read_text())["seconds"]
    assert line.seconds is not None
    # Reading the data and adapting come on top of the rounds; both are rounded.
    assert line.seconds >= line.outcome.summary["seconds"] - 0.05


def test_the_same_run_of_another_suite_is_not_run_and_gets_a_line_here(tmp_path: Path) -> None:
    outcomes = tmp_path / "o.jsonl"
    for name in ("toy", "other"):
        (tmp_path / f"{name}.toml").write_text(TOY)
    reproduce(str(tmp_path / "toy.toml"), out=tmp_path / "a", excerpt=ONE, outcomes=outcomes)
    seen = Recorder()
    reproduce(
        str(tmp_path / "other.toml"), out=tmp_path / "b", excerpt=ONE, outcomes=outcomes,
        watch=seen,
    )  # fmt: skip
    assert seen.runs == []
    first, second = Ledger.read(outcomes).lines
    assert (first.suite, second.suite) == ("toy", "other")
    assert first.model_copy(update={"suite": "other"}) == second


def test_observers_count_only_runs_that_have_no_line(toy: Path, tmp_path: Path) -> None:
    outcomes, seen = tmp_path / "o.jsonl", Recorder()
    part = Excerpt(arms=["avg", "prox"], seeds=1)
    reproduce(str(toy), out=tmp_path / "a", excerpt=ONE, outcomes=outcomes)
    reproduce(str(toy), out=tmp_path / "b", excerpt=part, outcomes=outcomes, watch=seen)
    assert [(run.position, run.total, run.config.method.name) for run in seen.runs] == [
        (1, 1, "fedprox")
    ]  # fmt: skip


def test_the_time_left_is_told_before_and_at_most_once_a_minute(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    reproduce(str(toy), out=tmp_path / "a", tell=told.append)
    assert told == [
        "6 runs, 0 of them finished: 6 runs left; nothing tells yet how long they take "
        "(--estimate measures)"
    ]
    monkeypatch.setattr("fedskew.papers.running.SELDOM", -SELDOM)
    reproduce(str(toy), out=tmp_path / "b", tell=told.append)
    left = [sentence.split(",")[0] for sentence in told[2:]]
    assert left == ["5 runs left", "4 runs left", "3 runs left", "2 runs left", "1 run left"]
