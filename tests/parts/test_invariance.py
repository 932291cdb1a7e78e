"""Losses over environments against plain loops, numpy, and what they come down to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from helpers import assert_close, toy_federation, toy_model
from scipy.spatial.distance import cdist
from scipy.special import softmax
from torch import Tensor
from torch.nn import functional as F

from fedskew.data.federation import Federation
from fedskew.engine.graph import TracedStep, for_each_client
from fedskew.engine.torch_private import leaves
from fedskew.errors import ConfigError
from fedskew.federate.holdings import roster_of
from fedskew.parts.alignment import Coral, Mmd, gaussian_kernels
from fedskew.parts.invariance import (
    Annealed,
    EnvironmentErm,
    IbErm,
    IbIrm,
    Irm,
    Vrex,
    squared_slopes,
)
from fedskew.parts.objective import Batch, Bound
from fedskew.types import Tensors

PLACES, FEATURES, CLASSES = 6, 6, 3
MODULE = toy_model().double()
TRAINED = {name: p.detach() for name, p in MODULE.named_parameters()}

PRESENCE = {
    "three": [6, 6, 6],
    "short": [6, 5, 1],
    "absent": [6, 0, 6],
    "one": [0, 5, 0],
    "one of one": [5],
}
"""By name, how many of an environment's places hold real samples."""


def batch_of(counts: list[int], weighted: bool = True, seed: int = 0, **changes: Any) -> Batch:
    """Environments whose samples differ; padding is where it does most harm, far away."""
    generator = torch.Generator().manual_seed(seed)
    total = len(counts) * PLACES
    mask = torch.cat([(torch.arange(PLACES) < count).double() for count in counts])
    x = torch.randn(total, FEATURES, generator=generator, dtype=torch.float64)
    x = x + torch.arange(total)[:, None] // PLACES * 0.3
    weight = torch.rand(total, generator=generator, dtype=torch.float64) + 0.5
    return Batch(
        x=torch.where(mask[:, None] > 0, x, 50.0 * x),
        y=torch.randint(CLASSES, (total,), generator=generator),
        mask=mask,
        weight=weight * mask if weighted else mask,
        step=torch.tensor(7.0),
        environments=len(counts),
        **changes,
    )


Part = tuple[Tensor, Tensor, Tensor, Tensor]


def parts_of(batch: Batch, parameters: Tensors) -> list[Part]:
    """Of each environment that is there: features, logits, labels and weights of real samples."""
    found = []
    for e in range(batch.environments):
        own = slice(e * PLACES, (e + 1) * PLACES)
        real = batch.mask[own] > 0
        if real.any():
            x = batch.x[own][real]
            hidden = x @ parameters["body.0.weight"].T + parameters["body.0.bias"]
            features = torch.tanh(hidden)
            logits = features @ parameters["head.weight"].T + parameters["head.bias"]
            found.append((features, logits, batch.y[own][real], batch.weight[own][real]))
    return found


