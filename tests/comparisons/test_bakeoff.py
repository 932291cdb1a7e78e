"""Bake-offs on real runs: they grow, and what was decided on validation data stands."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from same_run import assert_same_run

import fedskew
from fedskew.comparisons.bakeoff import BakeOff, at_length, bake_off
from fedskew.comparisons.budget import Budget
from fedskew.comparisons.candidates import field_of
from fedskew.comparisons.judging import judge
from fedskew.comparisons.notes import FILE
from fedskew.comparisons.runner import Runner
from fedskew.config import make_config
from fedskew.errors import ConfigError
from fedskew.runs.experiment import Run

SETTINGS: dict[str, Any] = {
    "federation": {"samples": 300, "clients": 3, "validation": 0.3},
    "model": {"name": "mlp", "hidden": [8]},
    "train": {"rounds": 4, "batch_size": 16},
}
METHODS = ("fedavg", "fedrep", "fedbabu", "fedprox")


class Stopped(BaseException):
    pass


def baked(
    out: Path, budget: str | None = None, watch: Any = None, methods: Any = METHODS,
    said: list[str] | None = None, **changes: Any,
) -> tuple[BakeOff, Runner]:  # fmt: skip
    tell = (lambda _: None) if said is None else said.append
    runner = Runner(out / "runs", None, watch, tell, grows=True)
    entered = field_of(runner, make_config({**SETTINGS, **changes}), methods)
    limit = None if budget is None else Budget.of(budget)
    return bake_off(runner, entered, limit, out, tell), runner


def test_a_run_that_climbed_rung_by_rung_is_one_that_was_trained_in_one_go(tmp_path: Path) -> None:
    """To the bit, for one that is judged as trained and one that is fine-tuned on the way."""
    found, _ = baked(tmp_path / "baked", methods=("fedrep", "fedbabu"))
    assert [rung.rounds for rung in found.rungs] == [1, 4]
    for name in found.rungs[-1].judged:
        whole = fedskew.run({**SETTINGS, "method": name}, out=tmp_path / "whole", draw=False)
        grown = Run(tmp_path / "baked" / "runs" / whole.path.name)
        assert_same_run(grown, whole)


def test_a_stopped_bake_off_goes_on_and_decides_the_same(tmp_path: Path) -> None:
    class Stop:
        def begin(self, config: Any, position: int, *_: Any) -> None:
            if position == 6:
                raise Stopped

        def __call__(self, *_: Any) -> None: ...

        def end(self, *_: Any) -> None: ...

    with pytest.raises(Stopped):
        baked(tmp_path / "stopped", watch=Stop())
    later, runner = baked(tmp_path / "stopped")
    at_once, _ = baked(tmp_path / "at once")
    assert runner.position <= 4, "the first rung is not run again"
    assert [rung.goes_on for rung in later.rungs] == [rung.goes_on for rung in at_once.rungs]
    for ours, theirs in zip(later.rungs, at_once.rungs, strict=True):
        assert list(ours.judged) == list(theirs.judged)
        for name, its in theirs.judged.items():
            timeless = replace(its.spent, seconds=0.0)
            mine = ours.judged[name]
            assert replace(mine, spent=replace(mine.spent, seconds=0.0)) == replace(
                its, spent=timeless
            )
    again, runner = baked(tmp_path / "stopped")
    assert runner.position == 0
    assert again == later


def test_test_data_change_nothing_about_who_goes_on(tmp_path: Path) -> None:
    """With every test label another, the same rungs."""
    made = fedskew.make_federation(make_config(SETTINGS))
    y = made.y.clone()
    for client in made.clients:
        y[client.test] = (y[client.test] + 1) % made.classes
    changed = made.with_data(y=y)

    def rungs(federation: Any, out: Path) -> list[Any]:
        runner = Runner(out / "runs", None, tell=lambda _: None, given=federation, grows=True)
        entered = field_of(runner, make_config(SETTINGS), METHODS)
        found = bake_off(runner, entered, None, out, lambda _: None)
        return [
            ({name: (its.score, its.by_client) for name, its in rung.judged.items()}, rung.goes_on)
            for rung in found.rungs
        ]

    assert rungs(made, tmp_path / "a") == rungs(changed, tmp_path / "b")


def test_a_method_that_fine_tunes_is_judged_fine_tuned(tmp_path: Path) -> None:
    done = fedskew.run({**SETTINGS, "method": "fedbabu"}, out=tmp_path, draw=False)
    rows = done.results.rows.where(split="validation", metric="accuracy", on="seen",
                                   round=done.result["selected_round"])  # fmt: skip
    tuned, plain = (rows.where(adapted=name).by_client() for name in ("fine-tuned 5", "none"))
    assert tuned != plain
    assert judge(done, tuned=True).by_client == tuned
    assert judge(done, tuned=False).by_client == plain


def test_a_method_that_does_as_another_is_left_out_as_its_twin(tmp_path: Path) -> None:
    """A head is all that a logistic model has, so with heads of their own clients train alone."""
    found, _ = baked(tmp_path, methods=("fedavg", "fedper", "fedprox:mu=0"), model="logistic")
    assert found.twins == {"fedper": "local", "fedprox (mu=0)": "fedavg"}
    assert set(found.latest) == {"local", "fedavg"}
    assert found.spent.rounds == 2 * 4 + 2 * 1, "what twins cost counts"


def test_a_budget_in_megabytes_is_planned_after_one_round_of_everybody(tmp_path: Path) -> None:
    said: list[str] = []
    with pytest.raises(ConfigError, match=r"budget 0\.01MB is too small .* is the smallest"):
        baked(tmp_path, budget="0.01MB", said=said)
    least = str(next(iter(_amounts(said, tmp_path))))
    found, _ = baked(tmp_path, budget=least)
    assert found.ladder[0].rounds == 1
    assert found.rungs[-1].rounds == 4
    assert found.spent.bytes <= float(least.removesuffix("MB")) * 1e6
    more, _ = baked(tmp_path, budget="100MB")
    assert {rung.keeps for rung in more.ladder} == {len(METHODS)}, "all of them to the end"


def test_another_budget_uses_the_scores_that_are_there(tmp_path: Path) -> None:
    first, _ = baked(tmp_path)
    more, runner = baked(tmp_path, budget="1000")
    late = set(first.rungs[0].judged) - set(first.rungs[-1].judged)
    assert runner.position == len(late) > 0
    assert more.rungs[-1].judged.keys() == first.rungs[0].judged.keys()


def _amounts(said: list[str], out: Path) -> Any:
    try:
        baked(out, budget="0.01MB", said=said)
    except ConfigError as error:
        words = str(error).split()
        yield words[words.index("is", words.index("rounds:")) - 1]


def test_a_damaged_file_of_rungs_is_refused(tmp_path: Path) -> None:
    baked(tmp_path)
    path = tmp_path / FILE
    path.write_text(path.read_text().replace('"loss": ', '"loss": 1', 1))
    with pytest.raises(fedskew.RunError, match="was edited or damaged"):
        baked(tmp_path)


def test_longer_is_the_only_difference() -> None:
    config = make_config(SETTINGS)
    assert at_length(at_length(config, 2), 4) == config


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"federation": {"samples": 300, "clients": 1}}, "at least two clients"),
        ({"federation": {"samples": 300, "clients": 3, "validation": 0.0}}, "validation above 0"),
    ],
)
def test_what_cannot_be_judged_is_refused(
    changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=said):
        baked(tmp_path / "out", **changes)
    assert not list(tmp_path.rglob("checkpoint.json"))
