"""How the server turns the clients' updates into a target (``fedskew.parts.step`` moves to it)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self, cast

import numpy as np
import torch
from torch import Tensor

from fedskew.parts.accounting import Noising
from fedskew.parts.begin import Opening
from fedskew.types import Groups, Tensors


@dataclass(frozen=True)
class Update:
    """What one client sent: its shared tensors, how much work it did, and its reports.

    Where the server may not see what single clients sent, it is the weighted mean ``of`` several,
    which came in so many bytes.
    """

    client: str
    tensors: Tensors
    size: int
    steps: int
    reports: Groups = field(default_factory=dict)
    of: tuple[str, ...] = ()
    came: int | None = None

    @property
    def clients(self) -> tuple[str, ...]:
        return self.of or (self.client,)


@dataclass(frozen=True)
class ClientMatrix:
    """A number for every pair of clients: how the row's client sees the column's.

    It is computed on demand, because most rounds' matrices are never kept.
    """

    clients: tuple[str, ...]
    compute: Callable[[], Tensor]

    @cached_property
    def values(self) -> Tensor:
        return self.compute()


@dataclass(frozen=True)
class ServerState:
    """All the server holds: the shared model, models made for single clients, and its memory.

    ``memory`` is kept from round to round (variates, discrepancies, fingerprints); ``buffers``
    names the entries of ``shared`` that are statistics (BatchNorm's), which are averaged and take
    no part in the server step. The other fields are about this round only: ``round`` is its number
    and ``rng`` a random stream for it; ``unstepped`` names further entries of a target that are
    taken as they are. For the record, ``notes`` are sentences, ``measured`` are numbers by client
    and name, ``matrices`` are numbers about pairs of clients.
    """

    shared: Tensors
    personal: dict[str, Tensors] = field(default_factory=dict)
    memory: Groups = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    buffers: frozenset[str] = frozenset()
    measured: dict[str, dict[str, float]] = field(default_factory=dict)
    matrices: dict[str, ClientMatrix] = field(default_factory=dict)
    round: int = 0
    rng: np.random.Generator | None = None
    unstepped: frozenset[str] = frozenset()

    def sent_to(self, client: str) -> Tensors:
        return self.personal.get(client, self.shared)


class Weighting:
    """How much each update counts; an aggregator normalises what this returns."""

    def weights(self, updates: Sequence[Update], state: ServerState) -> Tensor:
        raise NotImplementedError

    def of_size(self, size: int) -> int | None:
        """A client's weight, if its number of training samples is enough to tell."""
        return None

    def measured(
        self, updates: Sequence[Update], weights: Sequence[float], state: ServerState
    ) -> dict[str, dict[str, float]]:
        """Numbers by client for the record, given the weights that were used."""
        return {}

    def wanted(self, clients: Sequence[str], state: ServerState) -> Sequence[str]:
        """The clients to ask to train: without those whose weight is known to be zero."""
        return clients


@dataclass(frozen=True)
class BySize(Weighting):
    """In proportion to the client's number of training samples."""

    def weights(self, updates: Sequence[Update], state: ServerState) -> Tensor:
        return torch.tensor([float(update.size) for update in updates], dtype=torch.float64)

    def of_size(self, size: int) -> int | None:
        return size


@dataclass(frozen=True)
class BySteps(Weighting):
    """In proportion to the client's number of steps, i.e. of batches."""

    def weights(self, updates: Sequence[Update], state: ServerState) -> Tensor:
        return torch.tensor([float(update.steps) for update in updates], dtype=torch.float64)


@dataclass(frozen=True)
class Uniform(Weighting):
    """Every client the same."""

    def weights(self, updates: Sequence[Update], state: ServerState) -> Tensor:
        return torch.ones(len(updates), dtype=torch.float64)

    def of_size(self, size: int) -> int | None:
        return 1


class Aggregator:
    """Base of all aggregators: override ``aggregate``; ``start`` and ``broadcasts`` where the
    server has a memory that clients must see. Methods built on others ask what one can do."""

    broadcasts: tuple[str, ...] = ()
    """Groups of the memory that are sent to the clients with the model."""
    several: bool = False
    """Whether it makes more than one model, e.g. one per client: there is no single target."""
    weighting: Weighting | None = None
    """How it weighs clients, if it does: a field of that name can be replaced."""

    @property
    def averages(self) -> bool:
        """Whether the weighted mean of the models is all it uses of the updates."""
        return False

    @property
    def looks(self) -> bool:
        """Whether it looks at the updates of single clients, be it for the record."""
        return not self.averages

    @property
    def presums(self) -> bool:
        """Whether the weighted mean of some clients' models can stand for each of them."""
        known = self.weighting is not None and self.weighting.of_size(1) is not None
        return self.averages and not self.looks and known

    @property
    def noising(self) -> Noising | None:
        """The clipping and noise that bound all it learns from the updates' models, if any do."""
        return None

    def reweighted(self, weighting: Weighting) -> Self | None:
        """The same aggregator with another weighting; None if it does not weigh clients."""
        if self.weighting is None:
            return None
        return cast(Self, replace(cast(Any, self), weighting=weighting))

    def with_divergence(self) -> Aggregator | None:
        """The same, recording also how far clients are from the mean; None if it cannot."""
        return None

    def start(self, opening: Opening) -> Groups:
        """The memory before the first round."""
        return {}

    def wanted(self, clients: Sequence[str], state: ServerState) -> Sequence[str]:
        """Those of the clients that should be asked to train."""
        return clients

    def aggregate(self, state: ServerState, updates: Sequence[Update], clients: int) -> ServerState:
        """The target, from at least one update; ``clients`` counts all clients, absent ones too.

        It is the state with ``shared`` (and ``personal``) where the updates point to, and with the
        memory of the next round; the recipe's step then moves towards ``shared``.
        """
        raise NotImplementedError


def normalised(
    weighting: Weighting, updates: Sequence[Update], state: ServerState
) -> tuple[list[float], tuple[str, ...]]:
    """Weights that sum to one; by size if all are zero or one is not a number."""
    weights = weighting.weights(updates, state)
    total = float(weights.sum())
    if total > 0 and bool(torch.isfinite(weights).all()):
        return (weights / total).tolist(), ()
    sizes = BySize().weights(updates, state)
    note = "no usable aggregation weight: fell back to weights by size"
    return (sizes / sizes.sum()).tolist(), (note,)


def weighted_mean(updates: Sequence[Update], weights: Sequence[float]) -> Tensors:
    """The mean of the updates' tensors; integer counters are copied from the first update."""
    mean: Tensors = {}
    for name, first in updates[0].tensors.items():
        if not first.is_floating_point():
            mean[name] = first.clone()
            continue
        total = torch.zeros_like(first)
        for update, weight in zip(updates, weights, strict=True):
            total.add_(update.tensors[name], alpha=weight)
        mean[name] = total
    return mean


@dataclass(frozen=True)
class Mean(Aggregator):
    """The weighted mean of the clients' models.

    With ``divergence`` it also records how far every client's weights are from that mean.
    """

    weighting: Weighting = field(default_factory=BySize)
    divergence: bool = False

    @property
    def averages(self) -> bool:
        # A subclass does more, unless it overrides this.
        return type(self) is Mean

    @property
    def looks(self) -> bool:
        return self.divergence or not self.averages

    def with_divergence(self) -> Mean:
        return replace(self, divergence=True)

    def wanted(self, clients: Sequence[str], state: ServerState) -> Sequence[str]:
        return self.weighting.wanted(clients, state)

    def aggregate(self, state: ServerState, updates: Sequence[Update], clients: int) -> ServerState:
        weights, notes = normalised(self.weighting, updates, state)
        mean = weighted_mean(updates, weights)
        measured = self.weighting.measured(updates, weights, state)
        if self.divergence:
            for update in updates:
                apart = {f"divergence {n}": d for n, d in distances(update.tensors, mean).items()}
                measured[update.client] = {**measured.get(update.client, {}), **apart}
        return replace(state, shared={**state.shared, **mean}, notes=notes, measured=measured)


@dataclass(frozen=True)
class MeanAndVolunteer(Mean):
    """The mean, but some parts are those of the first client by name, for newcomers."""

    volunteers: tuple[str, ...] = ()

    def aggregate(self, state: ServerState, updates: Sequence[Update], clients: int) -> ServerState:
        found = super().aggregate(state, updates, clients)
        volunteer = min(updates, key=lambda update: update.client)
        prefixes = tuple(f"{part}." for part in self.volunteers)
        shown = {n: t for n, t in volunteer.tensors.items() if n.startswith(prefixes)}
        return replace(found, shared={**found.shared, **shown}, unstepped=frozenset(shown))


def distances(tensors: Tensors, mean: Tensors) -> dict[str, float]:
    """Per weight entry (without biases): the distance from the mean over the mean's norm.

    >>> distances({"w": torch.tensor([[3.0, 0.0]])}, {"w": torch.tensor([[2.0, 0.0]])})
    {'w': 0.5}
    """
    return {
        name: float((tensors[name] - t).norm() / t.norm().clamp(min=torch.finfo(t.dtype).tiny))
        for name, t in mean.items()
        if t.is_floating_point() and t.ndim > 1
    }


@dataclass(frozen=True)
class MeanWithVariates(Mean):
    """The mean, and c ← c + (1/N)·Σ(c_k⁺ - c_k) over the participants of N clients (SCAFFOLD)."""

    weighting: Weighting = field(default_factory=Uniform)
    broadcasts = ("control",)

    def start(self, opening: Opening) -> Groups:
        return {"control": {name: torch.zeros_like(t) for name, t in opening.parameters.items()}}

    def aggregate(self, state: ServerState, updates: Sequence[Update], clients: int) -> ServerState:
        control = {name: t.clone() for name, t in state.memory["control"].items()}
        for update in updates:
            for name, change in update.reports["control_change"].items():
                control[name].add_(change, alpha=1.0 / clients)
        moved = super().aggregate(state, updates, clients)
        return replace(moved, memory={**moved.memory, "control": control})


@dataclass(frozen=True)
class NormalisedMean(Aggregator):
    """FedNova's x - τ_eff·Σ p_k·(x - y_k)/a_k with τ_eff = Σ p_k·a_k.

    a_k, the length of a client's accumulated gradients, is reported by ``LocalLength``.
    """

    weighting: Weighting = field(default_factory=BySize)

    def aggregate(self, state: ServerState, updates: Sequence[Update], clients: int) -> ServerState:
        weights, notes = normalised(self.weighting, updates, state)
        lengths = [float(update.reports["length"]["a"]) for update in updates]
        effective = sum(p * a for p, a in zip(weights, lengths, strict=True))
        target = weighted_mean(updates, weights)
        for name in target.keys() - state.buffers:
            current = state.shared[name]
            target[name] = current.clone()
            for update, weight, length in zip(updates, weights, lengths, strict=True):
                drift = update.tensors[name] - current
                target[name].add_(drift, alpha=weight * effective / length)
        return replace(
            state, shared={**state.shared, **target}, notes=notes,
            measured=self.weighting.measured(updates, weights, state),
        )  # fmt: skip


@dataclass(frozen=True)
class Apart(Aggregator):
    """No aggregation: nothing is shared, so nothing is combined."""

    def aggregate(self, state: ServerState, updates: Sequence[Update], clients: int) -> ServerState:
        return replace(state, notes=())
