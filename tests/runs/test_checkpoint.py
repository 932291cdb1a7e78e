"""What a run goes on from is what it stopped with."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import fedskew
from fedskew.federate.progress import Progress
from fedskew.federate.rounds import Choice, Score
from fedskew.parts.aggregate import ServerState
from fedskew.runs.checkpoint import Checkpoint

TIED = Choice(2, 0.1 + 0.2, waited=1, loss=1 / 3, clients=4)


def saved(folder: Path, progress: Progress) -> None:
    checkpoint = Checkpoint(folder)
    checkpoint.folder.mkdir(exist_ok=True)
    checkpoint.commit(progress, checkpoint.save_state(progress), {})


def test_a_choice_comes_back_with_all_that_decides_the_next_tie(tmp_path: Path) -> None:
    state = ServerState({"w": torch.ones(1)})
    saved(tmp_path, Progress("main", 2, state, TIED))
    saved(tmp_path, Progress("main", 3, state, TIED))
    found = Checkpoint(tmp_path).progress("main", "last")
    assert (found.round, found.selected) == (3, TIED)
    for score in (Score(0.3, 0.3, 4), Score(0.3, 0.4, 4), Score(0.9, 0.1, 3)):
        assert found.selected.see(4, score, True) == TIED.see(4, score, True)


def test_a_score_out_of_turn_is_taken_back_with_its_loss_and_clients(tmp_path: Path) -> None:
    state = ServerState({"w": torch.ones(1)})
    saved(tmp_path, Progress("main", 2, state, TIED))
    better = Choice(3, 0.9, loss=0.1, clients=5)
    saved(tmp_path, Progress("main", 3, state, better, unless_last=TIED))
    checkpoint = Checkpoint(tmp_path)
    assert checkpoint.progress("main", "selected").round == 3
    assert checkpoint.before_out_of_turn("main", "metrics.jsonl", rounds=6) == 3
    assert checkpoint.progress("main", "last").selected == TIED
    assert checkpoint.progress("main", "selected").round == 2


def test_states_are_swept_where_the_last_round_was_killed_before_it_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {
        "federation": {"samples": 300, "clients": 4},
        "method": "fedrep",
        "model": {"name": "mlp", "hidden": [8]},
        "train": {"rounds": 3, "batch_size": 16, "clients_per_round": 2},
    }
    sweep, commits = Checkpoint.sweep, [0]

    def killed(checkpoint: Checkpoint) -> None:
        commits[0] += not checkpoint.is_empty
        if commits[0] == 3:
            raise KeyboardInterrupt
        sweep(checkpoint)

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoint, "sweep", killed)
        with pytest.raises(KeyboardInterrupt):
            fedskew.run(settings, out=tmp_path / "killed", draw=False)
    ended = fedskew.run(settings, out=tmp_path / "killed", draw=False)
    whole = fedskew.run(settings, out=tmp_path / "whole", draw=False)
    states = [sorted(p.name for p in (run.path / "checkpoint").iterdir()) for run in (ended, whole)]
    assert states[0] == states[1]
