"""The exceptions a user can meet; each message is one sentence that says what to change."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class FedskewError(Exception):
    """Something the user can put right; the command line exits with code 2."""


class ConfigError(FedskewError):
    """A setting is unknown, out of range or contradicts another."""


class DataError(FedskewError):
    """A dataset is missing, broken or cannot be split as asked."""


class RunError(FedskewError):
    """A run cannot start, go on or be read."""


def unknown(kind: str, given: str, known: Iterable[str]) -> ConfigError:
    """The error for a name nobody registered, with the nearest valid choice."""
    choices = sorted(known)
    nearest = get_close_matches(given, choices, n=1, cutoff=0.5)
    hint = f"did you mean {nearest[0]!r}?" if nearest else f"choose from {', '.join(choices)}."
    return ConfigError(f"unknown {kind} {given!r}: {hint}")
