"""Law 7: private parameters and samples never appear in a message or the server's state.

Checked on the bytes of every ask and every answer. And who says that clients forget must have
clients that send the same whatever rounds they took part in before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from helpers import (
    OpenBackend,
    Tensors,
    assert_same_bits,
    every_method,
    method_holdings,
    over_the_wire,
    run,
)

from fedskew.federate.backends.carrier import Carrier
from fedskew.federate.backends.wire import decode_answers, decode_asks
from fedskew.federate.client import train_clients
from fedskew.federate.holdings import Holdings
from fedskew.federate.metrics import MAIN
from fedskew.federate.privacy import PARAMETERS, remembers, sent_in
from fedskew.federate.recipe import Stage
from fedskew.federate.rows import broadcast_of
from fedskew.federate.tasks import TrainTask
from fedskew.methods import METHODS, find
from fedskew.parts.aggregate import ServerState
from fedskew.parts.packing import UNSENT
from fedskew.parts.report import MEMORY, PERSONAL, SAMPLE_WEIGHT, SHARED

KEPT = (SHARED, PERSONAL, SAMPLE_WEIGHT, UNSENT)
"""Groups of private state that no message may hold."""


class Wiretap(Carrier):
    """Copies every byte between server and clients, and every private tensor ever held."""

    def __init__(self, holdings: Holdings) -> None:
        self.clients = OpenBackend(holdings)
        super().__init__(self.clients)
        self.messages: list[bytes] = []
        self.updates: list[Tensors] = []
        self.reported: set[str] = set()
        self.secrets: list[Tensors] = []

    def carry(self, message: bytes) -> bytes:
        answer = super().carry(message)
        self.messages += [message, answer]
        updates = [a.update for a in decode_answers(answer) if a.update is not None]
        self.updates += [update.tensors for update in updates]
        self.reported |= {group for update in updates for group in update.reports}
        for name in self.clients.labels:
            for group, tensors in self.clients.private_of(name).items():
                if group in KEPT or group.startswith(MEMORY):
                    self.secrets.append(tensors)
        return answer

    @property
    def secret_bytes(self) -> Iterator[bytes]:
        """Of every private tensor that cannot be met by chance."""
        for tensors in self.secrets:
            for tensor in tensors.values():
                if tensor.is_floating_point() and len(torch.unique(tensor)) > 1:
                    yield tensor.contiguous().numpy().tobytes()


def state_tensors(state: ServerState) -> Iterator[tuple[str, Tensors]]:
    yield "the server's model", state.shared
    for name, group in state.memory.items():
        yield f"the server's memory {name}", group
    for client, tensors in state.personal.items():
        yield f"the server's model for {client}", tensors


@every_method
@pytest.mark.parametrize("kind", ["mlp", "batch-norm"])
def test_private_parameters_and_samples_never_leave_their_client(name: str, kind: str) -> None:
    holdings = method_holdings(name, kind)
    if holdings.plan.recipe.pools:
        pytest.skip("pools raw data, and is refused where clients keep theirs")
    wiretap = Wiretap(holdings)
    result = over_the_wire(holdings, 3, wiretap)
    shared, entries = holdings.plan.shared, set(holdings.plan.initial)

    assert wiretap.updates
    for update in wiretap.updates:
        assert update.keys() == shared
    for progress in result.journal.states:
        for where, tensors in state_tensors(progress.state):
            assert not (tensors.keys() & entries) - shared, where

    # The accountant of privacy goes by what parts say that they send.
    said = {one.what for one in sent_in(Stage(MAIN, holdings.plan.recipe))}
    assert (PARAMETERS in said) is bool(shared)
    assert not wiretap.reported or said - {PARAMETERS}

    everything = b"".join(wiretap.messages)
    for secret in set(wiretap.secret_bytes):
        assert secret not in everything
    for sample in holdings.federation.x.numpy():
        assert np.ascontiguousarray(sample).tobytes() not in everything


def test_the_wiretap_would_hear_a_leak() -> None:
    """FedBN keeps five entries at each client, of which four are no counters."""
    holdings = method_holdings("fedbn", "batch-norm")
    wiretap = Wiretap(holdings)
    over_the_wire(holdings, 1, wiretap)
    (asks, *_) = wiretap.messages
    assert [ask.client for ask in decode_asks(asks)] == ["c0", "c1", "c2", "c3"]
    assert {len(secrets) for secrets in wiretap.secrets} == {5}
    assert len(set(wiretap.secret_bytes)) == 16
    sent = wiretap.updates[0]["head.weight"].numpy().tobytes()
    assert any(sent in message for message in wiretap.messages)


def with_and_without_its_past(
    name: str, knobs: Mapping[str, Any] | None = None, kind: str = "mlp"
) -> tuple[Tensors, Tensors]:
    """What a client sends in the third round, after two rounds and as if they had never been."""
    result = run(method_holdings(name, kind, knobs), 2)
    state, client = result.progress.state, "c1"
    broadcast = broadcast_of(result.holdings.plan, state)
    task = TrainTask(client, 3, state.sent_to(client), broadcast, 1.0)
    sent = []
    for private in (result.backend.private_of(client), {}):
        (outcome,) = train_clients(result.holdings, [task], {client: private})
        assert outcome.update is not None
        sent.append(outcome.update.tensors)
    return sent[0], sent[1]


FORGETFUL = sorted(
    name for name in METHODS if not remembers(r := find(name).recipe()) and not r.pools
)


@pytest.mark.parametrize("name", FORGETFUL)
@pytest.mark.parametrize("kind", ["mlp", "batch-norm"])
def test_clients_that_are_said_to_forget_send_the_same_whatever_was_before(
    name: str, kind: str
) -> None:
    assert_same_bits(*with_and_without_its_past(name, kind=kind))


@pytest.mark.parametrize(
    ("name", "knobs"),
    [
        ("irm", {"anneal": 3}),
        ("vrex", {"anneal": 3}),
        ("groupdro", {"eta": 5.0}),
        ("fedper", {}),
        ("compressed", {"share": 0.5}),
    ],
)
def test_the_past_shows_in_what_clients_send_that_remember(
    name: str, knobs: dict[str, Any]
) -> None:
    assert remembers(find(name).recipe(**knobs))
    after, anew = with_and_without_its_past(name, knobs)
    assert any((after[n] - anew[n]).abs().max() > 1e-5 for n in after)
