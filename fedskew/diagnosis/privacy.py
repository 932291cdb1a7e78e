"""Noise that hides single rows in a summary, and the ε of all of it together."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from numbers import Real

from fedskew.errors import ConfigError
from fedskew.parts.accounting import accounting

DELTA = 1e-5
MOST = 20.0
"""The largest epsilon: more promises nothing that matters, and takes minutes to calibrate."""
LARGEST = 0.1
"""The largest delta: a share of rows that may be told outright."""
SHARES = {"counts": 0.1, "sums": 0.8, "products": 0.1}
"""How the squared signal is divided over what is sent: Σ 1/σ² of all is fixed by ε."""


@dataclass(frozen=True)
class Noise:
    """Deviations of the normal noise on each thing that is sent; one row changes each by 1."""

    counts: float = 0.0
    sums: float = 0.0
    products: float = 0.0
    epsilon: float = math.inf
    delta: float = 0.0

    @property
    def is_none(self) -> bool:
        return self.sums == 0.0


NONE = Noise()


@cache
def noise_for(epsilon: float | None, delta: float = DELTA) -> Noise:
    """The noise with which a summary, all of it together, is (ε, δ)-private for every row.

    Neighbours: one row more or less. It changes one count by 1, one sum by a φ of length 1, and
    the products by a matrix of length 1, so that the three are one Gaussian mechanism of
    multiplier 1/√(Σ 1/σ²), which the accountant turns into ε.
    """
    if epsilon is None:
        return NONE
    if not _is_within(epsilon, MOST):
        raise ConfigError(
            f"epsilon must be a number above 0 and at most {MOST:g}, not {epsilon!r}: leave it out "
            "for no noise."
        )
    if not _is_within(delta, LARGEST):
        raise ConfigError(f"delta must be a number above 0 and at most {LARGEST}, not {delta!r}.")
    library = accounting()
    multiplier = library.calibrate_dp_mechanism(
        library.pld.PLDAccountant,
        library.GaussianDpEvent,
        epsilon,
        delta,
        tol=1e-4,
    )
    sigmas = {name: multiplier / math.sqrt(share) for name, share in SHARES.items()}
    return Noise(**sigmas, epsilon=epsilon, delta=delta)


def _is_within(value: object, most: float) -> bool:
    return isinstance(value, Real) and 0 < float(value) <= most
