"""Aggregators that make one model per client: its own and the others', each row weighted anew."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

import torch
from torch import Tensor

from fedskew.parts.aggregate import (
    Aggregator,
    ClientMatrix,
    ServerState,
    Uniform,
    Update,
    Weighting,
    normalised,
    weighted_mean,
)
from fedskew.parts.similarity import FINGERPRINT, shortened, similarities
from fedskew.registry.knobs import Knob, check_fields
from fedskew.types import Groups, Tensors

ROWS = 1024
"""Rows of a weight matrix that exist at a time, so that memory never grows with its square."""
SHOWN = 500
"""Matrices of more clients are not kept for the record."""

Weights = tuple[Tensor, Tensor]
"""For some rows: the weight of the client's own model, and those of all participants' (its own
place among them is zero); they sum to one."""
Weigh = Callable[[slice], Weights]


@dataclass(frozen=True)
class Shown:
    """What an aggregator wants on the record besides the rows it makes."""

    matrices: dict[str, ClientMatrix] = field(default_factory=dict)
    numbers: dict[str, dict[str, float]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Mix(Aggregator):
    """Base: a client's next model is own·(its model) + Σ_j rest_j·(participant j's model).

    Who took part counts with the model it trained; who did not, but is ``known``, with the one it
    was last given. Everybody else, newcomers and unseen clients, is sent the plain mean.
    """

    weighting: Weighting = field(default_factory=Uniform)
    """Of the plain mean."""
    several = True

    def remember(self, state: ServerState, updates: Sequence[Update]) -> Groups:
        """The memory with what these updates report."""
        return state.memory

    def known(self, state: ServerState) -> list[str]:
        """Clients a row can be made for even when they are absent."""
        return sorted(state.personal)

    def rows(self, state: ServerState, clients: Sequence[str], updates: Sequence[Update]) -> Weigh:
        """How to weigh the rows of ``clients``: the participants first, in their order."""
        raise NotImplementedError

    def show(self, state: ServerState, updates: Sequence[Update]) -> Shown:
        return Shown()

    def aggregate(self, state: ServerState, updates: Sequence[Update], clients: int) -> ServerState:
        weights, notes = normalised(self.weighting, updates, state)
        mean = {**state.shared, **weighted_mean(updates, weights)}
        state = replace(state, memory=self.remember(state, updates))
        present = [update.client for update in updates]
        absent = sorted(set(self.known(state)) - set(present))
        names = [*present, *absent]
        own_models = [u.tensors for u in updates] + [state.sent_to(name) for name in absent]
        weigh = self.rows(state, names, updates)
        personal, measured = dict(state.personal), {}
        stacked = {
            name: torch.stack([u.tensors[name] for u in updates]).flatten(start_dim=1)
            for name, first in updates[0].tensors.items()
            if first.is_floating_point()
        }
        device = next(iter(updates[0].tensors.values())).device
        for start in range(0, len(names), ROWS):
            here = slice(start, start + ROWS)
            own, rest = (part.to(device) for part in weigh(here))
            made = _combined(own, rest, stacked, own_models[here])
            personal.update(zip(names[here], made, strict=True))
            entropies = row_entropy(own, rest, start, len(present))
            for name, weight, entropy in zip(names[here], own, entropies, strict=True):
                measured[name] = {"self_weight": float(weight), "row_entropy": float(entropy)}
        shown = self.show(state, updates)
        for name, numbers in shown.numbers.items():
            measured.setdefault(name, {}).update(numbers)
        return replace(
            state, shared=mean, personal=personal, notes=(*notes, *shown.notes),
            measured=measured, matrices=shown.matrices,
        )  # fmt: skip


def _combined(
    own: Tensor, rest: Tensor, stacked: Tensors, own_models: Sequence[Tensors]
) -> list[Tensors]:
    """Every row's model: one matrix product a tensor; integer counters stay the client's own."""
    # Few neighbours in a large matrix: skipping the zeros is what makes top-k cheap.
    thin = rest.numel() > 100_000 and int((rest > 0).sum()) * 10 < rest.numel()
    weights = rest.to_sparse() if thin else rest
    mixed = {name: weights @ models for name, models in stacked.items()}
    made = []
    for i, model in enumerate(own_models):
        made.append(
            {
                name: mixed[name][i].reshape(t.shape).add(t, alpha=float(own[i]))
                if name in mixed
                else t.clone()
                for name, t in model.items()
            }
        )
    return made


def row_entropy(own: Tensor, rest: Tensor, start: int, present: int) -> Tensor:
    """How evenly a row spreads: 0 is all on one model, 1 the same on all that it could use."""
    entropy = torch.special.entr(own) + torch.special.entr(rest).sum(dim=1)
    places = torch.arange(start, start + len(own), device=own.device)
    # Participants stand among the models already, the absent add their own.
    choices = torch.where(places < present, present, present + 1).to(entropy.dtype)
    return torch.where(choices > 1, entropy / choices.clamp(min=2).log(), torch.zeros_like(entropy))


def shared_out(
    others: Tensor,
    *,
    sharpen: float = 1.0,
    neighbours: int | None = None,
    self_weight: float | None = None,
    cap: float = 1.0,
) -> Weights:
    """Row weights from similarities to the others (below zero: nobody, never weighed); own is 1.

    Similarities are raised to ``sharpen``, all but the ``neighbours`` largest are dropped, rows are
    divided by their sum. A fixed ``self_weight`` scales the others to share the rest; what a
    single neighbour would get beyond ``cap`` goes back to the client's own model.

    >>> own, rest = shared_out(torch.tensor([[-1.0, 0.5, 0.5]]))
    >>> own.tolist(), rest.tolist()
    ([0.5], [[0.0, 0.25, 0.25]])
    """
    somebody = others >= 0
    rest = torch.where(somebody, others.clamp(min=0).pow(sharpen), torch.zeros_like(others))
    if neighbours is not None and neighbours < rest.shape[1]:
        kept = rest.topk(neighbours, dim=1)
        rest = torch.zeros_like(rest).scatter_(1, kept.indices, kept.values)
    total = rest.sum(dim=1)
    if self_weight is None:
        own = 1.0 / (1.0 + total)
        rest = rest * own[:, None]
    else:
        own = torch.where(total > 0, self_weight, 1.0).to(rest.dtype)
        share = torch.where(total > 0, (1.0 - own) / total.clamp(min=1e-30), total)
        rest = rest * share[:, None]
    above = (rest - cap).clamp(min=0)
    return own + above.sum(dim=1), rest - above


def nobody_at_self(others: Tensor, here: slice) -> Tensor:
    """The block of rows from ``here`` with participants' own places marked as nobody."""
    others.diagonal(here.start).fill_(-1.0)
    return others


