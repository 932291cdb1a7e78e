"""Shorter updates against plain loops in numpy, on real MNIST: SGD with memory, and half precision.

Stich et al. 2018, with a client's change over a round in the gradient's place:
p = w_k - w + e_k, what travels is g = top_k(p), e_k ← p - g, and w ← w + Σ (n_k/n)·g.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers import assert_close
from plain_loops import ROUNDS, Plain, Weights, logistic, mlp, momenta, ours
from torch import nn

from fedskew.data.federation import Federation

pytestmark = pytest.mark.real_data


def flat(weights: Weights) -> np.ndarray:
    return np.concatenate([weights[n].numpy().reshape(-1) for n in sorted(weights)])


def shaped(values: np.ndarray, like: Weights) -> Weights:
    found, place = {}, 0
    for name in sorted(like):
        size = like[name].numel()
        found[name] = torch.from_numpy(values[place : place + size]).reshape(like[name].shape)
        place += size
    return {name: found[name] for name in like}


def top(values: np.ndarray, k: int) -> np.ndarray:
    kept = np.zeros_like(values)
    chosen = np.argsort(-np.abs(values), kind="stable")[:k]
    kept[chosen] = values[chosen]
    return kept


def by_hand(
    mnist: Federation, model: nn.Module, momentum: float, k: int, feedback: bool
) -> tuple[Weights, dict[str, np.ndarray]]:
    plain = Plain(mnist, model, momentum)
    w = plain.start()
    memory = {c.name: np.zeros_like(flat(w)) for c in plain.clients}
    for t in range(1, ROUNDS + 1):
        step = np.zeros_like(flat(w))
        for share, client in zip(plain.shares, plain.clients, strict=True):
            change = flat(plain.local_sgd(w, client, t)[0]) - flat(w)
            p = change + memory[client.name]
            g = top(p, k)
            if feedback:
                memory[client.name] = p - g
            step += np.float32(share) * g
        w = shaped(flat(w) + step, w)
    return w, memory


def assert_close_but_for_ties(ours: Weights, theirs: Weights, few: int = 8) -> None:
    """The same up to rounding, which also decides between places of almost the same change."""
    difference = np.abs(flat(ours) - flat(theirs))
    assert int((difference > 1e-5).sum()) <= few
    assert float(difference.max()) < 0.01


@momenta
@pytest.mark.parametrize("share", [0.01, 0.2])
def test_top_k_with_feedback_is_sgd_with_memory(
    mnist: Federation, momentum: float, share: float
) -> None:
    """785 rows of ten: 7,850 parameters, of which 78 (78.5 to even) or 1,570 travel."""
    w, memory = by_hand(mnist, logistic(), momentum, {0.01: 78, 0.2: 1570}[share], True)
    result = ours("compressed", mnist, logistic(), momentum, share=share)
    assert_close_but_for_ties(result.shared, w)
    for client in mnist.clients:
        unsent = result.backend.private_of(client.name)["unsent"]
        assert_close_but_for_ties(unsent, shaped(memory[client.name], w))
        assert sum(int((t == 0).sum()) for t in unsent.values()) >= 78


def test_top_k_without_feedback_forgets(mnist: Federation) -> None:
    w, _ = by_hand(mnist, mlp(), 0.0, 127, False)  # of 12,730 parameters
    result = ours("compressed", mnist, mlp(), share=0.01, feedback=False)
    assert_close_but_for_ties(result.shared, w)


def test_half_precision_rounds_every_change(mnist: Federation) -> None:
    plain = Plain(mnist, mlp(), 0.0)
    w = plain.start()
    for t in range(1, ROUNDS + 1):
        step = np.zeros_like(flat(w))
        for share, client in zip(plain.shares, plain.clients, strict=True):
            change = flat(plain.local_sgd(w, client, t)[0]) - flat(w)
            step += np.float32(share) * change.astype(np.float16).astype(np.float32)
        w = shaped(flat(w) + step, w)
    result = ours("compressed", mnist, mlp(), how="half")
    # A change that lies between two halves may go to either: one unit of eleven digits of 0.01.
    assert_close(result.shared, w, 1e-5)
    assert result.journal.records[0].bytes_up == 4 * 12730 * 2
