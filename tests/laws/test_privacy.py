"""Law 7: private parameters and samples never appear in a message or the server's state.

Checked on the bytes of every ask and every answer.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from helpers import OpenBackend, Tensors, every_method, method_holdings, over_the_wire

from fedskew.federate.backends.carrier import Carrier
from fedskew.federate.backends.wire import decode_answers, decode_asks
from fedskew.federate.holdings import Holdings
from fedskew.parts.aggregate import ServerState
from fedskew.parts.report import MEMORY, PERSONAL, SAMPLE_WEIGHT, SHARED


class Wiretap(Carrier):
    """Copies every byte between server and clients, and every private tensor ever held."""

    def __init__(self, holdings: Holdings) -> None:
        self.clients = OpenBackend(holdings)
        super().__init__(self.clients)
        self.messages: list[bytes] = []
        self.updates: list[Tensors] = []
        self.secrets: list[Tensors] = []

    def carry(self, message: bytes) -> bytes:
        answer = super().carry(message)
        self.messages += [message, answer]
        self.updates += [a.update.tensors for a in decode_answers(answer) if a.update is not None]
        for name in self.clients.labels:
            for group, tensors in self.clients.private_of(name).items():
                if group in (SHARED, PERSONAL, SAMPLE_WEIGHT) or group.startswith(MEMORY):
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
