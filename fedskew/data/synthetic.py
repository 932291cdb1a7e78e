"""Clients with known distributions (laws), so that the true ratio of their densities is known.

Both kinds of law tilt a shared one. How far clients are apart does not depend on the number of
dimensions: the Kullback-Leibler divergence of a client from the shared law is shift^2 / 2 (for bits
approximately, if the shift is small). Labels follow one p(y|x), the same for all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Protocol

import numpy as np
from scipy.linalg import solve_triangular, toeplitz
from scipy.special import expit

from fedskew.data.federation import Floats
from fedskew.data.prepare import Floats as Samples
from fedskew.data.raw import RawSamples
from fedskew.registry.knobs import Knob
from fedskew.rng import keyed_rng

_STEEPNESS = 4.0
"""How fast p(y|x) changes: with 4, the best possible classifier is wrong on one row in twelve."""


class Law(Protocol):
    """How each client draws samples, and how likely samples are under every client's law."""

    def draw(self, client: int, rows: int, rng: np.random.Generator) -> Samples: ...

    def standardised(self, x: Floats) -> Floats:
        """Samples with mean 0 and no correlations under the shared law."""
        ...

    def log_densities(self, x: Floats) -> Floats:
        """log q_j(x) of samples (rows) under each client's law (columns)."""
        ...


@dataclass(frozen=True)
class Gaussians:
    """N(mu_k, S) with S = R R^T and mu_k = R m_k, where R is ``root`` and m_k are ``means``."""

    means: Floats
    root: Floats

    def draw(self, client: int, rows: int, rng: np.random.Generator) -> Samples:
        z = rng.standard_normal((rows, len(self.root))) + self.means[client]
        drawn: Samples = (z @ self.root.T).astype(np.float32)
        return drawn

    def standardised(self, x: Floats) -> Floats:
        z: Floats = solve_triangular(self.root, x.T, lower=True).T
        return z

    def log_densities(self, x: Floats) -> Floats:
        z = self.standardised(x)
        volume = np.log(np.diag(self.root)).sum() + len(self.root) / 2 * math.log(2 * math.pi)
        shared = -np.square(z).sum(axis=1) / 2 - volume
        tilts = z @ self.means.T - np.square(self.means).sum(axis=1) / 2
        return np.asarray(shared[:, None] + tilts)


@dataclass(frozen=True)
class Bits:
    """Independent bits; their log odds are the shared ``odds`` plus the client's ``tilts``."""

    odds: Floats
    tilts: Floats

    def draw(self, client: int, rows: int, rng: np.random.Generator) -> Samples:
        chances = expit(self.odds + self.tilts[client])
        drawn: Samples = (rng.random((rows, len(chances))) < chances).astype(np.float32)
        return drawn

    def standardised(self, x: Floats) -> Floats:
        chances = expit(self.odds)
        return np.asarray((x - chances) / np.sqrt(chances * (1 - chances)))

    def log_densities(self, x: Floats) -> Floats:
        shared = x @ self.odds - np.logaddexp(0, self.odds).sum()
        grown = np.logaddexp(0, self.odds + self.tilts) - np.logaddexp(0, self.odds)
        tilts = x @ self.tilts.T - grown.sum(axis=1)
        return np.asarray(shared[:, None] + tilts)


@dataclass(frozen=True)
class Laws:
    """How many owners draw how many samples, and how far their laws are apart."""

    owners: Annotated[int, Knob("number of owners", ge=1)] = 10
    dimensions: Annotated[int, Knob("features of a sample", ge=2, le=784)] = 2
    size: Annotated[int, Knob("samples of each owner", ge=1)] = 500
    shift: Annotated[
        float, Knob("how far owners are from the shared law, in any number of dimensions", ge=0)
    ] = 1.0
    data_seed: Annotated[
        int, Knob("seed of the laws and of the samples; no other seed changes them", ge=0)
    ] = 0


def gaussian_clients(laws: Laws, correlation: float) -> RawSamples:
    """Owner k draws from N(mu_k, S): the same S for all, mu_k at distance ``shift`` from 0.

    The distance is measured in deviations (Mahalanobis), the direction is random. Neighbouring
    dimensions correlate: S_ij = correlation^|i - j|.
    """
    name = "gaussian-clients"
    directions = _directions(name, laws)
    root = np.linalg.cholesky(toeplitz(float(correlation) ** np.arange(laws.dimensions)))
    return _samples(name, Gaussians(laws.shift * directions, root), directions, laws)


def bernoulli_clients(laws: Laws) -> RawSamples:
    """Owner k draws independent bits, with probabilities around shared ones in .2 to .8.

    Log odds differ by shift * u / deviation of the bit; u is a random direction of length 1.
    """
    name = "bernoulli-clients"
    directions = _directions(name, laws)
    chances = keyed_rng(laws.data_seed, name, "chances").uniform(0.2, 0.8, laws.dimensions)
    tilts = laws.shift * directions / np.sqrt(chances * (1 - chances))
    law = Bits(np.log(chances / (1 - chances)), tilts)
    return _samples(name, law, directions, laws)


def _directions(name: str, laws: Laws) -> Floats:
    """A direction of length 1 for each owner."""
    rng = keyed_rng(laws.data_seed, name, "directions")
    drawn = rng.standard_normal((laws.owners, laws.dimensions))
    return np.asarray(drawn / np.linalg.norm(drawn, axis=1, keepdims=True))


def _samples(name: str, law: Law, directions: Floats, laws: Laws) -> RawSamples:
    """Rows of one owner after the other, with labels and densities.

    p(y = 1|x) = sigmoid(4 (a + b^2 - m)): a and b are standardised samples along two directions
    that mix those of the owners, so that clients differ in what their labels depend on in any
    number of dimensions. The median m makes both classes about equally frequent.
    """
    owners, size, seed = laws.owners, laws.size, laws.data_seed
    rng = keyed_rng(seed, name, "rows")
    mixed = keyed_rng(seed, name, "labels").standard_normal((2, owners)) @ directions
    axes = np.linalg.qr(mixed.T).Q
    x, densities, along = [], [], []
    for k in range(owners):
        x.append(law.draw(k, size, rng))
        # Stored samples are rounded; the densities are those of the stored values.
        stored = x[-1].astype(np.float64)
        densities.append(law.log_densities(stored))
        along.append(law.standardised(stored) @ axes)
    a, b = np.concatenate(along).T
    score = a + np.square(b)
    chance = expit(_STEEPNESS * (score - np.median(score)))
    y = (keyed_rng(seed, name, "chance").random(len(chance)) < chance).astype(np.int64)
    width = max(2, len(str(owners - 1)))
    return RawSamples(
        name, np.concatenate(x), y, ("0", "1"),
        owner=np.repeat(np.arange(owners), size),
        owner_names=tuple(f"owner-{k:0{width}d}" for k in range(owners)),
        log_densities=np.concatenate(densities),
    )  # fmt: skip
