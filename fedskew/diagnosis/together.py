"""All clients' summaries as arrays, and what every score is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from fedskew.diagnosis.basis import WIDTH, Basis, Floats
from fedskew.diagnosis.privacy import Noise
from fedskew.diagnosis.summary import Summary
from fedskew.errors import DataError

ENOUGH_CLIENTS = 2
ENOUGH_SHOWN = 0.5
"""Shifts are judged if cells that were sent hold this share of the rows."""
CONCENTRATED = 0.2
"""tr Σ²/(tr Σ)² of features within a class: .05 to .11 in the five datasets that were looked at."""


@dataclass(frozen=True, eq=False)
class Together:
    """K clients in the order of their names: rows [K], counts [K, C], sums [K, C, D]."""

    basis: Basis
    summaries: tuple[Summary, ...]

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(each.client for each in self.summaries)

    @cached_property
    def rows(self) -> Floats:
        return np.array([each.rows for each in self.summaries], np.float64)

    @cached_property
    def counts(self) -> Floats:
        return np.stack([each.counts for each in self.summaries])

    @cached_property
    def labels(self) -> Floats:
        """What label skew is read off: classes, or groups where most rows lie in small classes."""
        small = float(self.counts.sum()) < ENOUGH_SHOWN * float(self.rows.sum())
        if small and self.basis.groups:
            return np.stack([each.joined for each in self.summaries])
        return self.counts

    @property
    def groups(self) -> int:
        """How many groups label skew is read off; 0 if it is of classes."""
        return 0 if self.labels is self.counts else self.labels.shape[1]

    @cached_property
    def sums(self) -> Floats:
        return np.stack([each.sums for each in self.summaries]).astype(np.float64)

    @property
    def noise(self) -> Noise:
        return self.summaries[0].noise

    @cached_property
    def shown(self) -> Floats:
        """The share of each client's rows that lie in cells large enough to be sent."""
        return np.asarray(self.counts.sum(axis=1) / np.maximum(self.rows, 1.0))

    @cached_property
    def within(self) -> Floats:
        """The covariance of φ within a class, pooled over classes: [D, D]."""
        counts, sums = self.counts.sum(axis=0), self.sums.sum(axis=0)
        held = counts > 0
        means = sums[held] / counts[held, None]
        gram = np.sum([each.products for each in self.summaries], axis=0, dtype=np.float64)
        full = np.zeros((WIDTH, WIDTH))
        full[np.triu_indices(WIDTH)] = gram
        full += np.triu(full, 1).T
        free = max(1.0, counts.sum() - float(held.sum()))
        return np.asarray((full - (means.T * counts[held]) @ means) / free)

    @cached_property
    def traces(self) -> tuple[float, float, float]:
        """tr Σ, tr Σ² and tr Σ³ of the covariance Σ within a class, as means over classes."""
        sigma = self.within
        square = sigma @ sigma
        first = max(float(np.trace(sigma)), 1e-12)
        second, third = float(np.trace(square)), float((square * sigma).sum())
        if not self.noise.is_none:
            # Noise on products drowns their squares: a share that real data do not exceed is safe.
            second = CONCENTRATED * first**2
            return first, second, second**1.5
        # Classes spread differently, so that the mean of tr Σ² over them is larger.
        told = sum(each.spread for each in self.summaries) / max(1.0, float(self.counts.sum()))
        if told > second:
            second, third = told, third * (told / second) ** 1.5
        return first, second, max(third, second**2 / first)


def together(summaries: Sequence[Summary], basis: Basis) -> Together:
    """Summaries that fit each other, in the order of names."""
    if len(summaries) < ENOUGH_CLIENTS:
        count = "one client" if summaries else "none"
        raise DataError(f"diagnose compares clients, but there is {count}: bring two or more.")
    ordered = sorted(summaries, key=lambda each: each.client)
    for each, other in pairwise(ordered):
        if each.client == other.client:
            raise DataError(f"two summaries are of a client {each.client!r}: leave one out.")
    for each in ordered:
        if each.version != ordered[0].version:
            raise DataError(
                f"summaries are of versions {ordered[0].version} ({ordered[0].client}) and "
                f"{each.version} ({each.client}): make all with the same fedskew."
            )
        if each.basis != basis.seal:
            raise DataError(
                f"the summary of {each.client!r} was made under another basis (another seed or "
                "other sums): make it anew with this one."
            )
        groups = len(set(basis.groups))
        if (len(each.counts), len(each.joined)) != (basis.classes, groups):
            raise DataError(
                f"the summary of {each.client!r} counts {len(each.counts)} classes, the basis "
                f"{basis.classes}: make it anew with this one."
            )
        if each.noise != ordered[0].noise:
            raise DataError(
                f"the summaries of {ordered[0].client!r} and {each.client!r} have different "
                "epsilon: make them with the same."
            )
    made = Together(basis, tuple(ordered))
    if ((made.counts.sum(axis=0) > 0).sum()) == 1 and made.counts.sum() == made.rows.sum():
        raise DataError(
            "the clients have one class in all: labels cannot be compared, nor learned."
        )
    return made
