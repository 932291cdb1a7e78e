"""What a command does when it is told to stop, once and twice."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

RUN = [
    sys.executable, "-m", "fedskew", "run", "digits", "--set", "train.rounds=3000",
    "--set", "model=logistic", "--set", "evaluate.every=100",
]  # fmt: skip
SLOW_TO_STOP = """
import threading, time
from fedskew.cli.signals import listen

listen()
threading.Thread(target=time.sleep, args=(600,)).start()
try:
    print("working", flush=True)
    time.sleep(600)
except KeyboardInterrupt:
    print("stopping", flush=True)
"""


def heed_ctrl_c() -> None:
    """Undo what a shell does to its background jobs: they are started deaf to Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_stops_a_run_with_a_sentence(
    number: signal.Signals, code: int, tmp_path: Path
) -> None:
    process = subprocess.Popen(
        [*RUN, "--out", str(tmp_path)],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, preexec_fn=heed_ctrl_c,
    )  # fmt: skip
    while not list(tmp_path.glob("*/checkpoint.json")) and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(number)
    _, said = process.communicate(timeout=300)
    assert process.returncode == code
    (sentence,) = said.splitlines()
    assert sentence.startswith("stopped ")
    assert "repeat the command to go on" in sentence


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_a_process_at_once_without_a_traceback(
    second: signal.Signals,
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW_TO_STOP],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heed_ctrl_c,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "working\n"
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "stopping\n"
    process.send_signal(second)
    _, said = process.communicate(timeout=300)
    assert process.returncode == -second
    assert said == ""
