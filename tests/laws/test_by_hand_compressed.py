"""Law 6 for shorter updates: two clients, two weights, worked out with pencil and paper.

The loss is (w·x - y)²/2, and every client has as many samples x = (1, 0) as x = (0, 1), so each
weight is pulled towards a number y of its own. With batches of all samples and the learning rate 1
a step is w → w/2 + y/2 for each weight, and two steps are w → w/4 + 3y/4. Ann's two samples
pull to (4, 1), Bob's four to (1, 2); they weigh 1/3 and 2/3.

Half of two weights is one, and it travels. Round 1 from (0, 0):

    Ann: (3, 3/4) sends 3, keeps (0, 3/4)      Bob: (3/4, 3/2) sends 3/2, keeps (3/4, 0)

and the mean is (1, 1). Round 2 trains from there:

    Ann: (13/4, 1), a change of (9/4, 0)       Bob: (1, 7/4), a change of (0, 3/4)
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from by_hand import HalfSquare, is_, two_clients
from helpers import Run, make_holdings, run
from torch import nn

from fedskew.data.federation import Client, Federation
from fedskew.engine.optim import Optimiser
from fedskew.federate.plan import Settings
from fedskew.methods import find
from fedskew.models.registry import Classifier

X = torch.tensor([[1.0, 0.0], [0.0, 1.0]])


def compressed(rounds: int, federation: Federation, lr: float, **knobs: Any) -> Run:
    model = Classifier(nn.Identity(), nn.Linear(federation.x.shape[1], 1, bias=False))
    nn.init.zeros_(next(model.head.parameters()))
    recipe = replace(find("compressed").recipe(**knobs), objective=HalfSquare())
    settings = Settings(Optimiser("sgd", lr), epochs=2, batch_size=4)
    return run(make_holdings(recipe, federation, model, settings), rounds)


def top_k(rounds: int, **knobs: Any) -> Run:
    names = ("0", "1", "2", "3", "4")
    clients = (Client("ann", np.arange(2)), Client("bob", np.arange(2, 6)))
    y = torch.tensor([4, 1, 1, 2, 1, 2])
    return compressed(
        rounds, Federation("by hand", X.repeat(3, 1), y, names, clients), 1.0, **knobs
    )


def weights(result: Run) -> list[float]:
    return result.shared["head.weight"].reshape(-1).tolist()


def kept(result: Run, client: str) -> list[float]:
    return result.backend.private_of(client)["unsent"]["head.weight"].reshape(-1).tolist()


def test_top_k_with_feedback_by_hand() -> None:
    """With what they kept Ann has (9/4, 3/4) and sends 9/4. Bob has (3/4, 3/4): of equals the
    first travels. So w = (1 + (9/4)/3 + (3/4)·2/3, 1), and both keep 3/4 of the second weight."""
    first, second = top_k(1, share=0.5), top_k(2, share=0.5)
    assert weights(first) == is_([1, 1])
    assert (kept(first, "ann"), kept(first, "bob")) == ([0, 0.75], [0.75, 0])
    assert weights(second) == is_([2.25, 1])
    assert (kept(second, "ann"), kept(second, "bob")) == ([0, 0.75], [0, 0.75])


def test_top_k_without_feedback_by_hand() -> None:
    """Ann sends 9/4 again, Bob 3/4 of the second weight: (1 + (9/4)/3, 1 + (3/4)·2/3)."""
    second = top_k(2, share=0.5, feedback=False)
    assert weights(second) == is_([1.75, 1.5])
    assert second.backend.private_of("ann") == {}


def test_half_precision_by_hand() -> None:
    """One weight, y = 4 and 1, learning rate 1/10: two steps take Ann to 0.76 and Bob to 0.19.
    Eleven digits: 0.76·2¹¹ = 1556.48 and 0.19·2¹³ = 1556.48, so they send 1556/2¹¹ and 1556/2¹³."""
    data = two_clients([1.0] * 6, [4, 4, 1, 1, 1, 1], ann=2)
    expected = (2 * 1556 / 2**11 + 4 * 1556 / 2**13) / 6
    assert abs(expected - 0.38) > 1e-4
    assert weights(compressed(1, data, 0.1, how="half")) == is_([expected])
