"""A later round in which nobody can be used ends a command with code 1, to be gone on with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from fedskew.cli import main
from fedskew.federate.backends.local import LocalBackend
from fedskew.federate.tasks import Answer, Ask

COMMAND = ["run", "digits", "--set", "train.rounds=3", "--set", "model=logistic", "--out"]


def numbers(out: Path) -> bytes:
    (run,) = out.iterdir()
    return (run / "metrics.jsonl").read_bytes() + (run / "rounds.jsonl").read_bytes()


def test_the_run_stops_with_a_reason_and_goes_on_once_the_cause_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*COMMAND, str(tmp_path / "whole")]) == 0
    capsys.readouterr()
    exchange = LocalBackend.exchange

    def unplugged(self: LocalBackend, asks: Sequence[Ask]) -> list[Answer]:
        answers = exchange(self, asks)
        if any(ask.train is not None and ask.train.round == 3 for ask in asks):
            return [replace(answer, update=None, error="unplugged") for answer in answers]
        return answers

    with monkeypatch.context() as patch:
        patch.setattr(LocalBackend, "exchange", unplugged)
        assert main([*COMMAND, str(tmp_path / "stopped")]) == 1
    (sentence,) = capsys.readouterr().err.splitlines()
    assert sentence.startswith("error: every client failed in round 3 of stage 'main' (")
    assert "unplugged" in sentence
    (run,) = (tmp_path / "stopped").iterdir()
    assert not (run / "result.json").exists()
    assert len((run / "rounds.jsonl").read_bytes().splitlines()) == 2

    assert main([*COMMAND, str(tmp_path / "stopped")]) == 0
    assert numbers(tmp_path / "stopped") == numbers(tmp_path / "whole")
    assert "the largest)" in capsys.readouterr().out


def test_a_first_round_in_which_everybody_fails_is_a_wrong_set_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    too_fast = ["--set", "model=mlp", "--set", "train.lr=1e30"]
    assert main([*COMMAND, str(tmp_path / "run"), *too_fast]) == 2
    assert "every client failed in the first round" in capsys.readouterr().err
    compared = ["compare", "fedavg", "--no-references", *too_fast, "--out"]
    assert main([*compared, str(tmp_path / "compared")]) == 2
    assert "every client failed in the first round" in capsys.readouterr().err
