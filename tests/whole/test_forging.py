"""A client that forges its fingerprint to be copied by everybody, and the cap that bounds it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from statistics import fmean

import pytest
import torch
from helpers import make_holdings, run
from torch import Tensor

from fedskew import Federation, make_config, make_federation
from fedskew.engine.optim import Optimiser
from fedskew.federate.plan import Settings
from fedskew.federate.rounds import Rounds
from fedskew.methods import find
from fedskew.models import seeded
from fedskew.parts.aggregate import ServerState, Update
from fedskew.parts.mix import BySimilarity

CLIENTS, ROUNDS, SHARPEN, CAP = 10, 6, 4.0, 0.1
Weights = dict[str, float]
"""The forger's weight in each honest client's model."""


@dataclass(frozen=True)
class Forging(BySimilarity):
    """FedSHIBU's rule, sent a useless body by one client, and its fingerprint forged or not."""

    forger: str = ""
    forges: bool = True
    seen: list[Weights] = field(default_factory=list)
    """Of every round."""

    def aggregate(self, state: ServerState, updates: Sequence[Update], clients: int) -> ServerState:
        sent = [self._sent(u, updates) if u.client == self.forger else u for u in updates]
        made = super().aggregate(state, sent, clients)
        # A weight is what a model moves by when the forger's moves by one.
        nudged = [
            replace(u, tensors={n: t + 1 for n, t in u.tensors.items()})
            if u.client == self.forger
            else u
            for u in sent
        ]
        moved = super().aggregate(state, nudged, clients).personal
        honest = [u.client for u in updates if u.client != self.forger]
        self.seen.append({c: _distance(moved[c], made.personal[c]) for c in honest})
        return made

    def _sent(self, update: Update, updates: Sequence[Update]) -> Update:
        generator = torch.Generator().manual_seed(0)
        body = {n: torch.randn(t.shape, generator=generator) for n, t in update.tensors.items()}
        if not self.forges:
            return replace(update, tensors=body)
        honest = [u.reports["fingerprint"]["v"] for u in updates if u.client != self.forger]
        mean = torch.stack(honest).mean(dim=0)
        # So long that the product with the least similar victim is one, the most that counts.
        forged = mean / (torch.stack(honest) @ mean).min()
        return replace(update, tensors=body, reports={"fingerprint": {"v": forged}})


def _distance(one: dict[str, Tensor], two: dict[str, Tensor]) -> float:
    return fmean(float((one[name] - two[name]).mean()) for name in one)


@cache
def digits() -> Federation:
    shards = {"name": "shards", "shards_per_client": 2}
    section = {"dataset": "digits", "clients": CLIENTS, "partition": shards}
    return make_federation(make_config({"federation": section}))


@cache
def federated(
    attacks: bool, forges: bool = False, cap: float = 1.0, longest: float = math.inf
) -> tuple[float, list[Weights]]:
    """The honest clients' mean test accuracy after the last round, and the forger's weights.

    The server believes in lengths unless told otherwise.
    """
    federation = digits()
    forger = federation.clients[0].name
    knobs = {"mode": "feature", "sharpen": SHARPEN, "cap": cap, "fine_tune_epochs": 0}
    recipe = find("fedshibu").recipe(**knobs)
    seen: list[Weights] = []
    if attacks:
        attacked = Forging(
            sharpen=SHARPEN, cap=cap, longest=longest, forger=forger, forges=forges, seen=seen
        )
        recipe = replace(recipe, aggregates=attacked)
    holdings = make_holdings(
        recipe, federation,
        seeded("mlp", federation.sample_shape, federation.classes, seed=0, hidden=[32]),
        Settings(Optimiser("sgd", 0.1), epochs=1, batch_size=16),
        chunk=CLIENTS,
    )  # fmt: skip
    rows = run(holdings, Rounds(ROUNDS, score_every=ROUNDS)).journal.rows
    scores = [
        row.value
        for row in rows
        if row.round == ROUNDS and row.model == "personal" and row.on == "seen"
        and row.split == "test" and row.metric == "accuracy" and row.client != forger
    ]  # fmt: skip
    assert len(scores) == CLIENTS - 1
    return fmean(scores), seen


def test_forging_pulls_more_weight_than_the_forgers_own_fingerprint() -> None:
    """At similarity 1 the forger weighs in every row exactly what the client's own model does,
    so between 1/CLIENTS (all alike) and 1/2 (nobody else alike)."""
    _, plain = federated(attacks=True)
    _, forged = federated(attacks=True, forges=True)
    for before, after in zip(plain, forged, strict=True):
        assert fmean(after.values()) > 2 * fmean(before.values())
        assert all(1 / CLIENTS <= weight <= 0.5 + 1e-5 for weight in after.values())


def test_forging_costs_the_honest_clients_accuracy() -> None:
    calm, _ = federated(attacks=False)
    plain, _ = federated(attacks=True)
    forged, _ = federated(attacks=True, forges=True)
    assert calm - forged > 0.1
    assert plain - forged > 0.1


def test_the_cap_bounds_the_forgers_weight_in_every_row_of_every_round() -> None:
    _, seen = federated(attacks=True, forges=True, cap=CAP)
    assert len(seen) == ROUNDS
    for weights in seen:
        assert list(weights.values()) == pytest.approx([CAP] * (CLIENTS - 1), abs=1e-5)


def test_the_cap_restores_most_of_the_accuracy() -> None:
    calm, _ = federated(attacks=False)
    forged, _ = federated(attacks=True, forges=True)
    capped, _ = federated(attacks=True, forges=True, cap=CAP)
    assert capped - forged > 0.5 * (calm - forged)


def test_cutting_fingerprints_to_the_length_of_honest_ones_takes_the_forgers_weight() -> None:
    believed, long = federated(attacks=True, forges=True)
    cut, short = federated(attacks=True, forges=True, longest=1.0)
    assert cut > believed + 0.1
    for before, after in zip(long, short, strict=True):
        assert fmean(after.values()) < 0.5 * fmean(before.values())
