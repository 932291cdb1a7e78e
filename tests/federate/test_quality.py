"""Judging samples: closed forms, manifolds done by hand, and generators of known worth."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import assert_same_bits, toy_federation
from numpy.typing import NDArray
from scipy.linalg import sqrtm
from torch import Tensor

from fedskew.data.build import build
from fedskew.data.datasets import load
from fedskew.data.federation import Client, Federation
from fedskew.errors import ConfigError, DataError
from fedskew.federate import quality
from fedskew.federate.quality import Judge, frechet, inside, judge_for, judged

Array = NDArray[np.float64]


@cache
def digits() -> Federation:
    return build(load("digits"), partition="iid", clients=3, seed=0)


def real(federation: Federation) -> Tensor:
    return federation.x[torch.from_numpy(federation.pooled().train)]


@cache
def scores_of_real_digits() -> dict[str, float]:
    return judged(real(digits()), digits(), 0)


def drawn(seed: int, n: int, d: int) -> Array:
    rng = np.random.default_rng(seed)
    return np.asarray(rng.normal(size=(n, d)) @ rng.normal(size=(d, d)) + rng.normal(size=d))


def textbook_frechet(x: Array, y: Array) -> float:
    """|μ - ν|² + tr(S + T - 2·(ST)^½), with scipy's root of a matrix."""
    s, t = np.cov(x.T), np.cov(y.T)
    apart = np.square(x.mean(axis=0) - y.mean(axis=0)).sum()
    return float(apart + np.trace(s + t - 2 * np.real(sqrtm(s @ t))))


def share(mask: Tensor) -> float:
    return float(mask.to(torch.float64).mean())


def column(*values: float) -> Tensor:
    return torch.tensor(values)[:, None]


def test_frechet_is_the_textbooks_number_for_any_two_covariances() -> None:
    x, y = drawn(0, 50, 4), drawn(1, 70, 4)
    ours = frechet(torch.from_numpy(x), torch.from_numpy(y))
    assert ours == pytest.approx(textbook_frechet(x, y), rel=1e-9)


def test_frechet_of_two_known_gaussians_is_the_closed_form() -> None:
    # Independent coordinates: the sum of (μ - ν)² + (σ - τ)² = (9 + 1) + (0 + 4) = 14.
    rng = np.random.default_rng(0)
    x = rng.normal((0.0, 0.0), (1.0, 1.0), (40_000, 2))
    y = rng.normal((3.0, 0.0), (2.0, 3.0), (40_000, 2))
    assert frechet(torch.from_numpy(x), torch.from_numpy(y)) == pytest.approx(14.0, rel=0.02)


def test_frechet_of_a_sample_and_itself_is_zero_in_any_order() -> None:
    x = torch.from_numpy(drawn(0, 200, 8)).to(torch.float32)
    assert frechet(x, x) == 0.0
    assert frechet(x, x.flip(0)) == 0.0


def test_frechet_of_flat_features_and_of_fewer_samples_than_features_is_exact() -> None:
    # Only one of 50 features varies: (1 - 12)² + (√2 - √8)² = 121 + 2.
    ours, theirs = torch.zeros(2, 50), torch.full((2, 50), 0.0)
    ours[:, 7], theirs[:, 7] = torch.tensor([0.0, 2.0]), torch.tensor([10.0, 14.0])
    assert frechet(ours, theirs) == pytest.approx(123.0, rel=1e-9)
    # Without any variance only the means are apart; orthogonal variances share no root.
    assert frechet(torch.zeros(5, 3), torch.ones(4, 3)) == pytest.approx(3.0)
    across = torch.zeros(2, 50)
    across[:, 8] = torch.tensor([-1.0, 1.0])
    assert frechet(ours - ours.mean(dim=0), across) == pytest.approx(2.0 + 2.0)


def test_a_point_is_inside_up_to_the_third_nearest_neighbour_of_a_sample() -> None:
    # Third neighbours of 0, 1, 2, 10 are 10, 9, 8 and 10 away: the balls cover -10 to 20.
    samples = column(0.0, 1.0, 2.0, 10.0)
    points = column(-10.0, -10.5, 20.0, 20.5, 5.0)
    assert inside(points, samples).tolist() == [True, False, True, False, True]


