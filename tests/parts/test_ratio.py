"""Sample weights against closed forms: with MADEs that are the true densities, ratios are known."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from helpers import copied, just_trained
from numpy.typing import NDArray
from scipy.optimize import brentq
from torch import Tensor

from fedskew.data.federation import Client, Federation
from fedskew.errors import ConfigError
from fedskew.federate.holdings import roster_of
from fedskew.models import seeded
from fedskew.models.made import BernoulliMade, GaussianMade, Made
from fedskew.parts.density import BEST
from fedskew.parts.objective import Bound
from fedskew.parts.ratio import (
    ESTIMATORS,
    Estimator,
    Evidence,
    likelihood,
    sampled,
    tempered,
)
from fedskew.parts.sample_weights import (
    ALL_EQUAL,
    EVERYBODY,
    FINE,
    NOT_FINITE,
    TOO_FEW,
    KeepDensity,
    SampleWeights,
    clipped_weights,
    effective_size,
)
from fedskew.types import Groups

Odds = NDArray[np.float64]
MODELS: list[Estimator] = ["likelihood", "sampled", "cross-fitted", "literal"]
by_models = pytest.mark.parametrize("estimator", MODELS)


def independent_bits(odds: Odds) -> Bound:
    """A MADE that is a product of Bernoulli laws: no weights, and log odds as biases."""
    module = BernoulliMade((len(odds),), (4,), False, 1, binarise=False).eval()
    tensors = {n: torch.zeros_like(t) for n, t in copied(module.state_dict()).items()}
    tensors["output.bias"] = torch.from_numpy(odds).float()
    return Bound(module, tensors)


@dataclass(frozen=True)
class Laws:
    """Independent bits: log odds of everybody's and of the client's own."""

    everybody: Odds
    own: Odds

    def drawn(self, count: int, seed: int) -> Tensor:
        chances = 1 / (1 + np.exp(-self.own))
        uniform = np.random.default_rng(seed).random((count, len(chances)))
        return torch.from_numpy((uniform < chances).astype(np.float32))

    def log_ratio(self, x: Tensor) -> Odds:
        """Σ x·(o_p - o_q) - log(1 + e^o_p) + log(1 + e^o_q)."""
        grown = np.log1p(np.exp(self.everybody)) - np.log1p(np.exp(self.own))
        return np.asarray(x.double().numpy() @ (self.everybody - self.own) - grown.sum())

    def evidence(self, train: int, validation: int = 100, seed: int = 0) -> Evidence:
        return Evidence(
            self.drawn(train, seed), self.drawn(validation, seed + 1),
            independent_bits(self.everybody), independent_bits(self.own),
            np.random.default_rng(seed),
        )  # fmt: skip


FIVE = Laws(np.array([0.2, -0.5, 0.0, 0.4, 1.0]), np.array([1.2, -1.3, 0.6, -0.4, 0.3]))


def without(x: Tensor, log_ratio: Odds, positive: bool) -> Tensor:
    """Samples in which the mean ratio is above 1 or is not: the commoner end left out."""
    order = np.argsort(log_ratio)
    kept = order[len(x) // 2 :] if positive else order[: len(x) // 2]
    return x[torch.from_numpy(np.ascontiguousarray(kept))]


def test_the_likelihood_ratio_of_true_densities_is_the_truth() -> None:
    """Validation samples whose ratios average less than 1 leave it as it is."""
    evidence = FIVE.evidence(300)
    low = without(evidence.validation, FIVE.log_ratio(evidence.validation), positive=False)
    found = likelihood(replace(evidence, validation=low))
    assert np.exp(FIVE.log_ratio(low)).mean() < 1
    assert found.power == 1.0
    np.testing.assert_allclose(found.log_weights.numpy(), FIVE.log_ratio(evidence.x), atol=1e-5)


def test_ratios_that_average_more_than_1_are_flattened_by_the_power_that_makes_it_1() -> None:
    """Laws a third further apart than the samples' own give ratios that are too large."""
    wrong = Laws(FIVE.everybody, (4 * FIVE.own - FIVE.everybody) / 3)
    evidence = replace(FIVE.evidence(300, 200), own=independent_bits(wrong.own))
    logs = wrong.log_ratio(evidence.validation)
    assert logs.mean() < 0
    assert np.exp(logs).mean() > 1
    power = brentq(lambda t: np.exp(t * logs).mean() - 1, 0.05, 1.0, xtol=1e-12)
    found = likelihood(evidence)
    assert 0.2 < power < 0.95
    assert found.power == pytest.approx(power, abs=1e-5)
    expected = power * wrong.log_ratio(evidence.x)
    np.testing.assert_allclose(found.log_weights.numpy(), expected, atol=1e-4)