Sharpen = Annotated[
    float,
    Knob(
        "exponent on similarities; 0 is the plain mean, 1 the thesis, a large one keeps the most "
        "alike only",
        ge=0,
        tries=(1.0, 4.0, 16.0),
    ),
]


@dataclass(frozen=True)
class BySimilarity(Mix):
    """Rows of the client representation similarity matrix, normalised: FedSHIBU's rule.

    The matrix is one product of the clients' fingerprints. A fingerprint of another size than the
    others' is like nothing, so its client keeps to itself; one longer than ``longest``, as no
    honest one is, is cut to that length.
    """

    sharpen: Sharpen = 1.0
    self_weight: Annotated[
        float | None,
        Knob("fixed weight of the own model; none: as similarities give it", ge=0, le=1),
    ] = None
    neighbours: Annotated[
        int | None, Knob("only this many most similar others count; none: all", ge=1)
    ] = None
    cap: Annotated[
        float,
        Knob("most that one other client can weigh; the rest goes to the own model", gt=0, le=1),
    ] = 1.0
    longest: float = 1.0

    def __post_init__(self) -> None:
        check_fields(self)

    def remember(self, state: ServerState, updates: Sequence[Update]) -> Groups:
        return with_fingerprints(state, updates, self.longest)

    def known(self, state: ServerState) -> list[str]:
        return sorted(state.memory[FINGERPRINT].keys() & state.personal.keys())

    def rows(self, state: ServerState, clients: Sequence[str], updates: Sequence[Update]) -> Weigh:
        prints = fingerprints(state, clients)
        present = prints[: len(updates)]

        def weigh(here: slice) -> Weights:
            others = nobody_at_self(similarities(prints[here], present), here)
            return shared_out(
                others, sharpen=self.sharpen, neighbours=self.neighbours,
                self_weight=self.self_weight, cap=self.cap,
            )  # fmt: skip

        return weigh

    def show(self, state: ServerState, updates: Sequence[Update]) -> Shown:
        return compared(state, updates)


