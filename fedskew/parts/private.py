"""Differential privacy for whole clients: updates of bounded length, and noise in their sum."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from fedskew.parts.accounting import Noising
from fedskew.parts.aggregate import Aggregator, ServerState, Update
from fedskew.parts.begin import Opening
from fedskew.types import Groups, Tensors


@dataclass(frozen=True)
class Private(Aggregator):
    """Clips what every client changed to length ``clip``, adds noise, and lets ``inner`` go on.

    The change of all shared floating entries together, BatchNorm's statistics included, is scaled
    down to ``clip`` where it is longer. Normal noise of standard deviation noise·clip joins the
    sum of the changes once: of n updates each gets the same n-th part, so ``inner`` must weigh
    them alike and take nothing but their mean (``averages``), and is not told how many samples and
    steps are behind them. The step towards that mean is made of private numbers only. Integer
    counters, which count a client's steps, stay as the server has them; without noise there is
    nothing to protect, and they are copied. What a whole run tells of a client then is for
    ``fedskew.federate.privacy`` to say, which looks at all parts of the finished recipe.
    """

    inner: Aggregator
    clip: float
    noise: float
    delta: float = 1e-5

    @property
    def noising(self) -> Noising:
        return Noising(self.clip, self.noise, self.delta)

    def start(self, opening: Opening) -> Groups:
        return self.inner.start(opening)

    def wanted(self, clients: Sequence[str], state: ServerState) -> Sequence[str]:
        return self.inner.wanted(clients, state)

    def aggregate(self, state: ServerState, updates: Sequence[Update], clients: int) -> ServerState:
        lengths = [change(update.tensors, state.shared) for update in updates]
        sent = [
            clipped(update.tensors, state.shared, self.clip / length if length > self.clip else 1.0)
            for update, length in zip(updates, lengths, strict=True)
        ]
        if self.noise:
            part = self._noise(state, 1 / len(updates))
            counters = {n: t for n, t in state.shared.items() if n not in part}
            sent = [
                {n: t + part[n] if n in part else counters[n] for n, t in tensors.items()}
                for tensors in sent
            ]
        anonymous = [
            replace(update, tensors=tensors, size=1, steps=1)
            for update, tensors in zip(updates, sent, strict=True)
        ]
        after = self.inner.aggregate(state, anonymous, clients)
        measured = dict(after.measured)
        for update, length in zip(updates, lengths, strict=True):
            known = {"update_norm": length, "clipped": float(length > self.clip)}
            measured[update.client] = {**measured.get(update.client, {}), **known}
        return replace(after, shared=plausible(after.shared, state.buffers), measured=measured)

    def _noise(self, state: ServerState, share: float) -> Tensors:
        if state.rng is None:
            raise RuntimeError("private aggregation draws noise: the server state needs an rng.")
        scale = self.noise * self.clip * share
        # Sorted, because a checkpoint may give the entries in another order.
        return {
            name: torch.from_numpy(state.rng.normal(0.0, scale, tuple(t.shape))).to(t)
            for name, t in sorted(state.shared.items())
            if t.is_floating_point()
        }


def change(tensors: Tensors, shared: Tensors) -> float:
    """The length of what a client changed, over all floating entries together.

    >>> start = {"w": torch.zeros(2), "b": torch.zeros(1)}
    >>> change({"w": torch.tensor([1.0, 2.0]), "b": torch.tensor([2.0])}, start)
    3.0
    """
    return math.hypot(
        *(
            float(torch.linalg.vector_norm(t - shared[name], dtype=torch.float64))
            for name, t in tensors.items()
            if t.is_floating_point()
        )
    )


def clipped(tensors: Tensors, shared: Tensors, factor: float) -> Tensors:
    """A client's tensors with their change scaled; the very same bits where nothing is."""
    if factor == 1.0:
        return tensors
    return {
        name: torch.lerp(shared[name], t, factor) if t.is_floating_point() else t
        for name, t in tensors.items()
    }


def plausible(shared: Tensors, buffers: frozenset[str]) -> Tensors:
    """The same model with no variance below zero, where noise took one there."""
    variances = {name for name in buffers if name.endswith("running_var")}
    return {n: t.clamp(min=0.0) if n in variances else t for n, t in shared.items()}
