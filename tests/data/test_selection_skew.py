"""The skew that keeps rows by where they lie: nobody's p(y|x) changes, and the truth is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import expit
from sklearn.decomposition import PCA

from fedskew.data.build import build
from fedskew.data.dataset import Dataset
from fedskew.data.datasets import load
from fedskew.data.federation import Client, Federation, all_rows
from fedskew.data.skew import SKEWS, apply_skew
from fedskew.errors import ConfigError, DataError

SPLITS = ("train", "validation", "test")
Array = np.ndarray[Any, Any]


def oblong(rows: int = 30_000, seed: int = 0) -> Dataset:
    """Samples of five features whose first two principal components stand out."""
    spread = np.array([[3.0], [2.0], [0.5], [0.4], [0.3]])
    rng = np.random.default_rng(seed)
    turn = np.linalg.qr(rng.standard_normal((5, 5))).Q
    x = (rng.standard_normal((rows, 5)) * spread[:, 0]) @ turn + 1.0
    y = (rng.random(rows) < expit(x[:, 0] * x[:, 1])).astype(np.int64)
    return Dataset("oblong", torch.from_numpy(x).float(), torch.from_numpy(y), ("a", "b"))


def made(data: Dataset, strength: float | None = 3.0, **others: Any) -> Federation:
    skew = [] if strength is None else [{"kind": "selection", "strength": strength}]
    settings = {"partition": "iid", "clients": 5, "seed": 2, **others}
    return build(data, skew=skew, **settings)


def chances(federation: Federation, strength: float) -> dict[str, Array]:
    """The chance of every row at every client, from sklearn's principal components."""
    rows = np.unique(np.concatenate([all_rows(c) for c in federation.by_name.values()]))
    x = federation.x.reshape(len(federation.x), -1).double().numpy()
    pca = PCA(2, svd_solver="full").fit(x[rows])
    axes = pca.components_ * np.sign(
        [axis[np.abs(axis).argmax()] for axis in pca.components_]
    ).reshape(2, 1)
    z = x @ axes.T
    z = (z - z[rows].mean(axis=0)) / z[rows].std(axis=0)
    found = {}
    for k, name in enumerate(sorted(federation.by_name)):
        angle = 2 * np.pi * k / len(federation.by_name)
        found[name] = expit(strength * (z[:, 0] * np.cos(angle) + z[:, 1] * np.sin(angle)))
    return found


def test_rows_are_kept_by_their_chance_in_every_split() -> None:
    data = oblong(4000)
    before, after = made(data, None, unseen=1), made(data, unseen=1)
    wanted = chances(before, 3.0)
    for name, client in before.by_name.items():
        kept = after.by_name[name]
        z = []
        for split in SPLITS:
            rows, left = client.split(split), kept.split(split)
            assert set(left) <= set(rows)
            assert left.tolist() == rows[np.isin(rows, left)].tolist(), "in the same order"
            p = wanted[name][rows]
            z.append((len(left) - p.sum()) / np.sqrt((p * (1 - p)).sum()))
            high, low = rows[p > 0.9], rows[p < 0.1]
            assert np.isin(high, left).mean() > 0.85
            assert np.isin(low, left).mean() < 0.15
        assert np.abs(z).max() < 4.5
    assert torch.equal(after.x, before.x)
    assert torch.equal(after.y, before.y)
    assert after.central_test.tolist() == before.central_test.tolist()
    assert [c.name for c in after.unseen] == [c.name for c in before.unseen]


def test_the_ratio_is_that_of_the_selected_laws() -> None:
    data = oblong(4000)
    before, after = made(data, None, unseen=1), made(data, unseen=1)
    laws = chances(before, 3.0)
    rows = np.concatenate([all_rows(c) for c in before.by_name.values()])
    # q_k(x) = s_k(x) p0(x) / Z_k; p0 cancels.
    laws = {name: s / s[rows].mean() for name, s in laws.items()}
    total = sum(len(c.train) for c in after.clients)
    p = np.sum([len(c.train) / total * laws[c.name] for c in after.clients], axis=0)
    ratio = after.log_ratio
    assert ratio is not None
    held = []
    for client in after.clients:
        mine = all_rows(client)
        held.append(mine)
        wanted = np.log(p[mine] / laws[client.name][mine])
        np.testing.assert_allclose(ratio[mine], wanted, rtol=1e-4, atol=1e-4)
    assert np.flatnonzero(~ratio.isnan()).tolist() == sorted(np.concatenate(held).tolist())


@pytest.mark.parametrize(("partition", "knobs"), [("iid", {}), ("quantity", {"alpha": 3.0})])
def test_weights_by_the_true_ratio_give_every_client_the_means_of_all(
    partition: str, knobs: dict[str, Any]
) -> None:
    after = made(oblong(60_000), strength=1.5, partition=partition, knobs=knobs)
    assert after.log_ratio is not None
    pooled = np.concatenate([c.train for c in after.clients])

    def of(rows: Array) -> Array:
        """Some functions of x: features, squares, a product, a corner."""
        x = after.x[rows].double().numpy()
        corner = ((x[:, 0] > 1) & (x[:, 1] < 2)).astype(float)
        return np.column_stack([x, x[:, :2] ** 2, x[:, 0] * x[:, 1], corner])

    everyone = of(pooled).mean(axis=0)
    for client in after.clients:
        weight = after.log_ratio[client.train].double().exp().numpy()
        values = of(client.train)
        weighted = (weight[:, None] * values).sum(axis=0) / weight.sum()
        scatter = np.sqrt(((weight[:, None] * (values - weighted)) ** 2).sum(axis=0)) / weight.sum()
        own = of(pooled).std(axis=0) / np.sqrt(len(pooled))
        assert (np.abs(weighted - everyone) / np.hypot(scatter, own)).max() < 4.5
        assert weight.mean() == pytest.approx(1.0, abs=0.1)
        assert (np.abs(values.mean(axis=0) - everyone) / np.hypot(scatter, own)).max() > 8