def test_one_of_two_modes_is_precise_but_recalls_only_half() -> None:
    # Every second point of the first mode; its balls reach 6, 4, 4, 4 and 6 and cover all of it.
    mode = torch.stack([torch.arange(10.0), torch.zeros(10)], dim=1)
    both = torch.cat([mode, mode + 1000.0])
    generated = mode[::2]
    assert share(inside(generated, both)) == 1.0
    assert share(inside(both, generated)) == 0.5


def test_samples_far_away_are_neither_precise_nor_recall_anything() -> None:
    grid = torch.cartesian_prod(torch.arange(5.0), torch.arange(5.0))
    assert share(inside(grid + 100.0, grid)) == share(inside(grid, grid + 100.0)) == 0.0


def test_copies_of_one_sample_cover_that_sample_only() -> None:
    # Their balls have no radius at all, which rounding must neither widen nor miss.
    one = torch.full((1, 64), 0.1) * torch.arange(64)
    assert inside(torch.cat([one, one + 1e-4]), one.repeat(5, 1)).tolist() == [True, False]


def test_the_judge_learns_nothing_from_test_validation_and_unseen_samples() -> None:
    federation = toy_federation()
    trained = torch.zeros(len(federation.y), dtype=torch.bool)
    trained[torch.from_numpy(federation.pooled().train)] = True
    other = federation.with_data(
        x=torch.where(trained[:, None], federation.x, federation.x + 1.0),
        y=torch.where(trained, federation.y, 2 - federation.y),
    )
    one, two = judge_for(federation, 0), judge_for(other, 0)
    assert_same_bits(one.model.state_dict(), two.model.state_dict())
    assert one.accuracy != two.accuracy


