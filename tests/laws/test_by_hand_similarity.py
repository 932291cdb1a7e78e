"""Law 6 for mixed models: two clients, two steps, worked out with pencil and paper.

One weight w in the body under a head that is 1 and frozen, and the loss (w·x - y)²/2 at the
learning rate 1/2. Ann holds (x, y) = (1, 4) and (0, 0), Bob two each of (1, 1) and (0, 0). A step
on all of a client's samples takes

    Ann: w → w - (w - 4)/4 = 3w/4 + 1         Bob: w → w - (w - 1)/4 = 3w/4 + 1/4

and two steps from w = 0 take Ann to 7/4 and Bob to 7/16. One feature has a covariance of one
number, so the two are alike whatever w is, unless it is 0: then they are like nobody.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from by_hand import HalfSquare, is_, two_clients
from helpers import Run, make_holdings, run
from torch import nn

from fedskew.engine.optim import Optimiser
from fedskew.federate.plan import Settings
from fedskew.methods import find
from fedskew.models.registry import Classifier


def worked(
    name: str, rounds: int = 1, x: tuple[float, ...] = (1, 0, 1, 0, 1, 0), **knobs: Any
) -> Run:
    """The run of the page above; for methods that mix whole models the head holds w."""
    whole = name == "fedavg-crsm" or knobs.get("part") == "all"
    body: nn.Module = nn.Identity() if whole else nn.Linear(1, 1, bias=False)
    model = Classifier(body, nn.Linear(1, 1, bias=False))
    nn.init.ones_(model.head.weight)  # type: ignore[arg-type]
    nn.init.zeros_(next(model.parameters()))
    recipe = replace(find(name).recipe(**knobs), objective=HalfSquare())
    settings = Settings(Optimiser("sgd", 0.5), epochs=2, batch_size=4)
    federation = two_clients([float(value) for value in x], [4, 0, 1, 0, 1, 0], ann=2)
    return run(make_holdings(recipe, federation, model, settings), rounds)


def weights(result: Run) -> list[float]:
    name = "head.weight" if "body.weight" not in result.holdings.plan.initial else "body.weight"
    return [float(result.model_of(client)[name].reshape(())) for client in ("ann", "bob")]


def test_fedbabu_by_hand() -> None:
    """The mean of 7/4 and 7/16 is 35/32. From any w two steps take Ann to 9w/16 + 7/4 and Bob to
    9w/16 + 7/16, whose mean is 9w/16 + 35/32."""
    assert weights(worked("fedbabu")) == is_([35 / 32] * 2)
    assert weights(worked("fedbabu", rounds=2)) == is_([9 / 16 * 35 / 32 + 35 / 32] * 2)


@pytest.mark.parametrize("name", ["fedshibu", "fedavg-crsm"])
def test_alike_clients_are_averaged(name: str) -> None:
    assert weights(worked(name)) == is_([35 / 32] * 2)


@pytest.mark.parametrize("name", ["fedshibu", "fedavg-crsm"])
def test_similarity_by_hand(name: str) -> None:
    """Three quarters on oneself: 3/4·7/4 + 1/4·7/16 and 3/4·7/16 + 1/4·7/4."""
    assert weights(worked(name, self_weight=0.75)) == is_([91 / 64, 49 / 64])


def test_clients_without_any_spread_keep_to_themselves() -> None:
    """With x = 1 throughout there is nothing to compare. Ann averages y = 4 and y = 0:
    w → w/2 + 1, twice from 0: 3/2. Bob w → w/2 + 1/4: 3/8."""
    assert weights(worked("fedshibu", x=(1,) * 6)) == is_([3 / 2, 3 / 8])


def test_self_mix_by_hand() -> None:
    """λ = 1/4 gives 1/4·7/4 + 3/4·7/16 and the reverse; measured, λ is 1/2 here."""
    assert weights(worked("self-mix", self_weight=0.25)) == is_([49 / 64, 91 / 64])
    assert weights(worked("self-mix", self_weight="measured")) == is_([35 / 32] * 2)


def test_grouped_by_hand() -> None:
    """Together they are averaged; apart each keeps its own. Found, two clients are one group."""
    assert weights(worked("grouped", groups=[["ann", "bob"]])) == is_([35 / 32] * 2)
    assert weights(worked("grouped", groups=[["ann"], ["bob"]])) == is_([7 / 4, 7 / 16])
    by_size = worked("grouped", groups=[[0, 1]], weights="size", part="all")
    assert weights(by_size) == is_([(7 / 4 + 2 * 7 / 16) / 3] * 2)
    assert weights(worked("grouped")) == is_([35 / 32] * 2)