def test_labels_given_x_are_the_same_at_every_client() -> None:
    after = made(oblong(60_000), strength=2.0)
    x, y = after.x.double().numpy(), after.y.numpy()
    p = expit(x[:, 0] * x[:, 1])
    for client in after.clients:
        rows = client.train
        z = (y[rows] - p[rows]).sum() / np.sqrt((p[rows] * (1 - p[rows])).sum())
        assert abs(z) < 4.5


def test_no_strength_keeps_every_second_row_and_shifts_nothing() -> None:
    data = oblong(4000)
    before, after = made(data, None), made(data, 0)
    kept = sum(len(all_rows(c)) for c in after.clients)
    assert kept == pytest.approx(2000, abs=150)
    assert after.log_ratio is not None
    assert (after.log_ratio[~after.log_ratio.isnan()] == 0).all()
    assert before.log_ratio is None


def test_the_truth_is_known_only_where_clients_shared_one_law() -> None:
    data = oblong(2000)
    assert made(data, partition="dirichlet").log_ratio is None
    selected: dict[str, Any] = {"kind": "selection"}
    noisy: dict[str, Any] = {"kind": "noise", "clip": False}
    for skews in ([noisy, selected], [selected, noisy], [selected, {**selected, "strength": 1}]):
        assert build(data, partition="iid", clients=5, seed=0, skew=skews).log_ratio is None
    twice = build(data, partition="iid", clients=5, seed=0, skew=[selected, selected])
    assert sum(len(c.train) for c in twice.clients) < sum(len(c.train) for c in made(data).clients)


def test_the_order_of_clients_changes_nobodys_rows_and_the_seed_does() -> None:
    before = made(oblong(2000), None)
    shuffled = before.with_data(clients=before.clients[::-1])
    one, other, third = (
        apply_skew(f, {"kind": "selection"}, seed)
        for f, seed in ((before, 5), (shuffled, 5), (before, 6))
    )
    for name, client in one.by_name.items():
        assert client.train.tolist() == other.by_name[name].train.tolist()
        assert client.train.tolist() != third.by_name[name].train.tolist()


def test_a_client_left_without_training_samples_is_named() -> None:
    rows = np.arange(200)
    x = torch.zeros(200, 2)
    x[:, 0] = torch.linspace(-1, 1, 200)
    x[::2, 1] = 0.1
    # The second of two clients looks to the left, and all its training rows lie on the right.
    clients = (Client("ann", rows[:150]), Client("bob", rows[150:180], rows[180:]))
    toy = Federation("toy", x, torch.zeros(200, dtype=torch.int64), ("a",), clients)
    with pytest.raises(DataError, match="left client 'bob' without training samples: lower str"):
        apply_skew(toy, {"kind": "selection", "strength": 50}, seed=0)


@pytest.mark.parametrize(
    "x", [torch.ones(40, 3), torch.rand(40, 1), torch.arange(40.0)[:, None] * torch.ones(3)]
)
def test_samples_on_a_line_are_refused(x: torch.Tensor) -> None:
    toy = Federation(
        "toy", x, torch.zeros(40, dtype=torch.int64), ("a",), (Client("ann", np.arange(40)),)
    )
    with pytest.raises(DataError, match="differ in two directions or more, but those of toy do"):
        apply_skew(toy, {"kind": "selection"}, seed=0)


@pytest.mark.parametrize("strength", [-1.0, float("inf"), float("nan")])
def test_impossible_strengths_are_refused(strength: float) -> None:
    with pytest.raises(
        ConfigError, match="strength of skew 'selection' must be a number of at least 0, not "
    ):
        made(oblong(100), strength)
    assert SKEWS["selection"].defaults == {"strength": 3.0}


@pytest.mark.real_data
def test_mnist_weighted_by_the_truth_has_the_pixels_of_all_clients(data_dir: Path) -> None:
    mnist = load("mnist", data_dir, normalise="unit")
    after = made(mnist, strength=1.0, samples=20_000, clients=4)
    assert after.central_test.tolist() == mnist.official_test.tolist()
    assert after.log_ratio is not None
    pooled = after.x[np.concatenate([c.train for c in after.clients])].mean(dim=0).flatten()
    for client in after.clients:
        x = after.x[client.train].flatten(1)
        weight = after.log_ratio[client.train].exp()
        plain = (x.mean(dim=0) - pooled).norm()
        weighted = ((weight[:, None] * x).sum(dim=0) / weight.sum() - pooled).norm()
        # 784 pixels of deviation up to .3 over some 2000 rows: noise of about .2 stays.
        assert float(weighted) < 0.35
        assert float(plain) > 4 * float(weighted)
