"""Laws 3 and 4: neither the order of the clients nor how they are stacked changes the result."""

from __future__ import annotations

from functools import cache

import pytest
from helpers import (
    RAGGED,
    Run,
    assert_close,
    assert_same_bits,
    every_method,
    method_holdings,
    run,
    standard_run,
    toy_federation,
)

from fedskew.engine.executor import ONE_BY_ONE
from fedskew.engine.optim import Optimiser
from fedskew.federate.plan import Settings

OPTIMISERS = {
    "sgd": Optimiser("sgd", 0.1),
    "momentum": Optimiser("sgd", 0.05, momentum=0.9, weight_decay=0.01),
    "adam": Optimiser("adam", 0.01),
}


@every_method
@pytest.mark.parametrize("kind", ["mlp", "batch-norm"])
def test_permuting_the_clients_permutes_the_result_and_nothing_else(name: str, kind: str) -> None:
    federation = toy_federation()
    shuffled = federation.with_data(clients=tuple(federation.clients[i] for i in (2, 0, 3, 1)))
    permuted = run(method_holdings(name, kind, federation=shuffled))
    original = standard_run(name, kind)
    assert_same_bits(permuted.everything(), original.everything())
    assert permuted.scores == pytest.approx(original.scores, abs=1e-6)


@cache
def stacked_by(name: str, optimiser: str, chunk: int, executor: str = "vectorised") -> Run:
    settings = Settings(OPTIMISERS[optimiser], epochs=2, batch_size=8)
    return run(method_holdings(name, settings=settings, chunk=chunk, executor=executor), 2)


@every_method
@pytest.mark.parametrize("optimiser", sorted(OPTIMISERS))
@pytest.mark.parametrize("chunk", [2, len(RAGGED)])
def test_a_stack_of_clients_trains_as_one_client_a_thread_does(
    name: str, optimiser: str, chunk: int
) -> None:
    stacked, apart = stacked_by(name, optimiser, chunk), stacked_by(name, optimiser, 1)
    assert_close(stacked.everything(), apart.everything(), 1e-5)
    assert stacked.scores == pytest.approx(apart.scores, abs=1e-5)
    assert [r.bytes_up for r in stacked.journal.records] == [
        r.bytes_up for r in apart.journal.records
    ]


@every_method
@pytest.mark.parametrize("optimiser", sorted(OPTIMISERS))
def test_plain_pytorch_one_client_after_another_trains_as_one_client_a_thread_does(
    name: str, optimiser: str
) -> None:
    plain = stacked_by(name, optimiser, 1, ONE_BY_ONE)
    traced = stacked_by(name, optimiser, 1)
    assert_close(plain.everything(), traced.everything(), 1e-5)
    assert plain.scores == pytest.approx(traced.scores, abs=1e-5)


@every_method
def test_plain_pytorch_trains_batch_norm_as_traced_steps_do(name: str) -> None:
    plain = run(method_holdings(name, "batch-norm", chunk=1, executor=ONE_BY_ONE))
    traced = standard_run(name, "batch-norm")
    assert_close(plain.everything(), traced.everything(), 1e-5)
    assert plain.scores == pytest.approx(traced.scores, abs=1e-5)


@every_method
def test_batch_norm_trains_the_same_whatever_the_chunk_asked_for(name: str) -> None:
    wide = run(method_holdings(name, "batch-norm", chunk=4))
    assert_same_bits(wide.everything(), standard_run(name, "batch-norm").everything())
