"""A recipe that prepares: a first stage hands weights for single samples over to a second one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from fedskew.errors import RunError
from fedskew.experiment import Run, run
from fedskew.store import load_groups

PARTS = '''
from dataclasses import dataclass

import torch
from fedskew.parts.report import Report, Reported
from fedskew.recipe import Recipe, Stage


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
