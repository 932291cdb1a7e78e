"""Programs that are looked after: started again when they end, ended with whatever they started."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from fedskew.sites.programs import Program, Supervisor

SLEEPS = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]
CHILDREN = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
"""


def wait_until(true: object, seconds: float = 120) -> None:
    until = time.monotonic() + seconds
    while not true():  # type: ignore[operator]
        assert time.monotonic() < until
        time.sleep(0.05)


def is_alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_a_program_that_ends_is_started_again_later_and_later(tmp_path: Path) -> None:
    told: list[str] = []
    log = tmp_path / "log"
    program = Program("quits", [sys.executable, "-c", "print('up'); raise SystemExit(3)"], log)
    with Supervisor([program], told.append) as supervisor:
        for _ in range(2):
            wait_until(lambda: not program.runs)
            supervisor.look()
            program.again = 0.0
            supervisor.look()
    assert told == ["quits ended (3); again in 2 s", "quits ended (3); again in 4 s"]
    assert log.read_text().count("up") >= 2
    assert program.last_words().endswith("up")


def test_what_a_program_started_ends_with_it(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with Supervisor([Program("parent", [sys.executable, "-c", CHILDREN], log)]):
        wait_until(lambda: log.read_text().strip())
        child = int(log.read_text())
        assert is_alive(child)
    wait_until(lambda: not is_alive(child))


def test_programs_end_in_reverse_order_also_if_one_cannot_start(tmp_path: Path) -> None:
    good = Program("good", SLEEPS, tmp_path / "log")
    try:
        with Supervisor([good, Program("bad", ["/no/such/program"])]):
            raise AssertionError("the second program cannot start")
    except FileNotFoundError:
        pass
    assert good.process is None


def test_a_deaf_program_is_killed(tmp_path: Path) -> None:
    deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); "
    log = tmp_path / "log"
    program = Program("deaf", [sys.executable, "-c", f"{deaf}time.sleep(600)"], log)
    program.start()
    wait_until(lambda: log.read_text().strip())
    assert program.process is not None
    number = program.process.pid
    program.end()
    assert not is_alive(number)
    assert os.path.exists(log)