@pytest.mark.parametrize("seed", range(5))
def test_the_power_is_the_root_found_by_another_solver(seed: int) -> None:
    logs = np.random.default_rng(seed).normal(-0.5, 2.0, 40)
    power = brentq(lambda t: np.exp(t * logs).mean() - 1, 1e-3, 1.0, xtol=1e-14)
    assert tempered(torch.from_numpy(logs)) == pytest.approx(power, abs=1e-8)


def test_ratios_too_large_to_be_added_up_are_tempered_all_the_same() -> None:
    """With half of them e^2000 and half e^-2001, ½·e^(2000t) is about 1 at t = log 2 / 2000."""
    power = tempered(torch.tensor([2000.0, -2001.0], dtype=torch.float64))
    assert 0 < power < math.log(2) / 2000


@pytest.mark.parametrize(
    ("ratios", "power"),
    [([0.5, 1.5], 1.0), ([0.2, 0.9], 1.0), ([0.999], 1.0), ([1.5, 1.0], 0.0), ([1.0, 1.0], 0.0),
     ([2.0, 0.51], 0.0)],
)  # fmt: skip
def test_powers_at_either_end(ratios: list[float], power: float) -> None:
    """1 where ratios average 1 or less, 0 where their logarithms are not below 0 on average."""
    assert tempered(torch.tensor(ratios, dtype=torch.float64).log()) == pytest.approx(power)


def test_a_client_whose_own_model_explains_it_worse_has_no_weights() -> None:
    evidence = FIVE.evidence(200)
    swapped = replace(evidence, own=evidence.everybody, everybody=evidence.own)
    found = likelihood(swapped)
    assert found.power == 0.0
    weights, trouble = clipped_weights(found.log_weights, 19.0)
    assert trouble == ALL_EQUAL
    assert weights.tolist() == [1.0] * 200


def test_draws_from_everybodys_model_tell_what_the_truth_is() -> None:
    evidence = FIVE.evidence(3000)
    found = sampled(evidence).log_weights.numpy()
    true = FIVE.log_ratio(evidence.x)
    assert np.corrcoef(found, true)[0, 1] > 0.95
    assert np.polyfit(found, true, 1)[0] == pytest.approx(1.0, abs=0.15)


def test_draws_from_a_gaussian_model_tell_what_the_truth_is() -> None:
    """Own samples are N(1, 1) in both of two features, everybody's N(0, 1): log p/q = 1 - Σx."""
    module = GaussianMade((2,), (4,), False, 1, components=1).eval()
    everybody = {n: torch.zeros_like(t) for n, t in copied(module.state_dict()).items()}
    x = torch.randn(2000, 2, generator=torch.Generator().manual_seed(3)) + 1.0
    bound = Bound(module, everybody)
    found = sampled(Evidence(x, x[:0], bound, bound, np.random.default_rng(0)))
    assert np.corrcoef(found.log_weights.numpy(), (1 - x.sum(dim=1)).numpy())[0, 1] > 0.95


def federated(x: Tensor, validation: Tensor) -> Federation:
    """One client with these samples."""
    both = torch.cat([x, validation])
    rows = np.arange(len(both))
    client = Client("c0", rows[: len(x)], rows[len(x) :])
    y = torch.zeros(len(both), dtype=torch.int64)
    return Federation("bits", both, y, ("a", "b"), (client,))


def weighed(
    estimator: Estimator, evidence: Evidence, clip: float = 19.0, truth: Tensor | None = None
) -> Groups:
    """What a client keeps at the end of the last density stage."""
    report = SampleWeights(estimator, clip)
    federation = federated(evidence.x, evidence.validation)
    private = {EVERYBODY: evidence.everybody.tensors, BEST: evidence.own.tensors}
    finished = just_trained(
        evidence.own.module, federation, private=private, log_ratio=truth, rng=evidence.rng
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        reported = report.report(finished)
    assert reported.sends == {}
    assert sorted(reported.keeps) == ["sample_weight", "weighing"]
    return reported.keeps


def outcome(keeps: Groups) -> tuple[Tensor, int]:
    """The weights, which always are finite, above 0 and 1 on average, and what went wrong."""
    weights = keeps["sample_weight"]["w"]
    assert weights.dtype == torch.float32
    assert torch.isfinite(weights).all()
    assert float(weights.min()) > 0
    assert float(weights.double().mean()) == pytest.approx(1.0, abs=1e-5)
    assert 1 <= effective_size(weights) <= len(weights) + 1e-6
    return weights, int(keeps["weighing"]["trouble"])


def frequencies(x: Tensor) -> Odds:
    """The log odds of most likelihood: those of the samples themselves."""
    chance = x.double().mean(dim=0).numpy()
    return np.asarray(np.log(chance / (1 - chance)))


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("estimator", "least"), [("likelihood", 0.95), ("sampled", 0.9)])
def test_weights_of_identical_clients_are_1_but_for_chance(
    estimator: Estimator, least: float, seed: int
) -> None:
    """Four clients draw 500 samples from one law; own and everybody's models are fitted to them."""
    everybody = torch.cat([FIVE.drawn(500, number) for number in range(4)])
    x = everybody[500 * seed :][:500]
    evidence = Evidence(
        x, FIVE.drawn(100, 10 + seed), independent_bits(frequencies(everybody)),
        independent_bits(frequencies(x)), np.random.default_rng(seed),
    )  # fmt: skip
    weights, _ = outcome(weighed(estimator, evidence))
    assert effective_size(weights) / 500 > least


