"""The exceptions a user can meet; each message is one sentence that says what to change."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from difflib import get_close_matches
from numbers import Integral
from traceback import walk_tb


class FedskewError(Exception):
    """Something the user can correct; the command line exits with code 2."""


class ConfigError(FedskewError):
    """A setting is unknown, out of range or contradicts another."""


class DataError(FedskewError):
    """A dataset is missing, broken or cannot be split as asked."""


class RunError(FedskewError):
    """A run cannot start, be resumed or be read."""


class RunStopped(RunError):
    """A run stopped on its way, its complete rounds kept; the command line exits with code 1."""


class StoppedAtOnce(RunStopped):
    """No client could train in the first round, which is a wrong set-up; exit code 2."""


class TooFewSites(RunError):
    """Fewer sites are connected than a run needs; the command line exits with code 3."""


class Diverged(RunError):
    """A client's numbers are no longer finite; no code raised an exception."""


SHOWN = 200
"""So many letters of a name that does not exist are repeated."""
_AT = "raised at "
_LIBRARIES = {"fedskew", "torch", "numpy", "scipy", "sklearn", "typer", "click", "rich"}
_may_fail: ContextVar[bool] = ContextVar("clients may fail", default=False)


@contextmanager
def clients_may_fail(allowed: bool = True) -> Iterator[None]:
    """Inside this block, a client whose own code raises is dropped for the round.

    The command line works like this. In Python, an exception of a user's part is raised.
    """
    token = _may_fail.set(allowed)
    try:
        yield
    finally:
        _may_fail.reset(token)


def may_clients_fail() -> bool:
    """Whether this is inside such a block."""
    return _may_fail.get()


def debugging() -> bool:
    """Whether the user asked for tracebacks."""
    return bool(os.environ.get("FEDSKEW_DEBUG"))


def failure(error: Exception, place: str) -> str:
    """The line to record for a client that raised an exception; the round goes on without it.

    An exception from a user's part is raised again instead, with its own traceback and a note
    that says where: ``place`` (which client, which round) and what was noted further inside (which
    batch). With FEDSKEW_DEBUG=1 every exception is raised again.
    """
    if isinstance(error, Diverged):
        return str(error)
    inside = place_of(error)
    locate(error, place)
    if debugging() or (is_from_own_code(error) and not _may_fail.get()):
        raise error
    text = f"{type(error).__name__}: {error}"
    return f"{text} ({inside})" if inside else text


def is_from_own_code(error: BaseException) -> bool:
    """Whether an exception passed through code that is neither ours nor a library's."""
    modules = (frame.f_globals.get("__name__") for frame, _ in walk_tb(error.__traceback__))
    known = _LIBRARIES | sys.stdlib_module_names
    return any(name and name.split(".")[0] not in known for name in modules)


def locate(error: BaseException, place: str) -> None:
    """Note where an exception was raised, in front of what has been noted already."""
    inside = place_of(error)
    if inside:
        error.__notes__.remove(_AT + inside)
    error.add_note(f"{_AT}{place}, {inside}" if inside else _AT + place)


def place_of(error: BaseException) -> str:
    """Where an exception was raised, as far as it was noted.

    >>> error = ValueError("odd")
    >>> locate(error, "batch 4 of 12")
    >>> locate(error, "client 'a', round 3")
    >>> place_of(error)
    "client 'a', round 3, batch 4 of 12"
    """
    notes: list[str] = getattr(error, "__notes__", [])
    return next((note.removeprefix(_AT) for note in notes if note.startswith(_AT)), "")


@contextmanager
def located(place: str) -> Iterator[None]:
    """Exceptions that leave this block say that they were raised at this place."""
    try:
        yield
    except Exception as error:
        locate(error, place)
        raise


def unknown(kind: str, given: str, known: Iterable[str], of: str = "") -> ConfigError:
    """The error for a name that does not exist, with the nearest valid choice.

    >>> str(unknown("knob", "mu", ["lam"], of="method 'ditto'"))
    "unknown knob 'mu' of method 'ditto': choose from lam."
    >>> str(unknown("knob", "mu", [], of="method 'local'"))
    "unknown knob 'mu' of method 'local', which has none: remove it."
    """
    choices = sorted(known)
    given = given if len(given) <= SHOWN else f"{given[:SHOWN]}…"
    whose = f" of {of}" if of else ""
    if not choices:
        return ConfigError(f"unknown {kind} {given!r}{whose}, which has none: remove it.")
    nearest = _shortened(given, choices) or get_close_matches(given, choices, n=1, cutoff=0.5)
    hint = f"did you mean {nearest[0]!r}?" if nearest else f"choose from {', '.join(choices)}."
    return ConfigError(f"unknown {kind} {given!r}{whose}: {hint}")


def _shortened(given: str, choices: Iterable[str]) -> list[str]:
    """The choice that is called by the first letters of what was given.

    >>> _shortened("train.learning_rate", ["train.lr", "train.lr_steps"])
    ['train.lr']
    """
    section, dot, name = given.rpartition(".")
    words = name.replace("-", "_").split("_")
    short = section + dot + "".join(word[:1] for word in words)
    return [short] if len(words) > 1 and short in choices else []


def at_least(name: str, value: int, least: int) -> None:
    """Refuse what is no whole number, or one below the least that makes sense."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ConfigError(f"{name} must be a whole number, not {value!r}.")
    if value < least:
        raise ConfigError(f"{name} must be at least {least}, not {value}.")
