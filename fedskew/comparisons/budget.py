"""What a bake-off may cost: rounds of training, minutes, or megabytes sent and received."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from fedskew.errors import ConfigError

Unit = Literal["rounds", "minutes", "MB"]
UNITS: dict[str, tuple[Unit, float]] = {
    "": ("rounds", 1), "rounds": ("rounds", 1), "m": ("minutes", 1), "min": ("minutes", 1),
    "minutes": ("minutes", 1), "h": ("minutes", 60), "mb": ("MB", 1), "gb": ("MB", 1000),
}  # fmt: skip
WRITTEN = re.compile(r"\s*(-?\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*")


@dataclass(frozen=True)
class Budget:
    """So much of a unit, of all runs together."""

    amount: float
    unit: Unit

    @classmethod
    def of(cls, given: str | float) -> Budget:
        """As users write it.

        >>> Budget.of("200"), Budget.of("1.5h")
        (Budget(amount=200.0, unit='rounds'), Budget(amount=90.0, unit='minutes'))
        """
        found = WRITTEN.fullmatch(str(given)) if not isinstance(given, bool) else None
        unit = UNITS.get(found[2].lower()) if found else None
        if found is None or unit is None:
            raise ConfigError(
                f"budget must be rounds of all runs together (200), minutes (30m) or megabytes "
                f"(500MB), not {given!r:.80}."
            )
        amount = float(found[1]) * unit[1]
        if not amount > 0:
            raise ConfigError(f"budget must be above 0, not {given!r:.80}.")
        return cls(amount, unit[0])

    def __str__(self) -> str:
        return written(self.amount, self.unit)

    def too_small(self, least: float) -> ConfigError:
        """The error that says what would do."""
        return ConfigError(
            f"budget {self} is too small for these methods, clients and rounds: "
            f"{written(_rounded_up(least), self.unit)} is the smallest that works; or name fewer "
            "methods, or lower train.rounds."
        )


def written(amount: float, unit: Unit) -> str:
    """As a user would write it.

    >>> written(200.0, "rounds"), written(0.25, "MB"), written(12.0, "minutes")
    ('200', '0.25MB', '12m')
    """
    return f"{amount:g}" + {"rounds": "", "minutes": "m", "MB": "MB"}[unit]


def _rounded_up(amount: float) -> float:
    """To two digits, or a whole number: what is told must be enough."""
    if amount >= 100:
        return float(math.ceil(amount))
    step = 10.0 ** (math.floor(math.log10(amount)) - 1) if amount > 0 else 1.0
    return round(math.ceil(amount / step - 1e-9) * step, 12)


@dataclass(frozen=True)
class Spent:
    """What a run cost so far, earlier stages included; seconds are those of its rounds."""

    rounds: int = 0
    seconds: float = 0.0
    bytes: int = 0

    def __add__(self, other: Spent) -> Spent:
        return Spent(
            self.rounds + other.rounds, self.seconds + other.seconds, self.bytes + other.bytes
        )

    def __sub__(self, other: Spent) -> Spent:
        return Spent(
            self.rounds - other.rounds, self.seconds - other.seconds, self.bytes - other.bytes
        )


def total(spent: Mapping[str, Spent]) -> Spent:
    """Of all runs together."""
    return sum(spent.values(), Spent())


def prices(spent: Mapping[str, Spent], unit: Unit, elapsed: float) -> dict[str, float]:
    """What one more round of each costs, by what those so far did.

    Minutes are those that passed on the clock, which several runs at the same time share.
    """
    rounds = max(total(spent).rounds, 1)
    if unit == "minutes":
        return dict.fromkeys(spent, elapsed / 60 / rounds)
    if unit == "MB":
        return {name: s.bytes / 1e6 / max(s.rounds, 1) for name, s in spent.items()}
    return dict.fromkeys(spent, 1.0)
