"""How much is measured, and the small things all sections share."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Numbers = dict[str, Any]
"""What a section found, as plain values for the JSON file."""


@dataclass(frozen=True)
class Plan:
    """``quick`` checks that everything works; its numbers mean nothing."""

    runs: Path
    quick: bool = False

    @property
    def seeds(self) -> int:
        return 2 if self.quick else 3

    @property
    def draws(self) -> int:
        return 3 if self.quick else 20


def plus_minus(values: Sequence[float], digits: int = 3, factor: float = 1.0) -> str:
    """Mean ± standard deviation.

    >>> plus_minus([0.5, 1.0])
    '0.750 ± 0.354'
    """
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    # Adding zero takes the sign off a mean that rounds to minus zero.
    mean = round(factor * statistics.fmean(values), digits) + 0.0
    return f"{mean:.{digits}f} ± {factor * deviation:.{digits}f}"


def listed(words: Sequence[str]) -> str:
    """Words as a sentence has them.

    >>> listed(["a", "b", "c"]), listed(["a"])
    ('a, b and c', 'a')
    """
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