@by_models
def test_weights_are_1_where_the_clients_model_is_everybodys(estimator: Estimator) -> None:
    """Samples are the model's own, and what it says differs from sample to sample."""
    module = seeded("made", (6,), 2, seed=1, hidden=[12])
    assert isinstance(module, Made)
    module.load_state_dict({n: 4 * t for n, t in module.state_dict().items()})
    bound = Bound(module.eval(), copied(module.state_dict()))
    x = module.sample(300, np.random.default_rng(1))
    evidence = Evidence(x[:200], x[200:], bound, bound, np.random.default_rng(2))
    weights, _ = outcome(weighed(estimator, evidence))
    assert effective_size(weights) / 200 > 0.9
    assert float(weights.max() / weights.min()) < 3


@pytest.mark.parametrize("estimator", ["sampled", "cross-fitted"])
def test_a_classifier_that_tells_all_samples_apart_leaves_weights(estimator: Estimator) -> None:
    """No draw of everybody's looks like any of the client's samples."""
    apart = Laws(np.full(30, 12.0), np.r_[np.full(29, -12.0), 0.3])
    weights, trouble = outcome(weighed(estimator, apart.evidence(120)))
    assert trouble in (FINE, ALL_EQUAL)
    assert effective_size(weights) > 12


@by_models
def test_an_outlier_is_clipped(estimator: Estimator) -> None:
    """One sample of 60 is everybody's and not the client's at all."""
    far = Laws(np.full(20, 3.0), np.full(20, -3.0))
    evidence = far.evidence(60)
    evidence.x[7] = 1.0
    weights, trouble = outcome(weighed(estimator, evidence, clip=5.0))
    assert float(weights.max() / weights.min()) < 25 * (1 + 1e-5)
    if estimator in ("likelihood", "sampled"):
        assert trouble == FINE
        assert int(weights.argmax()) == 7


def broken(model: Bound) -> Bound:
    return Bound(model.module, {n: torch.full_like(t, torch.nan) for n, t in model.tensors.items()})


@by_models
@pytest.mark.parametrize("whose", ["everybody", "own"])
def test_a_density_that_is_not_finite_gives_weights_of_1_and_says_so(
    estimator: Estimator, whose: str
) -> None:
    evidence = FIVE.evidence(40)
    changed: dict[str, Any] = {whose: broken(getattr(evidence, whose))}
    weights, trouble = outcome(weighed(estimator, replace(evidence, **changed)))
    if (estimator, whose) == ("sampled", "own"):
        # It never asks the client's own model.
        assert trouble == FINE
    else:
        assert trouble == NOT_FINITE
        assert weights.tolist() == [1.0] * 40


@pytest.mark.parametrize(
    ("estimator", "train", "validation"),
    [("likelihood", 2, 0), ("sampled", 2, 3), ("cross-fitted", 2, 3), ("literal", 1, 3)],
)
def test_too_few_samples_give_weights_of_1_and_say_so(
    estimator: Estimator, train: int, validation: int
) -> None:
    weights, trouble = outcome(weighed(estimator, FIVE.evidence(train, validation)))
    assert trouble == TOO_FEW
    assert weights.tolist() == [1.0] * train


@by_models
def test_pixels_that_never_change_do_no_harm(estimator: Estimator) -> None:
    """Training drives their log odds to where nobody can follow.

    These models say the same of every sample, so classifiers of what they say may find nothing.
    """
    still = Laws(np.r_[FIVE.everybody, -80.0, 80.0], np.r_[FIVE.own, -300.0, 300.0])
    evidence = still.evidence(60)
    assert evidence.x[:, 5:].tolist() == [[0.0, 1.0]] * 60
    _, trouble = outcome(weighed(estimator, evidence))
    assert trouble == FINE or (estimator in ("cross-fitted", "literal") and trouble == ALL_EQUAL)


