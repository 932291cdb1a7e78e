"""Law 7: private parameters never appear in an update, a message or the server's state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import torch
from helpers import OpenBackend, Tensors, every_method, method_site, run

from fedskew.client import Outcome, Scored, ScoreTask, TrainTask
from fedskew.parts.aggregate import ServerState
from fedskew.parts.report import PERSONAL, SHARED
from fedskew.site import Site


class Wiretap(OpenBackend):
    """Copies all that crosses between server and clients, and every private tensor ever held."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.crossed: list[tuple[str, Tensors]] = []
        self.updates: list[Tensors] = []
        self.secrets: list[Tensors] = []

    def train(self, tasks: Sequence[TrainTask]) -> list[Outcome]:
        outcomes = super().train(tasks)
        for task in tasks:
            self.crossed.append((f"sent to {task.client}", task.sent))
            for group, tensors in task.broadcast.items():
                self.crossed.append((f"{group} sent to {task.client}", tensors))
        for outcome in outcomes:
            assert outcome.update is not None, outcome.error
            self.updates.append(outcome.update.tensors)
            self.crossed.append((f"update of {outcome.client}", outcome.update.tensors))
            for group, tensors in outcome.update.reports.items():
                self.crossed.append((f"{group} of {outcome.client}", tensors))
            for group in (SHARED, PERSONAL):
                self.secrets.append(outcome.keeps.get(group, {}))
        return outcomes

    def score(self, tasks: Sequence[ScoreTask]) -> list[Scored]:
        self.crossed.extend((f"sent to {task.client} for scoring", task.sent) for task in tasks)
        return super().score(tasks)


def state_tensors(state: ServerState) -> Iterator[tuple[str, Tensors]]:
    yield "the server's model", state.shared
    for name, group in state.memory.items():
        yield f"the server's memory {name}", group
    for client, tensors in state.personal.items():
        yield f"the server's model for {client}", tensors


@every_method
@pytest.mark.parametrize("kind", ["mlp", "batch-norm"])
def test_private_parameters_never_leave_their_client(name: str, kind: str) -> None:
    site = method_site(name, kind)
    wiretap = Wiretap(site)
    result = run(site, 3, wiretap)
    for progress in result.journal.states:
        wiretap.crossed.extend(state_tensors(progress.state))

    for update in wiretap.updates:
        assert update.keys() == site.shared
    entries = set(site.initial)
    for where, tensors in wiretap.crossed:
        assert not (tensors.keys() & entries) - site.shared, where

    secrets = [t for held in wiretap.secrets for t in held.values() if t.is_floating_point()]
    for where, tensors in wiretap.crossed:
        for entry, tensor in tensors.items():
            assert not any(torch.equal(tensor, secret) for secret in secrets), f"{entry} {where}"


def test_the_wiretap_would_hear_a_leak() -> None:
    """FedBN keeps five entries at each client, so there is something to leak."""
    site = method_site("fedbn", "batch-norm")
    wiretap = Wiretap(site)
    run(site, 1, wiretap)
    held = [secrets for secrets in wiretap.secrets if secrets]
    assert [len(secrets) for secrets in held] == [5, 5, 5, 5]
