"""Law 6 for class-informed VAEs and Reptile: two clients, one step, with pencil and paper.

One feature, one latent dimension, no biases: a code of x has the mean a·x and the log-variance
s·x, d·z is drawn from it, and its logits are u·z and v·z. A draw adds half a deviation, for every
noise is e = 1. From a = 1, s = 0, d = 1, u = 4q/3, v = 0 with q = ½·log 3, and β = 1, α = 3,

    Ann, x = 1:   z = 1 + ½ = 3/2      error r = 3/2 - 1 = ½       logits 2q, 0: chances 3/4, 1/4
    Bob, x = -2:  z = -2 + ½ = -3/2    error r = -3/2 + 2 = ½      logits -2q, 0: chances 1/4, 3/4

Ann holds two samples of class 0. Bob holds three of class 0 and one of class 1, so that p_0 - y_0
is 1/4 - 3/4 = -½ on his average; for Ann it is -1/4. The gradients are

    by z: 2·r·d + 3·(p_0 - y_0)·(u - v)     Ann 1 - q              Bob 1 - 2q
    by a: that·x + a·x²                     Ann 2 - q              Bob 2 + 4q
    by s: that·(½·e·x/2) + (σ² - 1)·x/2     Ann (1 - q)/4          Bob (2q - 1)/2
    by d: 2·r·z                             Ann 3/2                Bob -3/2
    by u: 3·(p_0 - y_0)·z                   Ann -9/8               Bob 9/4
    by v: 3·(p_1 - y_1)·z                   Ann 9/8                Bob -9/4

and the learning rate is 1/8.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import replace
from typing import Any

import pytest
import torch
from by_hand import is_, noise_of_one, number, two_clients
from by_hand import worked as one_weight
from helpers import Run, make_holdings, run
from torch import Tensor, nn

from fedskew.engine.graph import Graphs
from fedskew.engine.optim import Optimiser
from fedskew.federate.adapting import Adaptation, adapted
from fedskew.federate.holdings import Holdings
from fedskew.federate.plan import Settings
from fedskew.federate.recipe import Adapt, Phase
from fedskew.federate.scoring import score_samples
from fedskew.federate.tasks import ScoreTask
from fedskew.methods import find
from fedskew.models.civae import Civae
from fedskew.types import Tensors

__all__ = ["noise_of_one"]

Q = math.log(3.0) / 2
U = 4 * Q / 3
START = [1.0, 0.0, 1.0, U, 0.0]
GRADIENTS = {
    "ann": [2 - Q, (1 - Q) / 4, 3 / 2, -9 / 8, 9 / 8],
    "bob": [2 + 4 * Q, (2 * Q - 1) / 2, -3 / 2, 9 / 4, -9 / 4],
}
_graphs: dict[Hashable, Graphs] = {}
"""Steps of this one model are traced once, whichever test takes them first."""
ANN, BOB = ([w - g / 8 for w, g in zip(START, of, strict=True)] for of in GRADIENTS.values())


def line() -> Civae:
    """The model of the page above."""
    model = Civae(nn.Linear(1, 2, bias=False), nn.Linear(1, 1, bias=False), 1, 2)
    model.classifier = nn.Linear(1, 2, bias=False)
    model.load_state_dict(
        {
            "encoder.weight": torch.tensor([[1.0], [0.0]]),
            "decoder.weight": torch.tensor([[1.0]]),
            "classifier.weight": torch.tensor([[U], [0.0]]),
        }
    )
    return model


def page(name: str, **knobs: Any) -> Holdings:
    settings = Settings(Optimiser("sgd", 1 / 8), epochs=1, batch_size=4)
    federation = two_clients([1.0, 1.0, -2.0, -2.0, -2.0, -2.0], [0, 0, 0, 0, 0, 1], ann=2)
    holdings = make_holdings(find(name).recipe(**knobs), federation, line(), settings)
    return replace(holdings, graphs=_graphs)


def worked(name: str, rounds: int = 1, **knobs: Any) -> Run:
    return run(page(name, **knobs), rounds)


def numbers(tensors: Tensors) -> list[float]:
    """a, s, d, u and v, as far as they are there."""
    names = ("encoder.weight", "decoder.weight", "classifier.weight")
    return [w for name in names if name in tensors for w in tensors[name].flatten().tolist()]


def between(ann: float) -> list[float]:
    """The mean of both with this share for Ann."""
    return [ann * one + (1 - ann) * other for one, other in zip(ANN, BOB, strict=True)]


def towards(target: list[float], part: float) -> list[float]:
    return [here + part * (there - here) for here, there in zip(START, target, strict=True)]


def newcomer(result: Run) -> list[float]:
    """What somebody without anything of its own gets: the server's parts in the first model."""
    return numbers({**result.holdings.plan.initial, **result.shared})


def test_clients_end_where_a_step_takes_them() -> None:
    """Losses: 1/4 + 1/2 + 3·log(4/3) and 1/4 + 2 + 3·(3·log 4 + log(4/3))/4."""
    result = worked("civae", base="local")
    assert numbers(result.model_of("ann")) == is_(ANN)
    assert numbers(result.model_of("bob")) == is_(BOB)
    ann = 3 / 4 + 3 * math.log(4 / 3)
    bob = 9 / 4 + 3 * (3 * math.log(4) + math.log(4 / 3)) / 4
    assert result.journal.records[0].train_loss == is_((ann + bob) / 2)


