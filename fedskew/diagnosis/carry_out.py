"""The whole diagnosis of a federation in one process: openings, basis, summaries, scores."""

from __future__ import annotations

from fedskew.data.federation import Federation
from fedskew.diagnosis.basis import CELL, Basis, agreed, opening, public_basis
from fedskew.diagnosis.privacy import DELTA, noise_for
from fedskew.diagnosis.report import Diagnosis, diagnosed
from fedskew.diagnosis.summary import summarise
from fedskew.engine.arithmetic import one_order
from fedskew.errors import ConfigError


def diagnose(
    federation: Federation,
    *,
    epsilon: float | None = None,
    delta: float = DELTA,
    cell: int = CELL,
    seed: int = 0,
) -> Diagnosis:
    """How different the clients of a federation are, from the training rows of those that train."""
    return diagnosed_with_basis(federation, epsilon, delta, cell, seed)[0]


def diagnosed_with_basis(
    federation: Federation,
    epsilon: float | None = None,
    delta: float = DELTA,
    cell: int = CELL,
    seed: int = 0,
) -> tuple[Diagnosis, Basis]:
    if not isinstance(federation, Federation):
        raise ConfigError(
            f"diagnose takes a fedskew Federation, not {type(federation).__name__}: "
            "fedskew.make_federation makes one of a config, fedskew.federation_from of your data."
        )
    noise = noise_for(epsilon, delta)
    if noise.is_none:
        with one_order():
            openings = [opening(federation, client.name) for client in federation.clients]
        basis = agreed(openings, seed, cell)
    else:
        basis = public_basis(federation, seed, cell)
    return diagnosed(summarise(federation, basis, noise), basis), basis
