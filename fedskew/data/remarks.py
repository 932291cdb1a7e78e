"""What there was to say about files while they were read."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Remarks:
    """Sentences for whoever reads the files, and every file that was left out with its reason."""

    said: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()


NOTHING = Remarks()
