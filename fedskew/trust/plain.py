"""Values that settings are made of: text, numbers, lists and tables, none of them out of bounds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fedskew.errors import ConfigError

DEEPEST = 32
"""Tables and lists inside each other; no setting needs more than five."""
LARGEST = 2**63 - 1
PLAIN = (str, int, float, list, tuple, dict, type(None))


def check_plain(values: Any, place: str = "config", *, finite: bool = True, depth: int = 0) -> None:
    """Refuse what no setting can be: other types, numbers far too large or not finite.

    What is not finite would read as null in a run's identity, and two runs would be one; with
    ``finite=False`` somebody else looks at that.

    >>> check_plain({"train": {"lr": float("nan")}})
    Traceback (most recent call last):
    fedskew.errors.ConfigError: train.lr must be a finite number, not nan.
    """
    if depth > DEEPEST:
        raise ConfigError(f"{place[:60]}… is nested more than {DEEPEST} deep: no setting is.")
    if isinstance(values, Mapping):
        for key, value in values.items():
            _check_one(str(key), f"the name of a setting in {place}", finite)
            inside = f"{place}.{key}" if depth else str(key)
            check_plain(value, inside, finite=finite, depth=depth + 1)
    elif isinstance(values, list | tuple):
        for value in values:
            check_plain(value, place, finite=finite, depth=depth + 1)
    else:
        _check_one(values, place, finite)


def _check_one(value: Any, place: str, finite: bool) -> None:
    if finite and isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{place} must be a finite number, not {value}.")
    if isinstance(value, int) and abs(value) > LARGEST:
        raise ConfigError(f"{place} must be a number of at most {LARGEST}, not one beyond that.")
    if isinstance(value, str) and not is_sound(value):
        raise ConfigError(f"{place} holds a NUL or half a character: write plain text.")
    if not isinstance(value, PLAIN):
        raise ConfigError(
            f"{place} must be text, a number, true or false, a list or a table, not "
            f"{type(value).__name__} ({value})."
        )


def is_sound(text: str) -> bool:
    """Whether a text can be written to files and used in paths: no NUL, no half characters."""
    return "\0" not in text and not any("\ud800" <= letter <= "\udfff" for letter in text)
