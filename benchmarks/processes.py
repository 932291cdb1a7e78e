"""The parent's side: contenders as child processes of which only one may run at a time."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks.peers import ROOT
from benchmarks.protocol import Reply, descendants

TIMEOUT = 900.0
SETTLE = 0.2


class ContenderFailed(Exception):
    """A contender answered with an error, ended, or took too long."""


class Child:
    """A contender's process, frozen whenever it has not been asked anything.

    Freezing matters because Ray and Flower poll while idle, which would slow the others down.
    """

    def __init__(self, command: list[str], log: Path) -> None:
        self._log = log.open("w")
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            cwd=ROOT,
            start_new_session=True,
        )
        self._frozen = False

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._thaw()
        tree = descendants(self._process.pid)
        with contextlib.suppress(OSError):
            self._send({"cmd": "quit"})
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=30)
        _signal(tree, signal.SIGKILL)
        self._process.wait()
        self._log.close()

    def ask(self, **command: Any) -> Reply:
        """Thaw, send one command, wait for its answer, freeze."""
        self._thaw()
        timer = threading.Timer(TIMEOUT, self._kill)
        timer.start()
        try:
            self._send(command)
            line = self._process.stdout.readline()
        except OSError as error:
            raise ContenderFailed(f"ended: {error}") from error
        finally:
            timer.cancel()
        if not line:
            raise ContenderFailed(f"ended or exceeded {TIMEOUT:.0f} s; see {self._log.name}")
        self._freeze()
        reply: Reply = json.loads(line)
        if "error" in reply:
            raise ContenderFailed(reply["error"])
        return reply

    def _send(self, command: dict[str, Any]) -> None:
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()

    def _kill(self) -> None:
        _signal(descendants(self._process.pid), signal.SIGKILL)

    def _freeze(self) -> None:
        _signal(descendants(self._process.pid), signal.SIGSTOP)
        self._frozen = True

    def _thaw(self) -> None:
        if self._frozen:
            _signal(descendants(self._process.pid), signal.SIGCONT)
            self._frozen = False
            # Timers that ran out meanwhile fire now, and should not be timed.
            time.sleep(SETTLE)


def _signal(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
