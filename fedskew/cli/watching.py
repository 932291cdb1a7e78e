"""What a long command prints while it works, and how it stops when the user asks."""

from __future__ import annotations

import sys
from bdb import BdbQuit
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console

from fedskew.cli.signals import exit_code

if TYPE_CHECKING:
    from fedskew.cli.progress import TerminalObserver
    from fedskew.config import Config

WIDE = 240
"""Columns of a table in a file or a pipe, where no window folds it."""


class Stopped(Exception):
    """The user pressed Ctrl-C, or SIGTERM came; the message says how far the work was."""

    def __init__(self, sentence: str, code: int) -> None:
        super().__init__(sentence)
        self.code = code


@contextmanager
def watching(config: Config | None = None) -> Iterator[TerminalObserver]:
    """Print the progress of runs; Ctrl-C and SIGTERM raise :class:`Stopped`."""
    from fedskew.cli.progress import observer

    with observer(console(), config) as watch, stoppable(watch.stopped):
        yield watch


@contextmanager
def stoppable(sentence: Callable[[], str]) -> Iterator[None]:
    """Turn Ctrl-C, also in a debugger, and SIGTERM into :class:`Stopped` with this sentence."""
    try:
        yield
    except (KeyboardInterrupt, BdbQuit) as stopped:
        raise Stopped(sentence(), exit_code(stopped)) from None


def console() -> Console:
    return Console() if sys.stdout.isatty() else Console(width=WIDE)
