"""A run killed at any moment finishes, by the same command, to the same bits."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

KILLS = int(os.environ.get("FEDSKEW_KILLS", "3"))
COMMAND = [
    sys.executable, "-m", "fedskew", "run", "digits",
    "--set", "train.rounds=40", "--set", "method=scaffold", "--set", "train.patience=30",
    "--set", "train.clients_per_round=6", "--set", "evaluate.fine_tune_epochs=1",
]  # fmt: skip
COMPARED = ("metrics.jsonl", "rounds.jsonl")


def contents(out: Path) -> dict[str, bytes]:
    """Everything a run leaves that does not depend on the clock."""
    (run,) = out.iterdir()
    files = [run / name for name in COMPARED] + sorted(run.rglob("*.safetensors"))
    return {str(file.relative_to(run)): file.read_bytes() for file in files}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("whole")
    subprocess.run([*COMMAND, "--out", str(out)], check=True, capture_output=True)
    return contents(out)


def test_a_run_killed_at_random_moments_resumes_to_the_same_bits(
    tmp_path: Path, uninterrupted: dict[str, bytes]
) -> None:
    moments = random.Random(20261115)
    kills = 0
    while kills < KILLS:
        process = subprocess.Popen(
            [*COMMAND, "--out", str(tmp_path)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        before = rounds_done(tmp_path)
        # Start-up takes most of the time: wait until a round is on disk, then strike at random.
        while rounds_done(tmp_path) == before and process.poll() is None:
            time.sleep(0.005)
        time.sleep(moments.uniform(0.0, 0.1))
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills += 1
    assert kills, "the run finished before it could be killed once"

    subprocess.run([*COMMAND, "--out", str(tmp_path)], check=True, capture_output=True)

    assert contents(tmp_path) == uninterrupted


def rounds_done(out: Path) -> int:
    logs = list(out.glob("*/rounds.jsonl"))
    return len(logs[0].read_bytes().splitlines()) if logs else 0
