"""A recipe that prepares: a first stage hands weights for single samples over to a second one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from fedskew.api import run
from fedskew.errors import RunError
from fedskew.runs.experiment import Run
from fedskew.store import load_groups

PARTS = '''
from dataclasses import dataclass

import torch
from fedskew.parts.step import LearningRate
from fedskew.parts.objective import Erm
from fedskew.parts.report import Report, Reported
from fedskew.federate.recipe import Recipe, Stage


@dataclass(frozen=True)
class Hand(Report):
    slope: float

    def report(self, finished):
        x, y = finished.samples()
        weight = 1.0 + self.slope * y.to(torch.float32)
        mean = weight.mean()
        return Reported(
            sends={"mean": {"w": mean}}, keeps={"sample_weight": {"w": weight / mean}}
        )


def weighted(slope=0.0):
    """FedAvg on samples weighted by a stage before it."""
    density = Stage("density", Recipe(), rounds=2, model={"name": "logistic"},
                    train={"lr": 0.05}, hands_over=(Hand(slope),))
    return Recipe(prepares=(density,))


def slower(server_lr=1.0):
    """The same first stage, whatever the second does."""
    density = Stage("density", Recipe(), rounds=2, hands_over=(Hand(1.0),))
    return Recipe(steps=LearningRate(server_lr), prepares=(density,))


def scaled(scale=1.0):
    """A first stage whose objective says nothing of its setting to whoever prints it."""

    class Scaled(Erm):
        def loss(self, model, batch, client):
            return scale * super().loss(model, batch, client)

    return Recipe(prepares=(Stage("density", Recipe(objective=Scaled()), rounds=2),))
'''


@pytest.fixture(autouse=True)
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "staged_parts.py").write_text(PARTS)
    monkeypatch.chdir(tmp_path)


def settings(method: dict[str, object] | str, rounds: int = 3) -> dict[str, object]:
    return {
        "method": method,
        "model": {"name": "mlp", "hidden": [8]},
        "train": {"rounds": rounds},
        "federation": {"clients": 4},
    }


def final(done: Run) -> dict[str, torch.Tensor]:
    return dict(done.model(round="last").state_dict())


def test_weights_of_one_leave_the_wrapped_method_as_it_is_to_the_bit() -> None:
    staged = final(run(settings("staged_parts:weighted")))
    plain = final(run(settings("fedavg")))
    assert all(torch.equal(staged[name], plain[name]) for name in plain)


def test_other_weights_reach_the_second_stage_and_change_it() -> None:
    staged = final(run(settings({"name": "staged_parts:weighted", "slope": 2.0})))
    plain = final(run(settings("fedavg")))
    assert not all(torch.allclose(staged[name], plain[name], atol=1e-4) for name in plain)


def test_weights_stay_at_the_client_and_only_what_is_sent_reaches_the_server() -> None:
    done = run(settings({"name": "staged_parts:weighted", "slope": 2.0}))
    (server,) = (done.path / "checkpoint").glob("server-main-*")
    groups = load_groups(server)
    names = {f"client-00{i}/w" for i in range(4)}
    assert groups["memory/mean"].keys() == names
    assert not any("sample_weight" in group for group in groups)
    lines = (done.path / "rounds.jsonl").read_text().splitlines()
    stages = [json.loads(line)["stage"] for line in lines]
    assert stages == ["density"] * 2 + ["main"] * 3


@pytest.mark.parametrize("at", [("density", 1), ("density", 2), ("main", 1)])
def test_a_run_stopped_in_either_stage_goes_on_to_the_same_bits(at: tuple[str, int]) -> None:
    config = settings({"name": "staged_parts:weighted", "slope": 2.0})

    def stop(progress: object, record: object, rows: object) -> None:
        if (progress.stage, progress.round) == at:  # type: ignore[attr-defined]
            raise RunError("stopped")

    with pytest.raises(RunError, match="stopped"):
        run(config, out="stopped", watch=stop)
    resumed, whole = run(config, out="stopped"), run(config, out="whole")
    one, other = final(resumed), final(whole)
    assert all(torch.equal(one[name], other[name]) for name in other)
    for name in ("metrics.jsonl", "rounds.jsonl"):
        assert (resumed.path / name).read_bytes() == (whole.path / name).read_bytes()


def stages_run(method: dict[str, object] | str, out: str) -> tuple[Run, list[str]]:
    """The run, and the stage of every round that was not taken over."""
    seen: list[str] = []

    def watch(progress: Any, record: object, rows: object) -> None:
        seen.append(progress.stage)

    return run(settings(method), out=out, watch=watch, draw=False), seen


def logged(done: Run, stage: str) -> list[str]:
    lines = (done.path / "metrics.jsonl").read_text().splitlines()
    return [line for line in lines if json.loads(line)["stage"] == stage]


def test_a_run_beside_takes_a_stage_over_and_hands_over_itself() -> None:
    one, first = stages_run({"name": "staged_parts:slower"}, "beside")
    other, second = stages_run({"name": "staged_parts:slower", "server_lr": 0.5}, "beside")
    alone, _ = stages_run({"name": "staged_parts:slower", "server_lr": 0.5}, "alone")
    assert first == ["density"] * 2 + ["main"] * 3
    assert second == ["main"] * 3
    assert logged(one, "density") == logged(other, "density")
    for name in ("metrics.jsonl", "rounds.jsonl"):
        assert (other.path / name).read_bytes() == (alone.path / name).read_bytes()
    ours, theirs = final(other), final(alone)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_runs_that_hand_over_different_things_share_the_rounds_before() -> None:
    stages_run({"name": "staged_parts:weighted", "slope": 1.0}, "beside")
    took, second = stages_run({"name": "staged_parts:weighted", "slope": 2.0}, "beside")
    alone, _ = stages_run({"name": "staged_parts:weighted", "slope": 2.0}, "alone")
    assert second == ["main"] * 3
    assert (took.path / "metrics.jsonl").read_bytes() == (alone.path / "metrics.jsonl").read_bytes()


def test_a_stage_taken_over_stands_on_its_own() -> None:
    """The run it came from may be deleted, and the taker stopped, before it is finished."""
    one, _ = stages_run("staged_parts:slower", "beside")
    config = settings({"name": "staged_parts:slower", "server_lr": 0.5})

    def stop(progress: object, record: object, rows: object) -> None:
        raise RunError("stopped")

    with pytest.raises(RunError, match="stopped"):
        run(config, out="beside", watch=stop)
    shutil.rmtree(one.path)
    resumed, whole = run(config, out="beside", draw=False), run(config, out="whole", draw=False)
    for name in ("metrics.jsonl", "rounds.jsonl"):
        assert (resumed.path / name).read_bytes() == (whole.path / name).read_bytes()


def test_a_stage_is_taken_over_from_a_run_that_was_killed_while_it_wrote() -> None:
    """Its first stage is whole; the line it was writing about the second is not."""
    config = settings("staged_parts:slower")

    def stop(progress: Any, record: object, rows: object) -> None:
        if progress.stage == "main":
            raise RunError("stopped")

    with pytest.raises(RunError, match="stopped"):
        run(config, out="beside", watch=stop)
    (killed,) = Path("beside").iterdir()
    with open(killed / "metrics.jsonl", "a") as file:
        file.write('{"stage": "ma')
    _, second = stages_run({"name": "staged_parts:slower", "server_lr": 0.5}, "beside")
    assert second == ["main"] * 3


def test_a_stage_of_a_users_own_is_never_taken_for_another() -> None:
    stages_run({"name": "staged_parts:scaled", "scale": 1.0}, "beside")
    other, _ = stages_run({"name": "staged_parts:scaled", "scale": 0.1}, "beside")
    alone, _ = stages_run({"name": "staged_parts:scaled", "scale": 0.1}, "alone")
    assert logged(other, "density") == logged(alone, "density")
