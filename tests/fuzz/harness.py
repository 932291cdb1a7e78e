"""Tries one malformed input: a command must refuse it in one sentence, soon, and leave nothing."""

from __future__ import annotations

import contextlib
import io
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from fedskew.cli import main
from fedskew.trust.consent import forget

SECONDS = int(os.environ.get("FEDSKEW_FUZZ_SECONDS", "60"))
"""A command that takes longer hangs; machines that are shared are slow."""
EXAMPLES = 400 if os.environ.get("FEDSKEW_FUZZ") == "long" else 8
"""Random examples of each kind; ``make fuzz`` asks for many more."""
QUICK = (
    "--set", "model=logistic", "--set", "train.rounds=1", "--set", "federation.clients=2",
    "--set", "federation.partition=iid",
)  # fmt: skip


class Hangs(BaseException):
    """A command took too long."""


@contextlib.contextmanager
def limited(seconds: int = SECONDS) -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise Hangs

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def attempt(*words: str) -> tuple[int, str, str]:
    """The exit code of a command, as of a new process, and what it printed to both streams."""
    forget()
    out, err = io.StringIO(), io.StringIO()
    with limited(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(list(words))
    return code, out.getvalue(), err.getvalue()


def tree(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


def refused(folder: Path, *words: str) -> str:
    """The sentence a command refuses its input with; the folder stays as it was."""
    before = tree(folder)
    code, _, err = attempt(*words)
    assert code == 2, f"exit code {code}: {err}"
    lines = err.splitlines()
    assert len(lines) == 1, err
    assert lines[0].startswith("error: "), err
    assert len(lines[0]) < 3000
    assert tree(folder) == before, "something was left behind"
    return lines[0]


def survived(folder: Path, *words: str) -> int:
    """The exit code of a command that may accept its input, but must not fail otherwise."""
    before = tree(folder)
    code, _, err = attempt(*words)
    assert code in (0, 2), f"exit code {code}: {err}"
    if code == 2:
        assert len(err.splitlines()) == 1, err
        assert tree(folder) == before, "something was left behind"
    return code


def run(folder: Path, *settings: str, config: str = "digits") -> tuple[str, ...]:
    """The words of a quick run with these settings."""
    chosen = [word for setting in settings for word in ("--set", setting)]
    return ("run", config, *QUICK, *chosen, "--out", str(folder / "out"))
