"""Which samples a client sees in which step, and the batches of a stack of clients as tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedskew.engine.torch_private import Tree
from fedskew.engine.training import Training, Work
from fedskew.rng import stream
from fedskew.types import Indices


@dataclass(frozen=True)
class Schedule:
    """``positions[step]`` are positions in the client's rows; ``mask`` is 0 for padding."""

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
    """Every sample once per epoch in a shuffled order; the last batch may be short.

    ``pads`` fills a short batch with masked samples, so that all batches have the same shape; a
    model with batch statistics must not see those and gets ragged batches instead.

    With several ``environments`` each step holds one batch per environment, side by side: an epoch
    has as many steps as its largest environment needs, and smaller ones start over. A client with
    one environment has ordinary batches in the positions of that environment.
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
        # A single sample has no batch statistics: leave one out, a different one each epoch.
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


def batch_widths(schedules: Sequence[Schedule], training: Training) -> list[int]:
    """How wide each step's batches are.

    Clients in a stack share one shape, and short batches are padded. A single client is padded
    only to the next eighth of a batch, which saves work and keeps the number of shapes small; with
    batch statistics it is not padded at all.
    """
    whole = schedules[0].mask.shape[1]
    if len(schedules) > 1 or training.environments > 1:
        return [whole] * schedules[0].steps
    unit = max(1, whole // 8) if training.pads else 1
    real = schedules[0].mask.sum(axis=1).astype(int)
    return [min(whole, -(-int(count) // unit) * unit) for count in real]


def stacked_batches(
    works: Sequence[Work], schedules: Sequence[Schedule], training: Training
) -> dict[str, Tree]:
    """All batches of a stack, without the samples themselves, as tensors [step, client, ...]."""
    steps = schedules[0].steps
    pairs = list(zip(works, schedules, strict=True))
    mask = _pad([schedule.mask for schedule in schedules], steps)
    batches: dict[str, Tree] = {
        "rows": _pad([work.rows[schedule.positions] for work, schedule in pairs], steps),
        "mask": mask,
        "weight": mask,
    }
    if any(work.sample_weight is not None for work in works):
        weights = [_weights(work)[schedule.positions] for work, schedule in pairs]
        batches["weight"] = _pad(weights, steps) * mask
    batches["noise"] = {
        kind: _pad([_draw(work, kind, schedule.steps, shape) for work, schedule in pairs], steps)
        for kind, shape in training.noise(mask.shape[2]).items()
    }
    if training.augments:
        batches["drawn"] = {
            str(place): _pad(
                [
                    _uniform(work, place, (s.steps, s.mask.shape[1], part.draws))
                    for work, s in pairs
                ],
                steps,
            )
            for place, part in enumerate(training.augments)
        }
    if training.drops:
        keys = [stream(0, "dropout", *w.key).integers(2**62, size=steps) for w in works]
        batches["key"] = torch.from_numpy(np.stack(keys, axis=1))
    if training.counts_steps:
        before = torch.tensor([float(work.steps_before) for work in works])
        batches["step"] = torch.arange(steps)[:, None] + before
    return batches


def _weights(work: Work) -> NDArray[np.float32]:
    if work.sample_weight is None:
        return np.ones(len(work.rows), np.float32)
    return work.sample_weight.numpy().astype(np.float32)


def _draw(work: Work, kind: str, steps: int, shape: tuple[int, ...]) -> NDArray[np.float32]:
    rng = stream(0, "noise", kind, *work.key)
    return rng.standard_normal((steps, *shape), dtype=np.float32)


def _uniform(work: Work, place: int, shape: tuple[int, ...]) -> NDArray[np.float32]:
    return stream(0, "augment", place, *work.key).random(shape, dtype=np.float32)


def _pad(arrays: Sequence[NDArray[Any]], steps: int) -> Tensor:
    """Per-client arrays [steps_k, ...] as one tensor [steps, client, ...], zeros at the end."""
    out = np.zeros((steps, len(arrays), *arrays[0].shape[1:]), dtype=arrays[0].dtype)
    for k, array in enumerate(arrays):
        out[: len(array), k] = array
    return torch.from_numpy(out)