@dataclass(frozen=True)
class SelfMix(Mix):
    """λ on a client's own model and the rest spread evenly: what self-weight alone can do.

    Where ``measured`` is given, λ is the mean self-weight that its similarities would give this
    round: the same self-weight, without knowing who is similar.
    """

    self_weight: float = 0.5
    measured: BySimilarity | None = None

    def remember(self, state: ServerState, updates: Sequence[Update]) -> Groups:
        return self.measured.remember(state, updates) if self.measured else state.memory

    def rows(self, state: ServerState, clients: Sequence[str], updates: Sequence[Update]) -> Weigh:
        count = len(updates)
        own_weight = self.self_weight
        if self.measured:
            present = [update.client for update in updates]
            weigh_similar = self.measured.rows(state, present, updates)
            starts = range(0, count, ROWS)
            own = torch.cat([weigh_similar(slice(i, i + ROWS))[0] for i in starts])
            own_weight = float(own.mean())

        def weigh(here: slice) -> Weights:
            size = len(clients[here])
            others = nobody_at_self(torch.ones(size, count), here)
            return shared_out(others, self_weight=own_weight)

        return weigh


def with_fingerprints(state: ServerState, updates: Sequence[Update], longest: float) -> Groups:
    """The memory with the participants' newest fingerprints."""
    newest = {u.client: shortened(u.reports[FINGERPRINT]["v"], longest) for u in updates}
    return {**state.memory, FINGERPRINT: {**state.memory.get(FINGERPRINT, {}), **newest}}


def fingerprints(state: ServerState, clients: Sequence[str]) -> Tensor:
    """Fingerprints as rows; one of an unusual size becomes zeros, which are like nothing."""
    found = [state.memory[FINGERPRINT][name].flatten() for name in clients]
    usual = usual_size(state)
    return torch.stack([v if len(v) == usual else v.new_zeros(usual) for v in found])


def usual_size(state: ServerState) -> int:
    """How many numbers most fingerprints have."""
    sizes = [t.numel() for t in state.memory[FINGERPRINT].values()]
    return max(sorted(set(sizes)), key=sizes.count)


def compared(state: ServerState, updates: Sequence[Update]) -> Shown:
    """The similarity matrix of those who took part, and who could not be compared."""
    names = tuple(update.client for update in updates)
    usual, known = usual_size(state), state.memory[FINGERPRINT]
    notes = tuple(
        f"{name} sent a fingerprint of {known[name].numel()} numbers, the others {usual}: it is "
        "like nobody"
        for name in names
        if known[name].numel() != usual
    )
    if len(names) > SHOWN:
        return Shown(notes=notes)

    def matrix() -> Tensor:
        prints = fingerprints(state, names)
        return similarities(prints, prints).fill_diagonal_(1.0)

    return Shown({"similarity": ClientMatrix(names, matrix)}, notes=notes)
