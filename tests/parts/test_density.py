"""The loss of a MADE against numpy and scipy, and which of its rounds a client keeps."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from helpers import copied, just_trained, toy_federation
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from fedskew.data.federation import Client, Federation
from fedskew.errors import ConfigError
from fedskew.federate.holdings import roster_of
from fedskew.methods import find
from fedskew.models import seeded
from fedskew.models.made import Made
from fedskew.parts.density import BEST, BEST_LOSS, DensityLoss, KeepBest, explained
from fedskew.parts.objective import Batch, Bound
from fedskew.types import Groups

Values = NDArray[np.float64]
INPUTS, HIDDEN = 6, 9
X = torch.rand(11, INPUTS, generator=torch.Generator().manual_seed(1))
both_kinds = pytest.mark.parametrize("name", ["made", "gaussian-made"])


def model(name: str) -> Made:
    found = seeded(name, (INPUTS,), 2, seed=3, hidden=[HIDDEN])
    assert isinstance(found, Made)
    return found.eval()


def by_hand(module: Made, x: Tensor) -> Values:
    """-Σ log p(x_d | earlier inputs) of each sample, one output after the other.

    Hidden unit h has a degree m_h in 1..D-1 and sees inputs up to it; output d (from 1) sees units
    of degrees below d.
    """
    w = {n: t.double().numpy() for n, t in copied(module.state_dict()).items()}
    degree = np.random.default_rng(1).integers(1, INPUTS, size=HIDDEN)
    total = np.zeros(len(x))
    for row, sample in enumerate(x.double().numpy()):
        units = np.zeros(HIDDEN)
        for h in range(HIDDEN):
            arrives = w["hidden.1.weight"][h, : degree[h]] @ sample[: degree[h]]
            units[h] = max(0.0, arrives + w["hidden.1.bias"][h])
        for d in range(INPUTS):
            seen = degree < d + 1
            said = w["output.weight"][d::INPUTS, seen] @ units[seen] + w["output.bias"][d::INPUTS]
            if len(said) == 1:
                chance = 1 / (1 + math.exp(-said[0]))
                log = sample[d] * math.log(chance) + (1 - sample[d]) * math.log(1 - chance)
            else:
                share, mean, log_scale = np.split(said, 3)
                each = stats.norm.pdf(sample[d], mean, np.exp(log_scale))
                log = math.log(each @ np.exp(share) / np.exp(share).sum())
            total[row] -= log
    return total


@both_kinds
def test_the_loss_is_the_weighted_mean_of_what_each_sample_costs(name: str) -> None:
    module = model(name)
    costs = by_hand(module, X)
    bound = Bound(module, copied(module.state_dict()))
    mask = torch.tensor([1.0] * 9 + [0.0] * 2)
    weight = torch.linspace(0.2, 3.0, 11) * mask
    batch = Batch(X, torch.zeros(11, dtype=torch.int64), mask, weight)
    expected = float(weight.double().numpy() @ costs / 9)
    assert float(DensityLoss().loss(bound, batch, {})) == pytest.approx(expected, rel=1e-5)
    scores = DensityLoss().scores(bound, batch)
    assert list(scores) == ["loss"]
    assert scores["loss"].tolist() == pytest.approx(costs.tolist(), rel=1e-5)


@both_kinds
def test_many_samples_are_explained_in_portions_as_each_alone(name: str) -> None:
    module = model(name)
    bound = Bound(module, copied(module.state_dict()))
    many = torch.rand(1030, INPUTS, generator=torch.Generator().manual_seed(2))
    together = explained(bound, many)
    assert together.shape == (1030, INPUTS)
    assert not together.requires_grad
    last = -by_hand(module, many[-8:])
    assert together[-8:].sum(dim=1).tolist() == pytest.approx(last.tolist(), rel=1e-5)


def of_values(*values: float) -> Federation:
    """One client whose samples hold these values, and zeros."""
    x = torch.zeros(len(values), INPUTS)
    x[:, 0] = torch.tensor(values)
    y = torch.zeros(len(values), dtype=torch.int64)
    return Federation("few", x, y, ("a", "b"), (Client("c0", np.arange(len(values))),))


@pytest.mark.parametrize(
    ("values", "span"), [((-0.25, 1.5), "-0.25 to 1.5"), ((0.5, 1.01), "0 to 1.01")]
)
def test_values_that_are_no_probabilities_are_refused(values: tuple[float, ...], span: str) -> None:
    with pytest.raises(ConfigError) as raised:
        DensityLoss().check(model("made"), roster_of(of_values(*values)), 8)
    assert str(raised.value) == (
        f"model 'made' needs values in [0, 1], but these span {span}: set federation.normalise = "
        "'unit', or choose 'gaussian-made'."
    )


def test_values_from_0_to_1_are_taken_and_a_gaussian_made_takes_any() -> None:
    DensityLoss().check(model("made"), roster_of(of_values(0.0, 1.0)), 8)
    DensityLoss().check(model("gaussian-made"), roster_of(of_values(-7.0, 1e3)), 8)


def kept_of(federation: Federation, log_odds: list[float]) -> tuple[list[Groups], Groups]:
    """What is kept after each round, and at the end, of models that are nothing but biases."""
    module = model("made")
    private: Groups = {}
    each = []
    for odds in log_odds:
        tensors = {n: torch.zeros_like(t) for n, t in copied(module.state_dict()).items()}
        tensors["output.bias"] += odds
        reported = KeepBest().report(
            just_trained(module, federation, trained=tensors, private=private)
        )
        assert reported.sends == {}
        each.append(reported.keeps)
        private = {**private, **reported.keeps}
    return each, private


SEQUENCE = [1.0, 0.0, 0.5, -1.0, -1.0, 2.0]
"""Log odds of a bit; the lower, the better for a client with nothing but zeros."""


def test_a_client_keeps_the_round_that_explained_its_validation_samples_best() -> None:
    """A zero costs log(1 + e^odds), six of them six times as much. Of two equal rounds the first
    counts."""
    rows = np.arange(12)
    federation = Federation(
        "bits", torch.cat([torch.ones(8, INPUTS), torch.zeros(4, INPUTS)]),
        torch.zeros(12, dtype=torch.int64), ("a", "b"), (Client("c0", rows[:8], rows[8:]),),
    )  # fmt: skip
    each, private = kept_of(federation, SEQUENCE)
    assert [bool(keeps) for keeps in each] == [True, True, False, True, False, False]
    assert private[BEST]["output.bias"].tolist() == [-1.0] * INPUTS
    nats = INPUTS * math.log(1 + math.exp(-1))
    assert float(private[BEST_LOSS]["nats"]) == pytest.approx(nats, rel=1e-6)


def test_a_client_without_validation_samples_keeps_its_newest_model() -> None:
    federation = of_values(0.0, 1.0, 0.0)
    each, private = kept_of(federation, SEQUENCE)
    assert [sorted(keeps) for keeps in each] == [[BEST]] * 6
    assert private[BEST]["output.bias"].tolist() == [2.0] * INPUTS


def test_a_round_that_explains_nothing_is_not_kept_over_one_that_did() -> None:
    federation = toy_federation()
    each, private = kept_of(federation, [0.5, math.nan])
    assert each[1] == {}
    assert private[BEST]["output.bias"].tolist() == [0.5] * INPUTS


@pytest.mark.parametrize(
    ("base", "says"),
    [
        ("fedbabu", "base = 'fedbabu' is made for classifiers"),
        ({"name": "fedrep"}, "base = 'fedrep' is made for classifiers"),
        *(
            (base, f"base = '{base}' brings a loss, a model or stages of its own")
            for base in ("fedrod", "per-fedavg", "vae", "feddisk", "latent-weights")
        ),
    ],
)
def test_a_method_that_trains_something_else_trains_no_density(base: Any, says: str) -> None:
    with pytest.raises(ConfigError) as raised:
        find("made").recipe(base=base)
    assert str(raised.value).startswith(says)