def test_a_judge_is_trained_once_for_equal_federations_and_seeds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lessons: list[str] = []
    taught = quality._taught

    def counted(name: str, *given: Tensor | Federation | int) -> Judge:
        lessons.append(name)
        return taught(name, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(quality, "_taught", counted)
    monkeypatch.setattr(quality, "_last", {})
    federation = toy_federation()
    judge = judge_for(federation, 0)
    assert judge_for(toy_federation(), 0) is judge
    assert len(lessons) == 1
    for changed, seed in (
        (federation, 1),
        (toy_federation(seed=1), 0),
        (federation.with_data(central_test=federation.central_test[:9]), 0),
    ):
        assert judge_for(changed, seed) is not judge
        assert len(quality._last) == 1
    assert len(lessons) == 4


def test_the_judge_is_as_good_as_it_says_and_labels_by_its_own_features() -> None:
    federation = digits()
    judge = judge_for(federation, 0)
    rows = torch.from_numpy(federation.central_test)
    with torch.no_grad():
        logits = judge.model(federation.x[rows])
        head = judge.model.get_submodule("head")(judge.features(federation.x[rows]))
    torch.testing.assert_close(head, logits)
    assert torch.equal(judge.labels(federation.x[rows]), logits.argmax(dim=1))
    assert judge.accuracy == share(logits.argmax(dim=1) == federation.y[rows])
    assert judge.accuracy > 0.95


def test_real_samples_teach_almost_as_well_as_their_labels_do() -> None:
    scores = scores_of_real_digits()
    assert scores["cas"] == pytest.approx(judge_for(digits(), 0).accuracy, abs=0.03)
    assert scores["precision"] > 0.85
    assert scores["recall"] > 0.85


def test_the_worse_the_samples_the_worse_every_score() -> None:
    federation = digits()
    x = real(federation)
    mean = x.mean(dim=0)
    # Towards the mean, step by step: a model that lost its modes.
    worse = [judged(mean + s * (x - mean), federation, 0) for s in (0.5, 0.1)]
    scores = [scores_of_real_digits(), *worse]
    good, poor, bad = ([s[name] for name in ("cas", "recall", "frechet")] for s in scores)
    assert good[0] >= poor[0] > bad[0]
    assert good[1] > poor[1] > bad[1]
    assert good[2] < poor[2] < bad[2]


@pytest.mark.parametrize("kind", ["uniform", "normal"])
def test_noise_scores_as_guessing_does(kind: str) -> None:
    # Trained on all of it, a student of the judge's labels would be right about 9 digits of 10.
    federation = digits()
    rng = np.random.default_rng(0)
    low, high = float(federation.x.min()), float(federation.x.max())
    shape = (2000, *federation.sample_shape)
    noise = rng.uniform(low, high, shape) if kind == "uniform" else rng.normal(size=shape)
    scores = judged(torch.from_numpy(noise), federation, 0)
    assert scores["cas"] == pytest.approx(0.1, abs=0.05)
    assert scores["precision"] < 0.05
    assert scores["frechet"] > 100 * scores_of_real_digits()["frechet"]


def test_one_sample_over_and_over_scores_as_its_class_in_the_test_set() -> None:
    federation = digits()
    copies = real(federation)[:1].repeat(50, 1, 1, 1)
    label = judge_for(federation, 0).labels(copies)[0]
    scores = judged(copies, federation, 0)
    rows = torch.from_numpy(federation.central_test)
    assert scores["cas"] == pytest.approx(share(federation.y[rows] == label))
    assert scores["recall"] < 0.01
    assert np.isfinite(list(scores.values())).all()


def test_a_seed_fixes_every_bit_and_another_changes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    federation = digits()
    generated = real(federation)[:1100] * 0.9
    first = judged(generated, federation, 3)
    monkeypatch.setattr(quality, "_last", {})
    torch.manual_seed(12345)
    assert judged(generated, federation, 3) == first
    assert judged(generated, federation, 4) != first


@pytest.mark.parametrize("shape", [(2,), (3, 12, 12)])
def test_samples_of_any_shape_and_number_of_classes_are_judged(shape: tuple[int, ...]) -> None:
    # Two classes, told apart by brightness. A generator that repeats all bright samples and makes
    # no dark one recalls half of the test set, and its student never saw the other class.
    rng = np.random.default_rng(0)
    y = torch.arange(80) % 2
    x = torch.from_numpy(rng.normal(size=(80, *shape))).to(torch.float32)
    x += 12.0 * y.reshape(-1, *[1] * len(shape))
    rows = np.arange(80)
    federation = Federation(
        "bright", x, y, ("dark", "bright"), (Client("ann", rows[:40]),), central_test=rows[40:]
    )
    assert judge_for(federation, 0).accuracy == 1.0
    both, bright = judged(x[:40], federation, 0), judged(x[y == 1], federation, 0)
    assert both["cas"] == 1.0
    assert bright["cas"] < 0.75
    assert bright["recall"] == 0.5


def test_what_cannot_be_judged_is_refused_by_name() -> None:
    federation = toy_federation()
    with pytest.raises(DataError, match=r"shape \(7,\), but those of 'toy' have \(6,\)"):
        judged(torch.zeros(10, 7), federation, 0)
    with pytest.raises(ConfigError, match=r"evaluate\.generated must be at least 4, not 3"):
        judged(torch.zeros(3, 6), federation, 0)
    broken = torch.zeros(10, 6)
    broken[4, 2] = float("nan")
    with pytest.raises(DataError, match="generated samples: sample 4 holds a NaN"):
        judged(broken, federation, 0)
    untested = federation.with_data(central_test=np.empty(0, dtype=np.int64))
    with pytest.raises(DataError, match=r"0 central test samples: .* set evaluate\.generated = 0"):
        judged(torch.zeros(10, 6), untested, 0)


@pytest.mark.real_data
def test_mnist_is_judged_by_a_good_judge(data_dir: Path) -> None:
    mnist = load("mnist", data_dir)
    federation = build(mnist, partition="iid", clients=5, seed=0, samples=6000, test_samples=2000)
    assert judge_for(federation, 0).accuracy > 0.9
    x = real(federation)[:2000]
    good = judged(x, federation, 0)
    assert good["cas"] > 0.85
    assert min(good["precision"], good["recall"]) > 0.8
    # Two digits on top of each other are still easy to learn from, but they are not digits.
    blurred = judged((x + x.roll(1, dims=0)) / 2, federation, 0)
    assert good["cas"] > blurred["cas"] > 0.6
    assert blurred["frechet"] > 5 * good["frechet"]
    assert blurred["recall"] < good["recall"]
    noise = judged(torch.from_numpy(np.random.default_rng(0).normal(size=x.shape)), federation, 0)
    assert noise["cas"] == pytest.approx(0.1, abs=0.02)
    assert (noise["precision"], noise["recall"]) == (0.0, 0.0)
