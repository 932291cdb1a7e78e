"""Ctrl-C and SIGTERM: the first stops the work in order, the second ends the process at once."""

from __future__ import annotations

import signal
from types import FrameType

LISTENED = (signal.SIGINT, signal.SIGTERM)


class Terminated(KeyboardInterrupt):
    """SIGTERM came: all that minds Ctrl-C minds it too."""


def listen() -> None:
    """From now on the first of these signals raises, in the main thread.

    The second has its default effect, wherever the process is then, without a traceback: files are
    whole or absent at every moment. Signals that whoever started us ignores stay ignored.
    """
    for number in LISTENED:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _stop)


def _stop(number: int, frame: FrameType | None) -> None:
    for each in LISTENED:
        if signal.getsignal(each) is _stop:
            signal.signal(each, signal.SIG_DFL)
    raise Terminated if number == signal.SIGTERM else KeyboardInterrupt


def exit_code(stopped: BaseException) -> int:
    """What shells expect of a process that such a signal ended."""
    return 128 + (signal.SIGTERM if isinstance(stopped, Terminated) else signal.SIGINT)
