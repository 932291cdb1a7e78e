"""Where a shortcut is real and environments show it, invariance pays: the two-bit problem.

A sample is two bits of ±1. The first, the shape, is its label in 75 of 100 cases everywhere. The
second, the colour, is its label in 90 of 100 cases in one environment of every client, in 80 in the
other, in 50 in one that is held out, and in 10 where the model is used. Every count is exact, so
there is no luck in it: whoever follows the shape is right in .75 everywhere, whoever follows the
colour in .85, .5 and .1.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import numpy as np
import pytest
import torch
from helpers import Run, make_holdings, run
from torch import nn

from fedskew.comparisons.selection import Curves, chosen
from fedskew.data.federation import Client, Federation
from fedskew.engine.optim import Optimiser
from fedskew.federate.plan import Settings
from fedskew.federate.rounds import Score
from fedskew.methods import find
from fedskew.models.registry import Classifier

SHAPE, CLIENTS = 0.75, 5
COLOURS = {0: 0.9, 1: 0.8, 2: 0.5, 3: 0.1}
"""By place: the two environments to train on, the one held out, and the test set."""


def two_bits(agrees: float) -> tuple[np.ndarray, np.ndarray]:
    """200 samples of each label, in which both bits agree with it as often as they should."""
    x, y = [], []
    for label in (0, 1):
        for shape, shape_share in ((1, SHAPE), (-1, 1 - SHAPE)):
            for colour, colour_share in ((1, agrees), (-1, 1 - agrees)):
                count = round(200 * shape_share * colour_share)
                x += [[(2 * label - 1) * shape, (2 * label - 1) * colour]] * count
                y += [label] * count
    return np.array(x, dtype=np.float32), np.array(y, dtype=np.int64)


def federation() -> Federation:
    parts = [(place, *two_bits(COLOURS[place])) for _ in range(CLIENTS) for place in (0, 1, 2)]
    parts.append((3, *two_bits(COLOURS[3])))
    starts = np.cumsum([0, *(len(y) for _, _, y in parts)])
    rows = [np.arange(start, end) for start, end in pairwise(starts)]
    clients = []
    for k in range(CLIENTS):
        first, second, held_out = rows[3 * k : 3 * k + 3]
        both = np.concatenate([first, second])
        # Scored on what it trained on: with exact counts, fresh samples would be the same ones.
        clients.append(Client(f"c{k}", both, both, both, held_out))
    return Federation(
        name="two bits",
        x=torch.from_numpy(np.concatenate([x for _, x, _ in parts])),
        y=torch.from_numpy(np.concatenate([y for _, _, y in parts])),
        class_names=("low", "high"),
        clients=tuple(clients),
        central_test=rows[-1],
        environment=torch.tensor(np.repeat([place for place, _, _ in parts], np.diff(starts))),
    )


@cache
def trained(method: str) -> Run:
    model = Classifier(nn.Identity(), nn.Linear(2, 2))
    nn.init.zeros_(model.head.weight)
    nn.init.zeros_(model.head.bias)
    knobs = {} if method == "erm" else {"lam": 1000.0, "anneal": 60}
    settings = Settings(Optimiser("adam", 0.02), epochs=10, batch_size=400)
    return run(make_holdings(find(method).recipe(**knobs), federation(), model, settings), 30)


def curves(method: str) -> Curves:
    def of(on: str, split: str) -> dict[int, Score]:
        found: dict[int, list[float]] = {}
        for row in trained(method).journal.rows:
            if (row.on, row.split, row.metric) == (on, split, "accuracy"):
                found.setdefault(row.round, []).append(row.value)
        return {number: Score.of(values) for number, values in found.items()}

    return Curves(
        validation=of("seen", "validation"),
        ood=of("central", "test"),
        environment=of("seen", "environment"),
    )


def test_empirical_risk_follows_the_shortcut() -> None:
    """From the round on in which Adam's first steps, equally long for both bits, are over."""
    found = curves("erm")
    for number in range(4, 31):
        assert found.ood[number].value == pytest.approx(0.1)
        assert found.validation[number].value == pytest.approx(0.85)
        assert found.environment[number].value == pytest.approx(0.5)


@pytest.mark.parametrize("method", ["irm", "vrex"])
def test_invariance_follows_the_shape_once_its_penalty_acts(method: str) -> None:
    found = curves(method)
    assert found.ood[6].value == pytest.approx(0.1), (
        "until the switch, after six rounds of ten steps"
    )
    assert found.ood[30].value == pytest.approx(0.75)
    assert found.environment[30].value == pytest.approx(0.75)
    assert found.validation[30].value == pytest.approx(0.75), "at a price in domain"


@pytest.mark.parametrize("method", ["irm", "vrex"])
def test_only_a_held_out_environment_finds_the_round_in_which_invariance_pays(method: str) -> None:
    """C3: validation data of the training environments prefer a round before the switch."""
    found = curves(method)
    by_validation, by_environment = chosen("validation", found), chosen("environment", found)
    assert by_validation is not None
    assert by_environment is not None
    assert found.ood[by_validation].value == pytest.approx(0.1)
    assert found.ood[by_environment].value == pytest.approx(0.75)
