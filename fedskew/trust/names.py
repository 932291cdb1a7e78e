"""Names that can be printed, written to tables and told apart."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

from fedskew.errors import DataError

LONGEST = 200
RESERVED = ("pooled", "central", "global")
"""What rows of results and traffic call things that are no clients."""
_HARMFUL = {"Cc": "a control character", "Cs": "half a character", "Zl": "a line break",
            "Zp": "a paragraph break"}  # fmt: skip


def check_names(federation: str, names: Iterable[str]) -> None:
    """Refuse names of clients that would break files, tables or the terminal."""
    seen: set[str] = set()
    for name in names:
        if not isinstance(name, str) or not name.strip():
            raise DataError(f"federation {federation!r} has a client without a name: {name!r}.")
        if name in seen:
            raise DataError(f"federation {federation!r} has two clients named {name!r}.")
        seen.add(name)
        shown = f"{name[:40]!a}"
        if len(name) > LONGEST:
            raise DataError(
                f"federation {federation!r}: the name of client {shown}… has {len(name)} "
                f"characters: use at most {LONGEST}."
            )
        if name in RESERVED:
            raise DataError(
                f"federation {federation!r}: no client can be named {name!r}, which results use "
                "for something else: rename it."
            )
        for letter in name:
            if (harm := _HARMFUL.get(unicodedata.category(letter))) is not None:
                raise DataError(
                    f"federation {federation!r}: the name of client {shown} holds {harm}: rename "
                    "it."
                )
