"""Synthetic clients: densities are scipy's, the strength is that asked for, labels agree."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import bernoulli, chi2, multivariate_normal
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier

from fedskew import make_config, make_federation
from fedskew.data.build import build
from fedskew.data.dataset import Dataset
from fedskew.data.datasets import DATASETS, load
from fedskew.data.federation import all_rows
from fedskew.errors import ConfigError

NAMES = ("gaussian-clients", "bernoulli-clients")
Array = np.ndarray[Any, Any]


def made(name: str, **options: Any) -> Dataset:
    return load(name, normalise="unit", **options)


def parts(data: Dataset) -> tuple[Array, Array, Array]:
    """x, owner and log densities as numpy arrays."""
    assert data.owner is not None
    assert data.log_densities is not None
    return data.x.double().numpy(), data.owner, data.log_densities.numpy()


def divergences(data: Dataset, shared: Array) -> Array:
    """Each owner's divergence from the shared law, estimated on the owner's own rows."""
    _, owner, logs = parts(data)
    return np.array([(logs[owner == k, k] - shared[owner == k]).mean() for k in np.unique(owner)])


@pytest.mark.parametrize("dimensions", [2, 7, 60])
@pytest.mark.parametrize("correlation", [0.0, 0.6])
def test_gaussian_densities_are_scipys(dimensions: int, correlation: float) -> None:
    data = made(
        "gaussian-clients", dimensions=dimensions, correlation=correlation, owners=3, size=4000,
        shift=2.0,
    )  # fmt: skip
    x, owner, logs = parts(data)
    lags = np.abs(np.subtract.outer(np.arange(dimensions), np.arange(dimensions)))
    covariance = correlation**lags
    inverse = np.linalg.inv(covariance)
    for k in range(3):
        # The means are hidden; the law is Gaussian, so log densities are quadratic in x and the
        # linear coefficients, found by least squares, are S^-1 mu.
        quadratic = np.einsum("nd,de,ne->n", x, inverse, x) / 2
        design = np.column_stack([x, np.ones(len(x))])
        found = np.linalg.lstsq(design, logs[:, k] + quadratic, rcond=None)[0]
        mean = covariance @ found[:-1]
        wanted = multivariate_normal(mean, covariance).logpdf(x)
        np.testing.assert_allclose(logs[:, k], wanted, rtol=1e-8, atol=1e-7)
        assert np.sqrt(mean @ inverse @ mean) == pytest.approx(2.0, rel=1e-6)
        # Standardised means of 4000 rows: chi-square with as many degrees as dimensions.
        off = x[owner == k].mean(axis=0) - mean
        assert 4000 * off @ inverse @ off < chi2.ppf(1 - 1e-5, dimensions)


@pytest.mark.parametrize("dimensions", [2, 7, 60])
def test_bernoulli_densities_are_scipys(dimensions: int) -> None:
    data = made("bernoulli-clients", dimensions=dimensions, owners=3, size=4000, shift=0.8)
    x, owner, logs = parts(data)
    assert set(np.unique(x)) == {0.0, 1.0}
    for k in range(3):
        # Log odds of independent bits are the linear coefficients of the log density.
        design = np.column_stack([x, np.ones(len(x))])
        odds = np.linalg.lstsq(design, logs[:, k], rcond=None)[0][:-1]
        chances = 1 / (1 + np.exp(-odds))
        wanted = bernoulli(chances).logpmf(x).sum(axis=1)
        np.testing.assert_allclose(logs[:, k], wanted, rtol=1e-8, atol=1e-7)
        z = (x[owner == k].mean(axis=0) - chances) / np.sqrt(chances * (1 - chances) / 4000)
        assert (z**2).sum() < chi2.ppf(1 - 1e-5, dimensions)


def test_bits_have_probabilities_that_add_up_to_one() -> None:
    data = made("bernoulli-clients", dimensions=3, owners=2, size=2000)
    x, _, logs = parts(data)
    corners, first = np.unique(x, axis=0, return_index=True)
    assert len(corners) == 8
    np.testing.assert_allclose(np.exp(logs[first]).sum(axis=0), 1.0, rtol=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_the_strength_does_not_grow_with_the_dimensions(name: str) -> None:
    spreads = []
    for dimensions in (20, 784):
        data = made(name, dimensions=dimensions, owners=8, size=300, shift=1.0)
        x, _, _ = parts(data)
        plain = made(name, dimensions=dimensions, owners=8, size=300, shift=0.0)
        # Without a shift all laws are the shared one, whose log density is affine in the same
        # terms: that of the shifted rows follows from its own formula.
        if name == "gaussian-clients":
            shared = -(x**2).sum(axis=1) / 2 - dimensions / 2 * np.log(2 * np.pi)
        else:
            bits, _, shared_logs = parts(plain)
            design = np.column_stack([bits, np.ones(len(bits))])
            found = np.linalg.lstsq(design, shared_logs[:, 0], rcond=None)[0]
            shared = np.column_stack([x, np.ones(len(x))]) @ found
        apart = divergences(data, shared)
        # shift^2 / 2; the mean of 300 log ratios of deviation 1 is off by .06.
        np.testing.assert_allclose(apart, 0.5, atol=0.3)
        assert apart.mean() == pytest.approx(0.5, abs=0.1)
        ratio = build(data, partition="owner", clients=None, seed=0).log_ratio
        assert ratio is not None
        spreads.append(float(ratio.std()))
    assert spreads[1] == pytest.approx(spreads[0], rel=0.15)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dimensions", [2, 33, 784])
def test_without_a_shift_clients_are_identical_and_the_ratio_is_exactly_zero(
    name: str, dimensions: int
) -> None:
    data = made(name, dimensions=dimensions, owners=5, size=60, shift=0.0)
    _, _, logs = parts(data)
    assert (logs == logs[:, :1]).all()
    federation = build(data, partition="owner", clients=None, seed=0, unseen=1)
    ratio = federation.log_ratio
    assert ratio is not None
    assert int(ratio.isnan().sum()) == 60
    assert (ratio[~ratio.isnan()] == 0).all()


@pytest.mark.parametrize("name", NAMES)
def test_weights_by_the_true_ratio_turn_a_client_into_all_clients(name: str) -> None:
    data = made(name, dimensions=10, owners=4, size=20_000, shift=0.7)
    federation = build(data, partition="owner", clients=None, seed=0)
    assert federation.log_ratio is not None
    everyone = federation.x[np.concatenate([c.train for c in federation.clients])].double()
    for client in federation.clients:
        x, weight = federation.x[client.train].double(), federation.log_ratio[client.train].exp()
        n = len(weight)
        error = float((everyone.std(dim=0).max() * weight.square().mean().sqrt()) / n**0.5)
        weighted = (weight[:, None] * x).mean(dim=0)
        assert float(weight.mean()) == pytest.approx(1.0, abs=0.05)
        assert float((weighted - everyone.mean(dim=0)).abs().max()) < 6 * error
        assert float((x.mean(dim=0) - everyone.mean(dim=0)).abs().max()) > 6 * error


@pytest.mark.parametrize("name", NAMES)
def test_standard_scaling_leaves_the_ratio_as_it_is(name: str) -> None:
    stored, scaled = (
        build(load(name, size=50, normalise=how), partition="owner", clients=None, seed=0)
        for how in ("unit", "standard")
    )
    assert not torch.equal(stored.x, scaled.x)
    assert stored.log_ratio is not None
    assert scaled.log_ratio is not None
    assert torch.equal(stored.log_ratio, scaled.log_ratio)


def test_all_owners_label_the_same_sample_the_same_way() -> None:
    data = made("gaussian-clients", owners=4, size=30_000, shift=1.0)
    x, owner, _ = parts(data)
    y = data.y.numpy()
    cell = (np.floor(x / 0.15).astype(int) * [1, 1000]).sum(axis=1)
    statistic, freedom = 0.0, 0
    for where in np.unique(cell):
        inside = cell == where
        counts = np.array(
            [[np.sum(inside & (owner == k) & (y == c)) for c in (0, 1)] for k in range(4)]
        )
        if counts.sum(axis=1).min() < 20 or counts.sum(axis=0).min() < 20:
            continue
        wanted = counts.sum(1, keepdims=True) * counts.sum(0) / counts.sum()
        statistic += ((counts - wanted) ** 2 / wanted).sum()
        freedom += 3
    assert freedom > 100
    # p(y|x) changes a little inside a cell, so the sum may exceed chi-square's by some per cent.
    assert statistic < 1.25 * freedom
    shares = [y[owner == k].mean() for k in range(4)]
    assert max(shares) - min(shares) > 0.1, "covariate shift reaches the labels"


@pytest.mark.parametrize(("name", "dimensions"), [(NAMES[0], 2), (NAMES[0], 3), (NAMES[1], 12)])
def test_labels_can_be_learned_but_not_by_a_linear_model(name: str, dimensions: int) -> None:
    data = made(name, dimensions=dimensions, size=800)
    order = np.random.default_rng(0).permutation(len(data.y))
    train, test = order[:6000], order[6000:]
    x, y = data.x.numpy(), data.y.numpy()
    linear, near = (
        model.fit(x[train], y[train]).score(x[test], y[test])
        for model in (LogisticRegression(), KNeighborsClassifier(25))
    )
    assert 0.45 < y.mean() < 0.55
    assert linear > 0.6
    assert near > linear + 0.05


@pytest.mark.parametrize("name", NAMES)
def test_the_data_seed_alone_decides_the_laws_and_the_rows(name: str) -> None:
    one, again, other = (made(name, size=20, data_seed=s) for s in (3, 3, 4))
    assert torch.equal(one.x, again.x)
    assert torch.equal(one.y, again.y)
    assert not torch.equal(one.x, other.x)
    assert one.log_densities is not None
    assert other.log_densities is not None
    assert not torch.equal(one.log_densities, other.log_densities)
    more = made(name, size=20, data_seed=3, owners=120)
    assert more.owner_names[::40] == ("owner-000", "owner-040", "owner-080")


def test_a_config_names_them_like_any_dataset() -> None:
    section = {
        "dataset": "bernoulli-clients", "partition": "owner", "clients": "all",
        "normalise": "unit", "options": {"owners": 4, "dimensions": 9, "size": 40, "shift": 2},
    }  # fmt: skip
    federation = make_federation(make_config({"federation": section}))
    assert [c.name for c in federation.clients] == [f"owner-0{k}" for k in range(4)]
    assert federation.sample_shape == (9,)
    assert {len(all_rows(c)) for c in federation.clients} == {40}
    assert federation.log_ratio is not None
    knob = DATASETS["bernoulli-clients"].knobs["size"]
    assert (knob.knob.text, knob.default) == ("samples of each owner", 500)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"owners": 0},
            r"owners of dataset 'gaussian-clients' must be a whole number of at least 1, not 0\.",
        ),
        (
            {"size": 0},
            r"size of dataset 'gaussian-clients' must be a whole number of at least 1, not 0\.",
        ),
        (
            {"dimensions": 1},
            r"dimensions of dataset 'gaussian-clients' must be a whole number from "
            r"2 to 784, not 1\.",
        ),
        (
            {"dimensions": 785},
            r"dimensions of dataset 'gaussian-clients' must be a whole number from "
            r"2 to 784, not 785\.",
        ),
        (
            {"shift": -1},
            r"shift of dataset 'gaussian-clients' must be a number of at least 0, not -1\.",
        ),
        (
            {"shift": float("nan")},
            r"shift of dataset 'gaussian-clients' must be a number of at least 0, not nan\.",
        ),
        (
            {"correlation": 1.0},
            r"correlation of dataset 'gaussian-clients' must be a number of at "
            r"least 0 and below 1, not 1\.0\.",
        ),
        (
            {"data_seed": -1},
            r"data_seed of dataset 'gaussian-clients' must be a whole number of at "
            r"least 0, not -1\.",
        ),
        (
            {"size": 2.5},
            r"size of dataset 'gaussian-clients' must be a whole number of at least 1, not 2\.5\.",
        ),
        (
            {"shift": "far"},
            r"shift of dataset 'gaussian-clients' must be a number of at least 0, not 'far'\.",
        ),
        (
            {"dimension": 3},
            r"unknown knob 'dimension' of dataset 'gaussian-clients': did you mean 'dimensions'\?",
        ),
    ],
)
def test_impossible_laws_are_refused_in_one_sentence(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load("gaussian-clients", **options)
    assert re.search(r"[.?]$", str(caught.value))
