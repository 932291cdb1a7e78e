"""Programs that run as long as we do: started in groups of their own, restarted, ended with us."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from fedskew.sites.flower import QUIET

SHORTEST, LONGEST = 1.0, 60.0
"""Seconds before a program that ended is started again: more each time, until it lasts."""
LASTED = 120.0
PATIENCE = 10.0
"""Seconds that a program has to end by itself."""
_PR_SET_PDEATHSIG = 1


@dataclass
class Program:
    """A program and, while it runs, its process; output goes to ``log``, or to ours."""

    name: str
    command: Sequence[str]
    log: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    begun: float = 0.0
    pause: float = SHORTEST
    again: float = 0.0

    def start(self) -> None:
        """Start it in a group of its own, so that all it starts can be ended with it."""
        environment = {**os.environ, **QUIET, **self.environment}
        with open(self.log or os.devnull, "ab") as log:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=log if self.log else None,
                stderr=log if self.log else None, start_new_session=True, env=environment,
                preexec_fn=_end_with_parent,
            )  # fmt: skip
        self.begun = time.monotonic()

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def end(self, how: int = signal.SIGTERM) -> None:
        """End it and whatever it started."""
        if self.process is None:
            return
        for number in (how, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(PATIENCE)
                break
        with suppress(ProcessLookupError):  # what it left behind in its group
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process = None

    def last_words(self, most: int = 500) -> str:
        """The end of what it printed."""
        if self.log is None or not self.log.is_file():
            return ""
        return self.log.read_text(errors="replace").strip()[-most:]


def _end_with_parent() -> None:
    """Let Linux end this process if ours is killed, so that none is left alone with its port."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def site_program(folder: Path, log: Path | None = None) -> Program:
    """The process that answers for a site."""
    command = [sys.executable, "-m", "fedskew", "site", "start", str(folder), "--once"]
    return Program(f"site {folder.name}", command, log)


class Supervisor:
    """Starts programs, starts again what ends, and ends all; use it in a ``with`` statement."""

    def __init__(self, programs: Sequence[Program], tell: Callable[[str], None] = print) -> None:
        self.programs = programs
        self._tell = tell

    def __enter__(self) -> Supervisor:
        try:
            for program in self.programs:
                program.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for program in reversed(self.programs):
            program.end()

    def look(self) -> None:
        """Start again what has ended, later and later if it keeps ending."""
        now = time.monotonic()
        for program in self.programs:
            if program.runs:
                continue
            if program.process is not None:
                code = program.process.returncode
                program.pause = (
                    SHORTEST if now - program.begun > LASTED else min(2 * program.pause, LONGEST)
                )
                program.again = now + program.pause
                self._tell(f"{program.name} ended ({code}); again in {program.pause:.0f} s")
                program.end()
            elif now > program.again:
                program.start()

    def keep(self, stop: threading.Event) -> None:
        """Look after the programs until told to stop."""
        while not stop.wait(0.5):
            self.look()