def test_the_sum_of_absolute_weights_pulls_at_those_that_are_not_nought() -> None:
    """λ = ½: a, d and u shrink by 1/16 more in a step of 1/8; of their mean over five, 1/80."""
    for reduction, pull in (("sum", 1 / 16), ("mean", 1 / 80)):
        result = worked("civae", base="local", l1=0.5, l1_reduction=reduction)
        expected = [w - pull * (k in (0, 2, 3)) for k, w in enumerate(ANN)]
        assert numbers(result.model_of("ann")) == is_(expected)


def test_the_mean_of_all_by_size_by_hand() -> None:
    assert numbers(worked("civae").shared) == is_(between(1 / 3))


def test_a_round_of_reptile_by_hand() -> None:
    """A quarter of the way to the plain mean; by size Bob counts twice; or all of the way."""
    assert numbers(worked("fedreptile-civae", eta=0.25).shared) == is_(towards(between(0.5), 0.25))
    by_size = worked("fedreptile-civae", eta=0.25, weights="size")
    assert numbers(by_size.shared) == is_(towards(between(1 / 3), 0.25))
    whole = worked("fedreptile-civae", eta=0.25, first=1.0)
    assert numbers(whole.shared) == is_(between(0.5))


def test_reptile_over_one_weight_by_hand() -> None:
    """Two steps take Ann to w/4 + 3 and Bob to w/4 + 3/4: to w/4 + 15/8 on average.

    With η = 0.35 from 0: 0.65625; then w + 0.35·(15/8 - 3w/4) = 1.140234375. With a first step
    of 1: 1.875, 2.0390625, and with a decay of 0.9 then w + 0.315·(15/8 - 3w/4) = 2.1479590.
    """
    for rounds, value in ((1, 0.65625), (2, 1.140234375)):
        assert number(one_weight("fedreptile", rounds=rounds).shared) == is_(value)
    knobs = {"first": 1.0, "decay": 0.9}
    for rounds, value in ((1, 1.875), (2, 2.0390625), (3, 2.1479590)):
        assert number(one_weight("fedreptile", knobs, rounds).shared) == is_(value)


def test_reptile_by_size_by_hand() -> None:
    """The mean of 3 and 3/4 is 3/2 by size: 0.35 of it."""
    assert number(one_weight("fedreptile", {"weights": "size"}).shared) == is_(0.525)


def test_a_round_of_fed_civae_by_hand() -> None:
    """u falls by (2·(-9/64) + 4·9/32)/6 = 9/64, v rises as much; nothing else is sent."""
    result = worked("fed-civae")
    classifier = [U - 9 / 64, 9 / 64]
    assert numbers(result.shared) == is_(classifier)
    assert result.journal.records[0].bytes_up == 2 * 2 * 4
    assert numbers(result.model_of("ann")) == is_([*ANN[:3], *classifier])
    assert numbers(result.model_of("bob")) == is_([*BOB[:3], *classifier])
    assert newcomer(result) == is_([1.0, 0.0, 1.0, *classifier])


@pytest.mark.parametrize("encoder", ["mean", "volunteer", "none"])
@pytest.mark.parametrize("decoder", ["mean", "volunteer", "none"])
def test_newcomers_get_the_mean_or_anns_or_an_untrained_part(encoder: str, decoder: str) -> None:
    """Ann is the first by name. Clients go on with their own, whatever newcomers get."""
    result = worked("fed-civae", encoder=encoder, decoder=decoder)
    given = {"mean": between(1 / 3), "volunteer": ANN, "none": START}
    classifier = between(1 / 3)[3:]
    assert newcomer(result) == is_([*given[encoder][:2], given[decoder][2], *classifier])
    assert numbers(result.model_of("bob")) == is_([*BOB[:3], *classifier])
    task = ScoreTask("bob", 1, result.shared, "personal", ())
    (found,) = score_samples(result.holdings, [task], {"bob": result.backend.private_of("bob")})
    assert numbers(found.model) == is_([*BOB[:3], *classifier])


def test_a_client_goes_on_from_its_own_encoder_and_the_shared_classifier() -> None:
    """Ann's second step by the same rules, from her a, s and d and the mean u and v."""
    a, s, d = ANN[:3]
    u, v = U - 9 / 64, 9 / 64
    sigma = math.exp(s / 2)
    z = a + sigma / 2
    r = d * z - 1
    miss = 3 * (1 / (1 + math.exp((v - u) * z)) - 1)
    by_z = 2 * r * d + miss * (u - v)
    gradients = [by_z + a, by_z * sigma / 4 + (sigma**2 - 1) / 2, 2 * r * z, miss * z, -miss * z]
    expected = [w - g / 8 for w, g in zip([a, s, d, u, v], gradients, strict=True)]
    result = worked("fed-civae", rounds=2)
    kept: dict[str, Tensor] = result.backend.private_of("ann")["model"]
    assert numbers(kept) == is_(expected[:3])


def test_an_adapting_client_moves_encoder_and_decoder_with_alpha_one() -> None:
    """By z: 1 - (1/4)·u = 1 - q/3, by a 2 - q/3, by s (1 - q/3)/4, by d 3/2; u and v stay."""
    holdings = page("fed-civae")
    assert holdings.plan.recipe.adapts is not None
    (phase,) = holdings.plan.recipe.adapts.phases
    once = Adapt((Phase(phase.trains, 1, objective=phase.objective),))
    (found,) = adapted(holdings, [Adaptation("ann", holdings.plan.initial, once)])
    assert not isinstance(found, Exception)
    moved = [1 - (2 - Q / 3) / 8, -(1 - Q / 3) / 32, 13 / 16]
    assert numbers(found) == is_([*moved, U, 0.0])