def risk(logits: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    return (F.cross_entropy(logits, y, reduction="none") * weight).mean()


def mean(values: list[Tensor]) -> Tensor:
    return torch.stack(values).mean()


def mean_risk(parts: list[Part]) -> Tensor:
    return mean([risk(*part[1:]) for part in parts])


def dummy_scale(parts: list[Part]) -> Tensor:
    """The penalty of IRM by autograd through a factor on the logits."""
    penalties = []
    for _, logits, y, weight in parts:
        slopes = []
        for half in (slice(0, None, 2), slice(1, None, 2)):
            scale = torch.ones((), dtype=torch.float64, requires_grad=True)
            if len(logits[half]) == 0:
                slopes.append(scale.detach() * 0)
                continue
            loss = risk(scale * logits[half], y[half], weight[half])
            slopes += torch.autograd.grad(loss, scale, create_graph=True)
        penalties.append(slopes[0] * slopes[1])
    return mean(penalties)


def spread(parts: list[Part]) -> Tensor:
    return mean([p[0].var(dim=0).mean() if len(p[0]) > 1 else torch.zeros(()) for p in parts])


def over_pairs(parts: list[Part], distance: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    found = [distance(a[0], b[0]) for a, b in combinations(parts, 2)]
    return mean(found) if found else torch.zeros(())


def kernel(a: Tensor, b: Tensor) -> Tensor:
    squares = (a[:, None] - b[None, :]).square().sum(dim=2)
    return sum((torch.exp(-(10.0**i) * squares) for i in range(-3, 4)), torch.zeros(())).mean()


def discrepancy(a: Tensor, b: Tensor) -> Tensor:
    return kernel(a, a) + kernel(b, b) - 2 * kernel(a, b)


def covariance(a: Tensor) -> Tensor:
    centred = a - a.mean(dim=0)
    return centred.T @ centred / max(len(a) - 1, 1)


def moments(a: Tensor, b: Tensor) -> Tensor:
    apart = (a.mean(dim=0) - b.mean(dim=0)).square().mean()
    return apart + (covariance(a) - covariance(b)).square().mean()


def varying_risks(parts: list[Part]) -> Tensor:
    return torch.stack([risk(*part[1:]) for part in parts]).var(correction=0)


LAM, OTHER = Annealed(3.0, 3.0, 0), Annealed(0.75, 0.75, 0)
DEFINED: dict[str, tuple[EnvironmentErm, Callable[[list[Part]], Tensor]]] = {
    "irm": (Irm(LAM), lambda parts: mean_risk(parts) + 3.0 * dummy_scale(parts)),
    "vrex": (Vrex(LAM), lambda parts: mean_risk(parts) + 3.0 * varying_risks(parts)),
    "ib-erm": (IbErm(LAM), lambda parts: mean_risk(parts) + 3.0 * spread(parts)),
    "ib-irm": (
        IbIrm(LAM, OTHER),
        lambda parts: mean_risk(parts) + 3.0 * dummy_scale(parts) + 0.75 * spread(parts),
    ),
    "mmd": (Mmd(0.75), lambda parts: mean_risk(parts) + 0.75 * over_pairs(parts, discrepancy)),
    "coral": (Coral(0.75), lambda parts: mean_risk(parts) + 0.75 * over_pairs(parts, moments)),
}
"""By name, an objective and its definition, written for the samples that are there."""

every_objective = pytest.mark.parametrize("name", DEFINED)
every_presence = pytest.mark.parametrize("presence", PRESENCE)


def followed(objective: EnvironmentErm, batch: Batch) -> tuple[Tensors, Tensor]:
    gradients, loss, buffers = objective.gradient(MODULE, TRAINED, {}, batch, {})
    assert buffers == {}
    return gradients, loss


@every_presence
@every_objective
def test_loss_and_gradient_are_those_of_the_definition(name: str, presence: str) -> None:
    objective, define = DEFINED[name]
    batch = batch_of(PRESENCE[presence])
    parameters = {n: t.clone().requires_grad_() for n, t in TRAINED.items()}
    expected = define(parts_of(batch, parameters))
    slopes = torch.autograd.grad(expected, list(parameters.values()))

    gradients, loss = followed(objective, batch)
    torch.testing.assert_close(loss, expected.detach(), rtol=1e-9, atol=1e-12)
    assert_close(gradients, dict(zip(parameters, slopes, strict=True)), 1e-9)


def features_of(batch: Batch) -> list[Any]:
    return [part[0].numpy() for part in parts_of(batch, TRAINED)]


def penalty(objective: EnvironmentErm, batch: Batch) -> float:
    """What an objective with a multiplier of 1 adds to the risk."""
    return float(followed(objective, batch)[1]) - float(mean_risk(parts_of(batch, TRAINED)))


@every_presence
def test_the_bottleneck_is_numpys_unbiased_variance(presence: str) -> None:
    batch = batch_of(PRESENCE[presence])
    found = [f.var(axis=0, ddof=1).mean() if len(f) > 1 else 0.0 for f in features_of(batch)]

    assert penalty(IbErm(Annealed(1, 1, 0)), batch) == pytest.approx(np.mean(found), rel=1e-9)


def test_discrepancy_is_a_v_statistic_of_seven_kernels() -> None:
    batch = batch_of([6, 4, 5])
    found = []
    for a, b in combinations(features_of(batch), 2):
        kernels = [
            sum(np.exp(-(10.0**i) * cdist(left, right, "sqeuclidean")).mean() for i in range(-3, 4))
            for left, right in ((a, a), (b, b), (a, b))
        ]
        found.append(kernels[0] + kernels[1] - 2 * kernels[2])

    assert penalty(Mmd(), batch) == pytest.approx(np.mean(found), rel=1e-9)


def test_coral_compares_means_and_numpys_covariances() -> None:
    batch = batch_of([6, 4, 5])
    found = []
    for a, b in combinations(features_of(batch), 2):
        between = np.cov(a, rowvar=False) - np.cov(b, rowvar=False)
        found.append(np.mean((a.mean(axis=0) - b.mean(axis=0)) ** 2) + np.mean(between**2))

    assert penalty(Coral(), batch) == pytest.approx(np.mean(found), rel=1e-9)


@pytest.mark.parametrize("count", [6, 5, 2])
def test_slopes_of_logits_have_the_closed_form(count: int) -> None:
    """g = mean (Σ p·z - z_y), dg/dz_c = (p_c·(1 + z_c - Σ p·z) - [c = y])/n, and the penalty's
    gradient is g₂·dg₁ + g₁·dg₂."""
    batch = batch_of([count], weighted=False)
    generator = torch.Generator().manual_seed(3)
    logits = 4 * torch.randn(PLACES, CLASSES, generator=generator, dtype=torch.float64)
    z, y = logits.numpy(), batch.y.numpy()
    p, one_hot = softmax(z, axis=1), np.eye(CLASSES)[y]
    means = (p * z).sum(axis=1)
    slopes, changes = [], []
    for start in (0, 1):
        half = np.arange(start, count, 2)
        change = np.zeros_like(z)
        change[half] = (p * (1 + z - means[:, None]) - one_hot)[half] / len(half)
        changes.append(change)
        slopes.append((means - z[np.arange(PLACES), y])[half].mean())

    logits.requires_grad_()
    found = squared_slopes(logits, batch)
    (gradient,) = torch.autograd.grad(found.sum(), logits)
    np.testing.assert_allclose(found.detach(), [slopes[0] * slopes[1]], rtol=1e-10)
    expected = slopes[1] * changes[0] + slopes[0] * changes[1]
    np.testing.assert_allclose(gradient, expected, rtol=1e-10, atol=1e-12)


def test_a_half_without_samples_has_no_slope() -> None:
    batch = batch_of([6, 1, 2])
    slopes = squared_slopes(parts_of(batch_of([6, 6, 6]), TRAINED)[0][1].repeat(3, 1), batch)

    assert [float(slope) != 0.0 for slope in slopes] == [True, False, True]


OFF = Annealed(0.0, 0.0, 0)
WITHOUT = [Irm(OFF), Vrex(OFF), IbErm(OFF), IbIrm(OFF, OFF), Mmd(0.0), Coral(0.0)]


@pytest.mark.parametrize("objective", WITHOUT, ids=lambda o: type(o).__name__)
@pytest.mark.parametrize("presence", ["three", "absent", "one"])
def test_without_its_penalty_an_objective_is_the_mean_over_all_samples(
    objective: EnvironmentErm, presence: str
) -> None:
    """Batches of all environments are of one size, so means of means are means."""
    batch = batch_of(PRESENCE[presence])
    gradients, loss = followed(objective, batch)
    expected, risk = followed(EnvironmentErm(), batch)

    torch.testing.assert_close(loss, risk, rtol=1e-12, atol=0)
    assert_close(gradients, expected, 1e-12)


def test_the_plain_objective_is_the_weighted_cross_entropy_of_everything() -> None:
    batch = batch_of([6, 3, 0])
    parts = parts_of(batch, TRAINED)
    logits, y, weight = (torch.cat([part[i] for part in parts]) for i in (1, 2, 3))

    torch.testing.assert_close(followed(EnvironmentErm(), batch)[1], risk(logits, y, weight))


@pytest.mark.parametrize("objective", [Vrex(LAM), Mmd(5.0), Coral(5.0)])
@pytest.mark.parametrize("presence", ["one", "one of one"])
def test_with_one_environment_there_is_nothing_to_compare(
    objective: EnvironmentErm, presence: str
) -> None:
    batch = batch_of(PRESENCE[presence])
    gradients, loss = followed(objective, batch)
    expected, risk = followed(EnvironmentErm(), batch)

    torch.testing.assert_close(loss, risk, rtol=1e-12, atol=0)
    assert_close(gradients, expected, 1e-12)


def test_with_one_environment_irm_pulls_the_scale_of_logits_to_its_best() -> None:
    """Two halves alike make the square of the slope: logits too large (wrong more often than they
    claim) shall shrink, and at the best scale there is nothing left to gain."""
    y = torch.tensor([0, 0, 0, 0, 0, 0, 1, 1])
    batch = Batch(torch.zeros(8, 1), y, torch.ones(8), torch.ones(8))
    direction = torch.tensor([1.0, -1.0]).double().repeat(8, 1)

    def slope(scale: float) -> float:
        logits = (scale * direction).requires_grad_()
        (gradient,) = torch.autograd.grad(squared_slopes(logits, batch).sum(), logits)
        return float((gradient * direction).sum())

    # The first six are classified right and the last two wrong: log(6/2) is 2·scale at its best.
    best = np.log(3.0) / 2
    assert slope(2 * best) > 0.1
    assert slope(best) == pytest.approx(0.0, abs=1e-6)


def test_with_one_environment_the_bottleneck_still_squeezes() -> None:
    batch = batch_of(PRESENCE["one"])
    (features,) = features_of(batch)

    added = penalty(IbErm(Annealed(1, 1, 0)), batch)
    assert added == pytest.approx(features.var(axis=0, ddof=1).mean(), rel=1e-9)


@every_objective
def test_what_padding_holds_does_not_matter(name: str) -> None:
    batch = batch_of([6, 0, 3])
    pad = batch.mask == 0
    other = replace(
        batch, x=torch.where(pad[:, None], -3.0, batch.x), y=torch.where(pad, 2 - batch.y, batch.y)
    )
    objective, _ = DEFINED[name]

    assert_close(followed(objective, batch)[0], followed(objective, other)[0], 1e-12)


@every_objective
@pytest.mark.parametrize("counts", [[0, 0, 0], [1, 0, 0], [1, 1, 1], [2, 0, 1], [0]])
def test_gradients_are_finite_whoever_is_missing(name: str, counts: list[int]) -> None:
    gradients, loss = followed(DEFINED[name][0], batch_of(counts))

    assert bool(torch.isfinite(loss))
    assert all(bool(torch.isfinite(gradient).all()) for gradient in gradients.values())


@every_objective
def test_samples_that_are_all_the_same_have_finite_gradients(name: str) -> None:
    batch = batch_of([6, 6, 6])
    gradients, _ = followed(DEFINED[name][0], replace(batch, x=torch.ones_like(batch.x)))

    assert all(bool(torch.isfinite(gradient).all()) for gradient in gradients.values())


@every_objective
def test_clients_in_a_traced_stack_train_as_each_would_alone(name: str) -> None:
    """With other environments missing, and on both sides of a multiplier's switch."""
    objective = DEFINED[name][0]
    if isinstance(objective, IbIrm):
        objective = IbIrm(Annealed(1.0, 100.0, 5), Annealed(0.0, 2.0, 9), rescale=True)
    batches = [
        replace(batch_of(counts, seed=seed), step=torch.tensor(float(step)))
        for seed, (counts, step) in enumerate(
            (([6, 6, 6], 4), ([6, 0, 2], 5), ([0, 0, 6], 8), ([0, 5, 6], 9))
        )
    ]
    names = ("x", "y", "mask", "weight", "step")
    stacked = {n: torch.stack([getattr(batch, n) for batch in batches]) for n in names}
    trained = {
        n: torch.stack([t + 0.1 * k for k in range(len(batches))]) for n, t in TRAINED.items()
    }

    def step(trained: Tensors, batch: dict[str, Any]) -> list[Tensor]:
        built = Batch(**batch, environments=3)
        gradients, loss, _ = objective.gradient(MODULE, trained, {}, built, {})
        return [*(gradients[n] for n in trained), loss]

    run, _ = TracedStep(for_each_client(step)).ready("one shape", lambda: (trained, dict(stacked)))
    with torch.no_grad():
        found = run(*leaves(trained, stacked))
    for k, batch in enumerate(batches):
        alone, loss, _ = objective.gradient(
            MODULE, {n: t[k] for n, t in trained.items()}, {}, batch, {}
        )
        for ours, theirs in zip(found, [*(alone[n] for n in trained), loss], strict=True):
            torch.testing.assert_close(ours[k], theirs, rtol=1e-10, atol=1e-12)


def test_kernels_of_features_far_from_the_origin_keep_their_digits() -> None:
    """Squares of 1000 leave a float32 no digits for distances of about 1."""
    generator = torch.Generator().manual_seed(0)
    near = torch.randn(12, 4, generator=generator)
    far = near + 1000.0
    expected = gaussian_kernels((far - 1000.0).double())

    torch.testing.assert_close(gaussian_kernels(far).double(), expected, rtol=1e-4, atol=1e-4)
    assert gaussian_kernels(far).diagonal().tolist() == [7.0] * 12


def test_a_multiplier_switches_after_so_many_steps() -> None:
    lam = Annealed(1.0, 100.0, 500)
    steps = torch.tensor([0.0, 499.0, 500.0, 501.0])

    assert lam.at(steps).tolist() == [1.0, 1.0, 100.0, 100.0]
    assert float(Annealed(2, 2, 500).at(None)) == 2.0


def test_steps_are_counted_only_where_a_multiplier_changes() -> None:
    assert Irm().counts_steps
    assert Vrex().counts_steps
    assert IbErm().counts_steps
    assert not Irm(LAM).counts_steps
    assert not IbIrm(LAM, OFF).counts_steps
    assert IbIrm(LAM, Annealed(0.0, 1.0, 3)).counts_steps
    assert not Mmd().counts_steps


@pytest.mark.parametrize("step", [0.0, 10.0])
def test_rescaling_divides_by_the_largest_multiplier_of_the_moment(step: float) -> None:
    """(λ_irm, λ_ib) is (0.5, 0) at first, where nothing is above 1, and (4, 20) later."""
    lams = Annealed(0.5, 4.0, 5), Annealed(0.0, 20.0, 5)
    batch = replace(batch_of([6, 6, 6]), step=torch.tensor(step))
    whole, loss = followed(IbIrm(*lams), batch)
    gradients, divided = followed(IbIrm(*lams, rescale=True), batch)
    largest = 20.0 if step else 1.0

    torch.testing.assert_close(divided, loss / largest)
    assert_close(gradients, {n: g / largest for n, g in whole.items()}, 1e-12)


def test_scores_are_those_of_a_classifier() -> None:
    batch = batch_of([6])
    with torch.no_grad():
        found = Irm().scores(Bound(MODULE, TRAINED), batch)

    assert found["accuracy"].tolist() == (MODULE(batch.x).argmax(dim=1) == batch.y).tolist()


@pytest.mark.parametrize("objective", [Irm(), IbIrm(), Irm(by_environment=False)])
def test_batches_without_two_halves_are_refused(objective: Irm | IbIrm) -> None:
    objective.check(MODULE, roster_of(toy_federation()), 8)
    with pytest.raises(ConfigError, match=r"train\.batch_size must be even, not 9: .* two halves"):
        objective.check(MODULE, roster_of(toy_federation()), 9)


@pytest.mark.parametrize("values", [(-1.0, 1.0, 5), (1.0, float("nan"), 5), (1.0, 1.0, -5)])
def test_multipliers_below_zero_are_refused(values: tuple[float, float, int]) -> None:
    with pytest.raises(ConfigError, match="must be >= 0"):
        Annealed(*values)


@pytest.mark.parametrize("gamma", [-1.0, float("inf"), float("nan")])
def test_a_gamma_that_is_no_weight_is_refused(gamma: float) -> None:
    with pytest.raises(ConfigError, match="gamma must not be negative"):
        Coral(gamma)


def with_environments() -> Federation:
    """c0 and c2 have one, each another; c1 and c3 have two and three."""
    federation = toy_federation()
    environment = torch.zeros(len(federation.y), dtype=torch.int64)
    for k, count in enumerate((1, 2, 1, 3)):
        rows = torch.from_numpy(federation.clients[k].train)
        environment[rows] = torch.arange(len(rows)) % count + (k == 2)
    return federation.with_data(environment=environment)


@pytest.mark.parametrize(
    ("objective", "says"),
    [
        (Irm(), "shrinks logits"),
        (Vrex(), "vrex is empirical risk"),
        (IbErm(), "penalty on the variance of features"),
        (IbIrm(), "shrinks logits and the variance of features"),
        (Mmd(), "mmd is empirical risk"),
        (Coral(), "coral is empirical risk"),
    ],
)
def test_a_run_says_for_whom_there_is_nothing_to_compare(
    objective: EnvironmentErm, says: str
) -> None:
    (some,) = objective.remarks(roster_of(with_environments()))
    assert some.startswith("2 of 4 clients have one environment only: for them ")
    assert says in some
    (everybody,) = objective.remarks(roster_of(toy_federation().with_data(environment=None)))
    assert everybody == some.replace("2 of 4", "4 of 4")
    assert replace(objective, by_environment=False).remarks(roster_of(with_environments())) == (
        everybody,
    )


def test_nothing_is_said_where_everybody_has_several_or_nothing_compares() -> None:
    several = torch.arange(len(toy_federation().y)) % 2

    assert Irm().remarks(roster_of(toy_federation().with_data(environment=several))) == ()
    assert EnvironmentErm().remarks(roster_of(toy_federation())) == ()
