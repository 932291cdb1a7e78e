"""How long a suite will take: worked by hand from finished runs, or from a probe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedskew.comparisons.runner import Runner
from fedskew.config import Config
from fedskew.papers.estimate import DONE, PROBED, ROUNDS_ALONE, Forecast, Pace, forecast, probe
from fedskew.papers.excerpt import Excerpt
from fedskew.papers.format import find_suite
from fedskew.papers.ledger import Ledger
from fedskew.papers.reading import MADE_WITH
from fedskew.papers.suite import estimate, reproduce
from fedskew.runs.experiment import Run


def test_runs_of_other_seeds_tell_how_long_one_takes(toy: Path, tmp_path: Path) -> None:
    part = Excerpt(arms=["avg", "slow"], seeds=1)
    reproduce(str(toy), out=tmp_path, excerpt=part, outcomes=tmp_path / "o.jsonl")
    for path in (tmp_path / "runs").glob(f"*/{MADE_WITH}"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "seconds": 40.0}))
    plan = Excerpt(seeds=3).of(find_suite(str(toy)), "smoke")
    found = forecast("toy", "smoke", plan, tmp_path / "runs", None)
    # Of nine runs two are finished; two of "avg" and two of "slow" are left, and three of "prox".
    assert (found.finished, len(found.left), len(found.unknown)) == (2, 7, 3)
    assert {place: (pace.each, pace.by) for place, pace in found.paces.items()} == {
        ("skewed", "avg"): (40.0, DONE), ("skewed", "slow"): (40.0, DONE),
    }  # fmt: skip
    assert found.seconds == 160.0
    assert found.sentence == (
        "7 runs left, about 2:40 (3 of them not counted: nothing is like them)"
    )


def test_lines_tell_it_too(toy: Path, tmp_path: Path) -> None:
    reproduce(str(toy), out=tmp_path / "out", excerpt=Excerpt(seeds=1), outcomes=tmp_path / "o")
    lines = Ledger.read(tmp_path / "o").lines
    timed = [line.model_copy(update={"seconds": 10.0}) for line in lines if line.arm == "avg"]
    (slow,) = (line.model_copy(update={"seconds": None}) for line in lines if line.arm == "slow")
    plan = Excerpt(seeds=2).of(find_suite(str(toy)), "smoke")
    kept = Ledger(tmp_path / "none", [*timed, slow])
    found = forecast("toy", "smoke", plan, tmp_path / "nothing", kept)
    assert found.finished == 2
    assert found.paces["skewed", "avg"] == Pace((10.0,), DONE)
    rounds = float(slow.outcome.summary["seconds"])
    assert found.paces["skewed", "slow"] == Pace((rounds,), ROUNDS_ALONE)


def test_what_is_done_meanwhile_counts(toy: Path) -> None:
    plan = Excerpt(seeds=2).of(find_suite(str(toy)), "smoke")
    found = Forecast(list(plan), 0, {("skewed", "avg"): Pace((600.0,), PROBED)})
    assert "about 20:00 (4 of them not counted" in found.sentence
    found.learn(plan[0], 50.0)
    found.learn(plan[1], 70.0)
    # "avg" and "prox" once each as measured; "slow" twice as the mean of both.
    assert found.seconds == 50 + 70 + 2 * 60
    assert found.sentence == "4 runs left, about 4:00 (2 of them by the mean of those done)"
    found.learn(plan[3], 70.0)
    assert found.paces["skewed", "avg"] == Pace((50.0, 70.0), DONE)


def test_nothing_known_is_said(toy: Path, tmp_path: Path) -> None:
    plan = Excerpt().of(find_suite(str(toy)), "smoke")
    found = forecast("toy", "smoke", plan, tmp_path / "runs", None)
    assert found.sentence.startswith("6 runs left; nothing tells yet how long they take")
    assert found.rows[0] == ("skewed", "avg", "2", "–", "nothing")


def test_a_probe_measures_every_setting_and_arm_once(toy: Path, tmp_path: Path) -> None:
    plan = Excerpt(seeds=2).of(find_suite(str(toy)), "smoke")
    told: list[str] = []
    found = probe(plan, None, told.append)
    assert told == [f"probing skewed · {arm}" for arm in ("avg", "prox", "slow")]
    assert list(found) == [("skewed", arm) for arm in ("avg", "prox", "slow")]
    assert all(pace.by == PROBED and pace.each > 0 for pace in found.values())


def test_an_estimate_probes_only_what_nothing_tells(toy: Path, tmp_path: Path) -> None:
    reproduce(str(toy), out=tmp_path, excerpt=Excerpt(arms=["avg"], seeds=1))
    told: list[str] = []
    found = estimate(str(toy), out=tmp_path, tell=told.append)
    assert told == ["probing skewed · prox", "probing skewed · slow"]
    assert (found.finished, len(found.left)) == (1, 5)
    assert found.unknown == []


@pytest.mark.parametrize(("count", "word"), [(1, "1 run left"), (2, "2 runs left")])
def test_one_run_is_not_several(count: int, word: str, toy: Path) -> None:
    plan = Excerpt(arms=["avg"]).of(find_suite(str(toy)), "smoke")
    assert Forecast(plan[:count], 0).sentence.startswith(word)


def test_a_probe_adapts_for_a_few_epochs_and_counts_them_all(
    toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapted: list[tuple[int, str]] = []
    plain = Runner.run

    def run(self: Runner, config: Config, **more: Any) -> Run:
        adapted.append((config.evaluate.fine_tune_epochs, config.evaluate.fine_tune_at))
        return plain(self, config, **more)

    monkeypatch.setattr(Runner, "run", run)
    text = toy.read_text().replace("fine_tune_epochs = 1", "fine_tune_epochs = 100000", 1)
    toy.write_text(text)
    plan = Excerpt(arms=["avg"], seeds=1).of(find_suite(str(toy)), "smoke")
    (pace,) = probe(plan, None).values()
    assert adapted == [(10, "last")]
    # The end takes some hundredth of a second at least: ten thousand times that, and both rounds.
    assert pace.each > 100
