"""What a private federation tells about one client at most, by the dp-accounting library."""

from __future__ import annotations

import math
from typing import Any

from fedskew.errors import ConfigError


def accounting() -> Any:
    """The library that does the sums; it is needed by private runs only."""
    try:
        import dp_accounting
    except ImportError as error:
        raise ConfigError(
            "a private run needs dp-accounting to know its epsilon: pip install 'fedskew[privacy]'."
        ) from error
    return dp_accounting


def epsilon(noise: float, rounds: int, per_round: int, clients: int, delta: float) -> float:
    """The ε at which ``rounds`` sums of clipped updates are (ε, δ)-private for every client.

    Every round ``per_round`` of the ``clients`` are drawn without replacement, their updates are
    clipped to length C, and normal noise of standard deviation noise·C is added to the sum. Two
    federations are neighbours if one has another client in the place of a client of the other:
    their number is no secret. One clipped update in another's place moves the sum by up to 2·C,
    so what the library calls the noise multiplier (deviation over sensitivity) is noise/2. Where
    privacy is said of a client that is added or left out, the sum moves by C and the same noise
    gets a smaller ε for a weaker promise.

    The bound for a sample is loose where there is little noise; a sum over all clients tells at
    least as much as one over some, so the smaller ε of the two holds.

    >>> round(epsilon(noise=8.0, rounds=100, per_round=10, clients=300, delta=1e-5), 3)
    0.695
    >>> epsilon(noise=0.0, rounds=1, per_round=1, clients=2, delta=1e-5)
    inf
    """
    if noise == 0:
        return math.inf
    library = accounting()
    everyone = library.GaussianDpEvent(noise / 2)
    events = [everyone]
    if per_round < clients:
        events.append(library.SampledWithoutReplacementDpEvent(clients, per_round, everyone))
    return min(_composed(library, event, rounds, delta) for event in events)


def _composed(library: Any, event: Any, rounds: int, delta: float) -> float:
    relation = library.NeighboringRelation.REPLACE_ONE
    accountant = library.rdp.RdpAccountant(neighboring_relation=relation)
    return float(accountant.compose(event, rounds).get_epsilon(delta))
