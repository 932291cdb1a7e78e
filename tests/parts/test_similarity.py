"""CKA and its fingerprints against independent formulas, and what `own` samples really measure."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from helpers import toy_federation, toy_model
from numpy.typing import NDArray
from scipy.spatial.distance import pdist, squareform

from fedskew.data.federation import Client
from fedskew.engine.optim import Optimiser
from fedskew.errors import ConfigError
from fedskew.federate.holdings import roster_of
from fedskew.parts.report import Finished
from fedskew.parts.similarity import (
    Fingerprint,
    centred,
    feature_fingerprint,
    sample_fingerprint,
    similarities,
)

Array = NDArray[np.float64]
kernels = pytest.mark.parametrize("kernel", ["linear", "rbf"])


def drawn(seed: int, n: int = 20, d: int = 7) -> Array:
    return np.random.default_rng(seed).normal(size=(n, d))


def textbook_gram(x: Array, kernel: str) -> Array:
    if kernel == "linear":
        return np.asarray(x @ x.T)
    distances = squareform(pdist(x, "sqeuclidean"))
    return np.asarray(np.exp(-distances / (2 * np.median(distances))))


def textbook_cka(x: Array, y: Array, kernel: str) -> float:
    """HSIC(K, L)/√(HSIC(K, K)·HSIC(L, L)) with the centring matrix H = I - 1/n."""
    h = np.eye(len(x)) - 1 / len(x)
    k, m = (h @ textbook_gram(z, kernel) @ h for z in (x, y))
    return float(np.trace(k @ m) / np.sqrt(np.trace(k @ k) * np.trace(m @ m)))


def unbiased_hsic(k: Array, m: Array) -> float:
    """Song et al. 2012: the U-statistic, up to the factor that cancels in CKA."""
    k, m = k - np.diag(np.diag(k)), m - np.diag(np.diag(m))
    n = len(k)
    return float(
        np.trace(k @ m)
        + k.sum() * m.sum() / ((n - 1) * (n - 2))
        - 2 * (k @ m).sum() / (n - 2)
    )  # fmt: skip


def debiased_cka(x: Array, y: Array, kernel: str) -> float:
    k, m = textbook_gram(x, kernel), textbook_gram(y, kernel)
    return unbiased_hsic(k, m) / float(np.sqrt(unbiased_hsic(k, k) * unbiased_hsic(m, m)))


def product(make: Any, x: Array, y: Array, kernel: str, debiased: bool) -> float:
    """The similarity of two clients as the server computes it from what they send."""
    one, two = (
        make(torch.from_numpy(z), kernel, debiased).to(torch.float32).double() for z in (x, y)
    )
    return float(one @ two)


@kernels
def test_fingerprints_give_the_cka_of_the_raw_representations(kernel: str) -> None:
    for seed in range(5):
        x, y = drawn(seed), drawn(seed) @ drawn(seed + 50, 7, 9)
        found = product(sample_fingerprint, x, y, kernel, debiased=False)
        assert found == pytest.approx(textbook_cka(x, y, kernel), abs=1e-6)


@kernels
def test_debiased_fingerprints_give_the_unbiased_estimate(kernel: str) -> None:
    for seed in range(5):
        x, y = drawn(seed), drawn(seed) + 0.5 * drawn(seed + 50)
        found = product(sample_fingerprint, x, y, kernel, debiased=True)
        assert found == pytest.approx(debiased_cka(x, y, kernel), abs=1e-6)


def test_a_worked_example_of_centring() -> None:
    """Row means of [[1, 2], [2, 5]] are 1.5 and 3.5, the grand mean 2.5."""
    kernel = torch.tensor([[1.0, 2.0], [2.0, 5.0]])
    assert centred(kernel).tolist() == [[0.5, -0.5], [-0.5, 0.5]]


def test_debiased_centring_leaves_rows_without_a_sum() -> None:
    gram = torch.from_numpy(textbook_gram(drawn(0), "linear"))
    assert centred(gram, debiased=True).sum(dim=0).abs().max() < 1e-9


def test_feature_similarity_is_the_cosine_of_covariances() -> None:
    x, y = drawn(0), drawn(1, 33)
    a, b = np.cov(x.T), np.cov(y.T)
    expected = (a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum())
    assert product(feature_fingerprint, x, y, "linear", debiased=False) == pytest.approx(expected)


def test_debiased_feature_similarity_uses_the_unbiased_length_of_each_covariance() -> None:
    x, y = drawn(0, 30), drawn(1, 25)
    a, b = np.cov(x.T), np.cov(y.T)

    def squared_length(z: Array) -> float:
        n = len(z)
        k = z @ z.T
        return unbiased_hsic(k, k) / (n * (n - 3))

    expected = (a * b).sum() / np.sqrt(squared_length(x) * squared_length(y))
    found = product(feature_fingerprint, x, y, "linear", debiased=True)
    assert found == pytest.approx(expected, abs=1e-6)


def test_the_debiased_length_is_right_on_average() -> None:
    """Of ten samples with covariance I in five dimensions: |I|² = 5, where the biased one says
    tr(C²) = 5·(1 + 6/9) = 8.33 on average."""
    found, biased = [], []
    for seed in range(3000):
        x = torch.from_numpy(drawn(seed, 10, 5))
        covariance = torch.cov(x.T)
        vector = feature_fingerprint(x, "linear", True)
        found.append(float((covariance * covariance).sum() / (vector @ vector)))
        biased.append(float((covariance * covariance).sum()))
    assert np.mean(biased) == pytest.approx(5 * (1 + 6 / 9), rel=0.03)
    assert np.mean(found) == pytest.approx(5, rel=0.03)


def test_rbf_feature_similarity_is_the_cka_of_the_features() -> None:
    """Items are features: distances between columns of centred activations."""
    x, y = drawn(0), drawn(0) + 0.3 * drawn(1)
    one, two = ((z - z.mean(axis=0)).T for z in (x, y))
    found = product(feature_fingerprint, x, y, "rbf", debiased=False)
    assert found == pytest.approx(textbook_cka(one, two, "rbf"), abs=1e-6)


@kernels
@pytest.mark.parametrize("make", [sample_fingerprint, feature_fingerprint])
@pytest.mark.parametrize("debiased", [False, True])
def test_constant_features_are_like_nothing(make: Any, kernel: str, debiased: bool) -> None:
    constant = torch.full((20, 7), 0.3, dtype=torch.float64)
    nearly = constant + 1e-8 * torch.from_numpy(drawn(0))
    for features in (constant, nearly):
        vector = make(features, kernel, debiased)
        assert not bool(vector.isnan().any())
        assert float(vector.norm()) == 0.0


@kernels
@pytest.mark.parametrize("n", [1, 2, 3])
def test_too_few_samples_to_debias_are_like_nothing(kernel: str, n: int) -> None:
    vector = sample_fingerprint(torch.from_numpy(drawn(0, n)), kernel, True)  # type: ignore[arg-type]
    assert vector.tolist() == [0.0] * len(vector)


def test_negative_cka_counts_as_none_and_nothing_exceeds_one() -> None:
    rows = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [3.0, 0.0]])
    assert similarities(rows, rows)[0].tolist() == [1.0, 0.0, 1.0]


def class_features(classes: list[int], seed: int, n: int = 100, d: int = 64) -> Array:
    """Class mean plus noise, rows in random order: what a trained body makes of two classes."""
    means = np.random.default_rng(7).normal(size=(10, d))
    rng = np.random.default_rng(seed)
    labels = rng.choice(classes, n)
    return np.asarray(means[labels] + 0.5 * rng.normal(size=(n, d)))


def mean_similarity(make: Any, kernel: str, one: list[int], two: list[int]) -> float:
    pairs = [(class_features(one, 2 * i), class_features(two, 2 * i + 1)) for i in range(20)]
    return float(np.mean([product(make, x, y, kernel, False) for x, y in pairs]))


@kernels
def test_own_samples_measure_nothing_and_features_measure_the_data(kernel: str) -> None:
    """Two clients with the same classes must look more alike than two with different ones.

    Row by row, unrelated samples carry no sign of it; feature by feature it is unmistakable.
    """
    same, different = ([0, 1], [0, 1]), ([0, 1], [2, 3])
    own = [mean_similarity(sample_fingerprint, kernel, *pair) for pair in (same, different)]
    feature = [mean_similarity(feature_fingerprint, kernel, *pair) for pair in (same, different)]
    assert abs(own[0] - own[1]) < 0.02
    assert max(own) < 0.2
    assert feature[0] - feature[1] > 0.3


@kernels
def test_sorting_own_samples_by_label_does_not_help(kernel: str) -> None:
    def sorted_features(classes: list[int], seed: int) -> Array:
        means = np.random.default_rng(7).normal(size=(10, 64))
        labels = np.sort(np.random.default_rng(seed).permutation(np.repeat(classes, 50)))
        noise = np.random.default_rng(seed + 1).normal(size=(100, 64))
        return np.asarray(means[labels] + 0.5 * noise)

    def alike(one: list[int], two: list[int]) -> float:
        pairs = [(sorted_features(one, 2 * i), sorted_features(two, 2 * i + 1)) for i in range(20)]
        return float(np.mean([product(sample_fingerprint, x, y, kernel, False) for x, y in pairs]))

    same, different = alike([0, 1], [0, 1]), alike([0, 1], [2, 3])
    assert min(same, different) > 0.5
    assert abs(same - different) < 0.05


def test_biased_cka_of_unrelated_features_is_large_when_they_outnumber_the_samples() -> None:
    """D/(n + D) and more: 0.83 for 50 samples of 256 features, while debiased it is zero."""
    biased = product(sample_fingerprint, drawn(0, 50, 256), drawn(1, 50, 256), "linear", False)
    debiased = product(sample_fingerprint, drawn(0, 50, 256), drawn(1, 50, 256), "linear", True)
    assert biased == pytest.approx(0.83, abs=0.02)
    assert abs(debiased) < 0.1


def finished(client: Client, round_seed: int = 0) -> Finished:
    federation = toy_federation()
    module = toy_model().eval()
    return Finished(
        client=client, x=federation.x, y=federation.y, classes=federation.classes, module=module,
        received=dict(module.state_dict()), trained=dict(module.state_dict()),
        changed=frozenset(), steps=1, optimiser=Optimiser("sgd", 0.1), private={}, broadcast={},
        public=np.arange(100, 110), rng=np.random.default_rng(round_seed),
        agreed=np.random.default_rng(99),
    )  # fmt: skip


def sent(part: Fingerprint, client: int, round_seed: int = 0) -> torch.Tensor:
    reported = part.report(finished(toy_federation().clients[client], round_seed))
    return reported.sends["fingerprint"]["v"]


def test_a_probe_shows_every_client_the_same_inputs() -> None:
    for probe in (
        Fingerprint("probe", samples=10),
        Fingerprint("probe", samples=8, probe="public"),
    ):
        assert torch.equal(sent(probe, 0), sent(probe, 1, round_seed=5))


def test_own_samples_differ_from_client_to_client_and_from_draw_to_draw() -> None:
    own = Fingerprint("own", samples=6)
    assert not torch.equal(sent(own, 1), sent(own, 2))
    assert not torch.equal(sent(own, 1, 0), sent(own, 1, 1))


def test_a_client_with_fewer_own_samples_than_asked_draws_some_twice() -> None:
    assert len(sent(Fingerprint("own", samples=50), 0)) == 50 * 51 // 2


def test_what_is_sent_is_half_a_matrix() -> None:
    assert len(sent(Fingerprint("probe", samples=10), 0)) == 10 * 11 // 2
    assert len(sent(Fingerprint("feature"), 0)) == 5 * 6 // 2


@pytest.mark.parametrize(
    ("knobs", "says"),
    [
        ({"samples": 1}, r"samples must be a whole number of at least 2, not 1\."),
        ({"samples": 3, "debiased": True}, "samples must be at least 4"),
        ({"mode": "nearest"}, r"mode must be 'probe', 'feature' or 'own', not 'nearest'\."),
        ({"kernel": "cosine"}, r"kernel must be 'linear' or 'rbf', not 'cosine'\."),
        ({"probe": "test"}, r"probe must be 'noise' or 'public', not 'test'\."),
    ],
)
def test_impossible_settings_are_refused(knobs: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Fingerprint(**knobs)


def test_a_public_probe_needs_public_samples() -> None:
    with pytest.raises(ConfigError, match=r"set federation\.public, which is 0"):
        Fingerprint(probe="public").check(roster_of(toy_federation()))
