"""Law 6 for the personalised methods: two clients, two steps, worked out with pencil and paper.

FedPer and FedRep fit f = h·b·x with a body b and a head h, both from 1, to inputs of 1 under the
loss (f - y)²/2: with the residual r = h·b - y a gradient is r·h for b and r·b for h. Ann holds
two samples with y = 3, Bob four with y = 1, which he already fits. The learning rate is 1/2.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import exp, log
from typing import Any

import numpy as np
from by_hand import HalfSquare, is_, number, two_clients
from helpers import Run, assert_close, make_holdings, run, toy_federation, toy_model
from torch import nn

from fedskew.data.federation import Client
from fedskew.engine.optim import Optimiser
from fedskew.federate.plan import Settings
from fedskew.methods import find
from fedskew.models.registry import Classifier
from fedskew.parts.personal import OneStepAhead


def product_of_two(name: str, knobs: dict[str, Any], rounds: int = 1, epochs: int = 1) -> Run:
    """The run of the page above."""
    body, head = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
    for layer in (body, head):
        nn.init.ones_(layer.weight)
    recipe = replace(find(name).recipe(**knobs), objective=HalfSquare())
    settings = Settings(Optimiser("sgd", 0.5), epochs=epochs, batch_size=4)
    federation = two_clients([1.0] * 6, [3, 3, 1, 1, 1, 1], ann=2)
    return run(make_holdings(recipe, federation, Classifier(body, head), settings), rounds)


def body_and_heads(result: Run) -> list[float]:
    heads = [number(result.model_of(client), "head.weight") for client in ("ann", "bob")]
    return [number(result.shared, "body.weight"), *heads]


def test_fedper_by_hand() -> None:
    """Round 1, Ann: r = -2, b = 2, h = 2; Bob: r = 0. Body (2·2 + 4·1)/6 = 4/3.

    Round 2, Ann from b = 4/3 and her own h = 2: r = -1/3, b = 4/3 + 1/3, h = 2 + 2/9. Bob from
    h = 1: r = 1/3, b = 4/3 - 1/6, h = 1 - 2/9. Body (2·5/3 + 4·7/6)/6 = 4/3 again."""
    first, second = product_of_two("fedper", {}), product_of_two("fedper", {}, rounds=2)
    assert first.shared.keys() == {"body.weight"}
    assert body_and_heads(first) == is_([4 / 3, 2.0, 1.0])
    assert body_and_heads(second) == is_([4 / 3, 20 / 9, 7 / 9])


def test_fedper_with_uniform_weights_and_half_a_server_step_by_hand() -> None:
    """The mean of 2 and 1 is 1.5; half the way from 1 is 1.25. Heads know no server."""
    half = product_of_two("fedper", {"weights": "uniform", "server_lr": 0.5})
    assert body_and_heads(half) == is_([1.25, 2.0, 1.0])


def test_fedrep_by_hand() -> None:
    """Round 1, Ann: r = -2, so h = 2; now r = -1, so b = 1 + 2/2 = 2. Bob: r = 0. Body 4/3.

    Round 2, Ann from h = 2: r = -1/3, h = 2 + 2/9 = 20/9; now r = 80/27 - 3 = -1/27 and
    b = 4/3 + 10/243 = 334/243. Bob from h = 1: r = 1/3, h = 1 - 2/9 = 7/9; now r = 28/27 - 1
    = 1/27 and b = 4/3 - 7/486 = 641/486. Body (2·334/243 + 4·641/486)/6 = 325/243."""
    first, second = product_of_two("fedrep", {}), product_of_two("fedrep", {}, rounds=2)
    assert first.shared.keys() == {"body.weight"}
    assert body_and_heads(first) == is_([4 / 3, 2.0, 1.0])
    assert body_and_heads(second) == is_([325 / 243, 20 / 9, 7 / 9])


def test_fedrep_gives_the_head_the_epochs_of_the_run_and_the_body_one() -> None:
    """Ann: h = 2, then r = -1, h = 2.5; r = -1/2, b = 1 + 2.5/4 = 1.625. Body
    (2·1.625 + 4)/6. With one epoch for the head and two for the body: h = 2; b = 2, then r = 1,
    b = 1; body (2·1 + 4)/6."""
    assert body_and_heads(product_of_two("fedrep", {}, epochs=2)) == is_([7.25 / 6, 2.5, 1.0])
    other = product_of_two("fedrep", {"head_epochs": 1, "body_epochs": 2}, epochs=5)
    assert body_and_heads(other) == is_([1.0, 2.0, 1.0])


def sigmoid(z: float) -> float:
    return 1 / (1 + exp(-z))


def test_fedrod_by_hand() -> None:
    """Features f = b·x from b = 1 and two classes; both heads start at zero and, their gradients
    being opposite, stay (u, -u) and (v, -v). With q the probability of class 0, ∂u = mean of
    (q - [y=0])·f for the generic head, ∂b = mean of (q - [y=0])·x·2u, and ∂v as ∂u with the
    personal q; generic q = σ(2uf + log n_0/n_1), personal q = σ(2uf + 2vf).

    Ann holds three of class 0 with x = 1 and one of class 1 with x = -1.
    Step 1: generic q = 3/4, ∂u = (3·(-1/4) - 3/4)/4 = -3/8, ∂b = 0; personal q = 1/2,
    ∂v = -1/2. So u = 3/16, v = 1/4, b = 1.
    Step 2: ∂u = m = (3·(σ(log 3 + 3/8) - 1) - σ(log 3 - 3/8))/4, ∂b = 2u·m; the personal head
    is wrong by 1 - σ(7/8) everywhere.

    Bob holds two of class 1 with x = 1 and none of class 0: the generic q is 0 and u and b stay.
    His personal q = 1/2, so v = -1/4; then σ(-1/2), so v = -1/4 - σ(-1/2)/2."""
    body, head = nn.Linear(1, 1, bias=False), nn.Linear(1, 2, bias=False)
    nn.init.ones_(body.weight)
    nn.init.zeros_(head.weight)
    data = two_clients([1.0, 1.0, 1.0, -1.0, 1.0, 1.0], [0, 0, 0, 1, 1, 1], ann=4)
    data = data.with_data(class_names=("0", "1"))
    settings = Settings(Optimiser("sgd", 0.5), epochs=2, batch_size=4)
    result = run(make_holdings(find("fedrod").recipe(), data, Classifier(body, head), settings), 1)

    m = (3 * (sigmoid(log(3) + 3 / 8) - 1) - sigmoid(log(3) - 3 / 8)) / 4
    u, b, v = 3 / 16 - m / 2, 1 - 3 / 16 * m, 1 / 4 + (1 - sigmoid(7 / 8)) / 2
    bob = -1 / 4 - sigmoid(-1 / 2) / 2
    assert result.shared.keys() == {"body.weight", "head.weight"}
    assert number(result.shared, "body.weight") == is_((4 * b + 2 * 1) / 6)
    assert result.shared["head.weight"].flatten().tolist() == is_([4 / 6 * u, -4 / 6 * u])
    for client, own in (("ann", v), ("bob", bob)):
        personal = result.model_of(client)["personal.weight"].flatten().tolist()
        assert personal == is_([own, -own])


@dataclass(frozen=True)
class HalfSquareAhead(HalfSquare, OneStepAhead):
    """One step ahead on (f(x) - y)²/2."""


def one_weight_ahead(alpha: float, labels: list[int], ann: int, batch_size: int = 4) -> Run:
    """One weight w from 0, inputs of 1, two epochs of one batch at a learning rate of 1/2."""
    model = Classifier(nn.Identity(), nn.Linear(1, 1, bias=False))
    nn.init.zeros_(next(model.head.parameters()))
    recipe = replace(find("per-fedavg").recipe(alpha=alpha), objective=HalfSquareAhead(alpha))
    settings = Settings(Optimiser("sgd", 0.5), epochs=2, batch_size=batch_size)
    return run(
        make_holdings(recipe, two_clients([1.0] * len(labels), labels, ann), model, settings), 1
    )


def test_per_fedavg_by_hand() -> None:
    """With α = 1/2 and all samples of a client alike, the step ahead halves the residual: a
    gradient is (w - y)/2, a step leaves 3/4 of w - y. Ann, y = 4: 0 → 1 → 1.75. Bob, y = 1:
    0 → 0.25 → 0.4375. Mean (2·1.75 + 4·0.4375)/6 = 0.875."""
    assert number(one_weight_ahead(0.5, [4, 4, 1, 1, 1, 1], ann=2).shared) == is_(0.875)


def test_per_fedavg_of_a_client_with_one_sample_by_hand() -> None:
    """Ann's one sample serves for both halves, in a batch padded to Bob's width or not: 1.75
    again. Mean (1.75 + 3·0.4375)/4 = 0.765625."""
    assert number(one_weight_ahead(0.5, [4, 1, 1, 1], ann=1).shared) == is_(0.765625)
    narrow = one_weight_ahead(0.5, [4, 1], ann=1, batch_size=1)
    assert number(narrow.shared) == is_((1.75 + 0.4375) / 2)


def test_identical_clients_of_per_fedavg_end_where_one_of_them_would_alone() -> None:
    """Which samples make a half depends on their order, so only a client whose samples are all
    alike has an identical twin."""
    one = toy_federation((16,))
    rows = np.repeat(one.clients[0].train[:1], 16)
    settings = Settings(Optimiser("sgd", 0.1), epochs=2, batch_size=6)
    recipe = find("per-fedavg").recipe(alpha=0.5)
    results = []
    for names in (("twin0", "twin1", "twin2"), ("alone",)):
        data = one.with_data(clients=tuple(Client(name, rows) for name in names))
        results.append(run(make_holdings(recipe, data, toy_model(), settings), 3))
    together, alone = results
    assert_close(together.shared, alone.shared, 1e-5)
