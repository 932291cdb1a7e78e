"""What a private federation tells about one client at most: clipping and noise as an epsilon."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import binom, norm

from fedskew.errors import ConfigError


@dataclass(frozen=True)
class Noising:
    """The bound on what a sum over clients tells of one of them.

    Each contribution has length ``clip`` at most, and noise of deviation noise·clip joins their
    sum once; what is promised of it may fail with a chance of ``delta``.
    """

    clip: float
    noise: float
    delta: float


def accounting() -> Any:
    """The library that knows what a lot hides; it is needed by private runs only."""
    try:
        import dp_accounting
    except ImportError as error:
        raise ConfigError(
            "a private run needs dp-accounting to know its epsilon: pip install 'fedskew[privacy]'."
        ) from error
    return dp_accounting


def epsilon(
    noise: float,
    rounds: int,
    per_round: int,
    clients: int,
    delta: float,
    remembers: bool = False,
) -> float:
    """The ε at which ``rounds`` sums of clipped updates are (ε, δ)-private for every client.

    Every round ``per_round`` of the ``clients`` are drawn without replacement, their updates are
    clipped to length C, and normal noise of standard deviation noise·C is added to the sum. Two
    federations are neighbours if one has another client in the place of a client of the other:
    their number is no secret. One clipped update in another's place moves the sum by up to 2·C,
    so what the library calls the noise multiplier (deviation over sensitivity) is noise/2. Where
    privacy is said of a client that is added or left out, the sum moves by C and the same noise
    gets a smaller ε for a weaker promise.

    Two bounds hold, and the smaller one is returned. ``among_known`` is that of somebody who knows
    who took part. The library's also counts that nobody does, which is most of the privacy where
    few are drawn. It takes every round's lot for new: where ``remembers`` says that what a client
    sends depends on rounds it took part in before, a round tells of earlier lots too, and the
    library's bound does not apply.

    >>> round(epsilon(noise=8.0, rounds=100, per_round=10, clients=300, delta=1e-5), 3)
    0.695
    >>> epsilon(noise=0.0, rounds=1, per_round=1, clients=2, delta=1e-5)
    inf
    """
    if noise == 0:
        return math.inf
    known = among_known(noise, rounds, per_round / clients, delta)
    if per_round == clients or remembers:
        return known
    return min(known, _among_unknown(noise, rounds, per_round, clients, delta))


def among_known(noise: float, rounds: int, share: float, delta: float) -> float:
    """The ε towards somebody who is told who took part, with lots that do not look at data.

    A client takes part in m rounds with the binomial's chance. Given the lots, its m sums are
    one Gaussian mechanism of mean μ = 2·√m/noise, also if each round depends on those before
    (Dong, Roth and Su 2022), which needs δ_m(ε) = Φ(μ/2 - ε/μ) - e^ε·Φ(-μ/2 - ε/μ). The lots are
    the same for neighbours, so δ(ε) is the mean of δ_m(ε) over m; ε is where that falls to δ.
    """
    times = np.arange(1, rounds + 1)
    chances, means = binom.pmf(times, rounds, share), 2 * np.sqrt(times) / noise

    def needed(eps: float) -> float:
        beyond = norm.cdf(means / 2 - eps / means)
        weighed = np.exp(eps + norm.logcdf(-means / 2 - eps / means))
        return float(chances @ (beyond - weighed))

    low, high = 0.0, 1.0
    while needed(high) > delta:
        low, high = high, 2 * high
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if needed(middle) > delta else (low, middle)
    return high


def _among_unknown(noise: float, rounds: int, per_round: int, clients: int, delta: float) -> float:
    """The library's Rényi bound (Wang et al. 2019) for lots that nobody learns of."""
    library = accounting()
    everyone = library.GaussianDpEvent(noise / 2)
    event = library.SampledWithoutReplacementDpEvent(clients, per_round, everyone)
    relation = library.NeighboringRelation.REPLACE_ONE
    accountant = library.rdp.RdpAccountant(neighboring_relation=relation)
    return float(accountant.compose(event, rounds).get_epsilon(delta))
