"""Which samples a client sees in which step, fixed before training starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedskew.engine.streams import stream
from fedskew.types import Indices


@dataclass(frozen=True)
class Schedule:
    """``positions[step]`` are places in the client's rows, ``mask`` is 0 where one is padding."""

    positions: NDArray[np.int64]
    mask: NDArray[np.float32]

    @property
    def steps(self) -> int:
        return len(self.positions)


def schedule(
    rows: Indices,
    key: tuple[str | int, ...],
    batch_size: int,
    epochs: int,
    pads: bool,
    environment: NDArray[np.int64] | None = None,
    environments: int = 1,
) -> Schedule:
    """Every sample once an epoch in a shuffled order; the last batch may be short.

    ``pads`` fills a short batch up with masked samples, so that all have one shape; a model with
    batch statistics must not see those and gets ragged batches instead.

    With several ``environments`` each step holds one batch per environment, side by side: an epoch
    is then as many steps as its largest environment needs, and smaller ones start over. A client
    of one environment has ordinary batches in that one's places.
    """
    rng = stream(0, "batches", *key)
    if environment is None or environments == 1:
        return _shuffled(len(rows), batch_size, epochs, pads, rng)
    own = np.unique(environment)
    if len(own) > 1:
        return _by_environment(environment, environments, batch_size, epochs, rng)
    plain = _shuffled(len(rows), batch_size, epochs, True, rng)
    shape = (plain.steps, environments, batch_size)
    positions, mask = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.float32)
    positions[:, own[0]], mask[:, own[0]] = plain.positions, plain.mask
    return Schedule(positions.reshape(plain.steps, -1), mask.reshape(plain.steps, -1))


def _shuffled(
    samples: int, batch_size: int, epochs: int, pads: bool, rng: np.random.Generator
) -> Schedule:
    width = batch_size if pads else min(batch_size, samples)
    count = samples
    if not pads and count % width == 1 and count > 1:
        # Batch statistics of a single sample do not exist: leave one out, another each epoch.
        count -= 1
    per_epoch = -(-count // width)
    positions = np.zeros((epochs, per_epoch * width), dtype=np.int64)
    mask = np.zeros((epochs, per_epoch * width), dtype=np.float32)
    mask[:, :count] = 1.0
    for epoch in range(epochs):
        positions[epoch, :count] = rng.permutation(samples)[:count]
    shape: Any = (epochs * per_epoch, width)
    return Schedule(positions.reshape(shape), mask.reshape(shape))


def _by_environment(
    environment: NDArray[np.int64],
    environments: int,
    batch_size: int,
    epochs: int,
    rng: np.random.Generator,
) -> Schedule:
    members = [np.flatnonzero(environment == e) for e in range(environments)]
    steps = epochs * max(-(-len(m) // batch_size) for m in members)
    positions = np.zeros((steps, environments, batch_size), dtype=np.int64)
    mask = np.zeros((steps, environments, batch_size), dtype=np.float32)
    for e, own in enumerate(members):
        if len(own) == 0:
            continue
        wanted = steps * batch_size
        passes = [rng.permutation(own) for _ in range(-(-wanted // len(own)))]
        positions[:, e] = np.concatenate(passes)[:wanted].reshape(steps, batch_size)
        mask[:, e] = 1.0
    shape = (steps, environments * batch_size)
    return Schedule(positions.reshape(shape), mask.reshape(shape))
