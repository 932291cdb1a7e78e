"""The true density ratio: known from the laws, kept while they hold, forgotten when not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import norm

from fedskew.config import make_config
from fedskew.data.build import build
from fedskew.data.dataset import Dataset
from fedskew.data.datasets import load
from fedskew.data.federation import Client, Federation, all_rows
from fedskew.data.fingerprint import fingerprint, sampled_fingerprint
from fedskew.errors import DataError
from fedskew.runs.experiment import make_federation

CENTRES = np.array([-1.0, 0.5, 2.0])


def dataset(sizes: tuple[int, ...] = (40, 100, 60), **fields: Any) -> Dataset:
    """Three owners of different sizes on a line, each with a Gaussian of its own."""
    owner = np.repeat(np.arange(3), sizes)
    x = np.random.default_rng(0).normal(CENTRES[owner], 1.0).astype(np.float32)
    made: dict[str, Any] = {
        "name": "line",
        "x": torch.from_numpy(x)[:, None],
        "y": torch.from_numpy((x > 0.5).astype(np.int64)),
        "class_names": ("low", "high"),
        "owner": owner,
        "owner_names": ("ann", "bob", "cy"),
        "log_densities": torch.from_numpy(norm.logpdf(x[:, None], CENTRES)),
    }
    return Dataset(**{**made, **fields})


def by_owner(data: Dataset | None = None, **others: Any) -> Federation:
    settings = {"partition": "owner", "clients": None, "seed": 1, **others}
    return build(data or dataset(), **settings)


def expected(federation: Federation, name: str, centres: dict[str, float]) -> np.ndarray[Any, Any]:
    """log p/q of a client's rows with plain densities, no logarithms of sums."""
    x = federation.x[all_rows(federation.by_name[name]), 0].double().numpy()
    sizes = {client.name: len(client.train) for client in federation.clients}
    p = sum(sizes[n] / sum(sizes.values()) * norm.pdf(x, centres[n]) for n in sizes)
    return np.asarray(np.log(p / norm.pdf(x, centres[name])))


@pytest.mark.parametrize("unseen", [[], ["bob"]])
def test_the_ratio_is_that_of_the_mixture_of_seen_clients(unseen: list[str]) -> None:
    federation = by_owner(unseen=unseen)
    ratio = federation.log_ratio
    assert ratio is not None
    assert ratio.dtype == torch.float32
    centres = dict(zip(("ann", "bob", "cy"), CENTRES, strict=True))
    for client in federation.clients:
        rows = all_rows(client)
        assert len(client.validation)
        assert len(client.test)
        wanted = expected(federation, client.name, centres)
        np.testing.assert_allclose(ratio[rows].numpy(), wanted, rtol=1e-5, atol=1e-6)
    nobody = np.concatenate([[], *(all_rows(client) for client in federation.unseen)]).astype(int)
    assert np.flatnonzero(ratio.isnan()).tolist() == nobody.tolist()


def test_the_clients_of_one_owner_share_its_law() -> None:
    whole, cut = by_owner(validation=0.0), by_owner(validation=0.0, knobs={"size": 20})
    assert [c.name for c in cut.clients] == [
        "ann-00", "ann-01", *(f"bob-0{i}" for i in range(5)), *(f"cy-0{i}" for i in range(3)),
    ]  # fmt: skip
    centres = {c.name: CENTRES[("ann", "bob", "cy").index(c.name[:-3])] for c in cut.clients}
    assert cut.log_ratio is not None
    for client in cut.clients:
        wanted = expected(cut, client.name, centres)
        np.testing.assert_allclose(cut.log_ratio[all_rows(client)], wanted, rtol=1e-5, atol=1e-6)
    assert whole.log_ratio is not None
    # The shares of the owners are the same, .2 .5 .3, so the ratios are.
    np.testing.assert_allclose(whole.log_ratio, cut.log_ratio, atol=1e-5)


def test_far_apart_clients_have_finite_ratios() -> None:
    centres = np.array([0.0, 400.0, -400.0])
    owner = np.repeat(np.arange(3), 20)
    x = centres[owner].astype(np.float32)
    data = dataset(
        (20, 20, 20), x=torch.from_numpy(x)[:, None],
        log_densities=torch.from_numpy(norm.logpdf(x[:, None], centres)),
    )  # fmt: skip
    ratio = by_owner(data).log_ratio
    assert ratio is not None
    # At its own centre a client's law is all there is: p/q is its share of the training rows.
    np.testing.assert_allclose(ratio, np.log(1 / 3), rtol=1e-6)


def test_fewer_rows_keep_the_truth_and_what_changes_samples_forgets_it() -> None:
    assert by_owner(samples=120).log_ratio is not None
    assert by_owner(public=20).log_ratio is not None
    noise = {"kind": "noise", "clip": False}
    for changes in ({"skew": [noise]}, {"features": {"top": 1}}, {"features": {"scale": "client"}}):
        assert by_owner(**changes).log_ratio is None
    federation = by_owner()
    assert federation.with_data(x=federation.x + 1).log_ratio is None
    assert federation.with_data(clients=federation.clients[:1]).log_ratio is None
    assert federation.with_data(odd=("ann",)).log_ratio is federation.log_ratio


@pytest.mark.parametrize("partition", ["iid", "dirichlet", "shards"])
def test_only_owners_have_the_law_of_an_owner(partition: str) -> None:
    made = build(dataset(), partition=partition, clients=4, seed=0, knobs=None)
    assert made.log_ratio is None
    assert made.same_law == (partition == "iid")


def test_real_data_have_no_known_ratio_and_a_known_one_is_part_of_the_data() -> None:
    federation = make_federation(make_config({"federation": {"normalise": "unit"}}))
    assert federation.log_ratio is None
    assert sampled_fingerprint(federation) == "41b3194b553f9dd7"
    unknown = by_owner(dataset(log_densities=None))
    assert fingerprint(by_owner()) != fingerprint(unknown)


def test_some_classes_of_a_law_are_another_law() -> None:
    whole = load("gaussian-clients", size=30)
    assert whole.log_densities is not None
    assert load("gaussian-clients", size=30, classes=[1]).log_densities is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"log_densities": torch.zeros(199, 3)}, r"shape \[199, 3\] do not fit 200 samples of 3"),
        ({"log_densities": torch.zeros(200, 2)}, r"shape \[200, 2\] do not fit 200 samples of 3"),
        ({"owner": None}, "do not fit 200 samples of 0 owners"),
    ],
)
def test_densities_that_fit_no_owner_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        dataset(**fields)


def test_ratios_that_fit_no_sample_are_refused() -> None:
    with pytest.raises(DataError, match="toy: 3 log ratios for 4 samples"):
        Federation(
            "toy", torch.zeros(4, 1), torch.zeros(4, dtype=torch.int64), ("a",),
            (Client("ann", np.arange(4)),), log_ratio=torch.zeros(3),
        )  # fmt: skip