def test_the_truth_is_taken_as_it_is_and_equal_weights_are_told_as_such() -> None:
    evidence = FIVE.evidence(50)
    true = FIVE.log_ratio(evidence.x)
    weights, trouble = outcome(weighed("oracle", evidence, 1e6, torch.from_numpy(true).float()))
    expected = np.exp(true) / np.exp(true).mean()
    assert trouble == FINE
    np.testing.assert_allclose(weights.numpy(), expected, rtol=1e-5)
    weights, trouble = outcome(weighed("equal", evidence))
    assert (weights.tolist(), trouble) == ([1.0] * 50, ALL_EQUAL)


def test_a_client_that_never_trained_a_model_of_its_own_has_everybodys() -> None:
    evidence = FIVE.evidence(40)
    federation = federated(evidence.x, evidence.validation)
    private = {EVERYBODY: evidence.everybody.tensors}
    finished = just_trained(evidence.own.module, federation, private=private)
    assert outcome(SampleWeights("likelihood").report(finished).keeps)[1] == ALL_EQUAL


def test_bits_of_a_sample_are_told_and_the_power_too() -> None:
    """Σ -log2 of the chance of each validation bit, on average."""
    evidence = FIVE.evidence(40)
    told = weighed("likelihood", evidence)["weighing"]
    signs = 2 * evidence.validation.double().numpy() - 1
    bits = np.log2(1 + np.exp(-signs * FIVE.own)).sum(axis=1).mean()
    assert float(told["entropy"]) == pytest.approx(bits, rel=1e-5)
    assert float(told["power"]) == pytest.approx(likelihood(evidence).power)
    assert all(value.dtype == torch.float64 and value.ndim == 0 for value in told.values())
    assert math.isnan(float(weighed("equal", evidence)["weighing"]["power"]))
    nobody = replace(evidence, validation=evidence.validation[:0])
    assert math.isnan(float(weighed("equal", nobody)["weighing"]["entropy"]))


def test_weights_are_clipped_before_their_mean_is_1() -> None:
    """With clip 4 the weights 1/8, 1, 2, 100 become 1/4, 1, 2, 4, of mean 29/16."""
    weights, trouble = clipped_weights(torch.tensor([1 / 8, 1.0, 2.0, 100.0]).log(), 4.0)
    assert weights.tolist() == pytest.approx([4 / 29, 16 / 29, 32 / 29, 64 / 29])
    assert trouble == FINE


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_one_weight_that_is_no_number_spoils_all(bad: float) -> None:
    weights, trouble = clipped_weights(torch.tensor([0.0, bad, 1.0]), 19.0)
    assert (weights.tolist(), trouble) == ([1.0, 1.0, 1.0], NOT_FINITE)


def test_weights_beyond_the_clip_on_the_same_side_are_all_equal() -> None:
    weights, trouble = clipped_weights(torch.tensor([50.0, 90.0]), 19.0)
    assert (weights.tolist(), trouble) == ([1.0, 1.0], ALL_EQUAL)


@pytest.mark.parametrize("warm", [False, True])
def test_everybodys_model_is_kept_and_is_where_warm_clients_begin(warm: bool) -> None:
    module: Made = BernoulliMade((3,), (4,), False, 1, binarise=False)
    federation = federated(torch.ones(4, 3), torch.ones(2, 3))
    finished = just_trained(module, federation)
    reported = KeepDensity(warm).report(finished)
    assert reported.sends == {}
    assert sorted(reported.keeps) == [EVERYBODY, *(["model"] if warm else [])]
    for tensors in reported.keeps.values():
        assert all(torch.equal(tensors[n], t) for n, t in finished.trained.items())


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda: SampleWeights("exact"),  # type: ignore[arg-type]
            "estimator must be 'likelihood', 'sampled', 'cross-fitted', 'literal', 'oracle' or "
            "'equal', not 'exact'.",
        ),
        (lambda: SampleWeights("equal", 1.0), "clip must be a number above 1, not 1.0."),
        (lambda: SampleWeights("equal", math.nan), "clip must be a number above 1, not nan."),
        (lambda: SampleWeights("equal", math.inf), "clip must be a number above 1, not inf."),
        (
            lambda: SampleWeights("oracle").check(
                roster_of(federated(torch.ones(4, 3), torch.ones(2, 3)))
            ),
            "estimator 'oracle' needs data whose law is known, which bits is not.",
        ),
    ],
)
def test_what_cannot_be_is_refused(make: Callable[[], Any], says: str) -> None:
    with pytest.raises(ConfigError) as raised:
        make()
    assert str(raised.value) == says


def test_every_estimator_is_offered_by_its_name() -> None:
    assert list(ESTIMATORS) == [*MODELS, "oracle", "equal"]
