"""What a run tells about its sample weights, held against numbers derived by other means."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from helpers import left_by, toy_federation
from scipy import stats
from torch import Tensor

from fedskew.data.federation import Federation
from fedskew.methods.sample_weights import SampleWeightsLeft, agreement
from fedskew.parts.sample_weights import ALL_EQUAL, FINE
from fedskew.types import Groups


def kept(
    weights: Any, entropy: float = np.nan, power: float = np.nan, trouble: int = FINE
) -> Groups:
    """A client's private state after its weights were estimated."""
    numbers = {"entropy": entropy, "power": power, "trouble": float(trouble)}
    return {
        "sample_weight": {"w": torch.as_tensor(weights, dtype=torch.float32)},
        "weighing": {name: torch.tensor(v, dtype=torch.float64) for name, v in numbers.items()},
    }


def with_truth(federation: Federation, seed: int = 3) -> Federation:
    """Any log ratios at the rows of seen clients; nobody knows those of others."""
    rng = np.random.default_rng(seed)
    log_ratio = torch.full((len(federation.y),), torch.nan)
    for client in federation.clients:
        for rows in (client.train, client.validation, client.test):
            log_ratio[torch.from_numpy(rows)] = torch.from_numpy(
                rng.normal(size=len(rows)).astype(np.float32)
            )
    return federation.with_data(log_ratio=log_ratio)


def told(federation: Federation, private: Mapping[str, Groups]) -> dict[str, Any]:
    left = left_by(SampleWeightsLeft(), federation, private)
    return {client: each.numbers for client, each in left.items()}


def near(federation: Federation, seed: int = 4) -> dict[str, Groups]:
    """Weights that know something of the truth, with ties as clipping makes them."""
    rng = np.random.default_rng(seed)
    assert federation.log_ratio is not None
    found = {}
    for client in federation.clients:
        true = federation.log_ratio[torch.from_numpy(client.train)].numpy()
        noisy = np.clip(0.5 * true + rng.normal(size=len(true)), -1.0, 1.0)
        found[client.name] = kept(np.exp(noisy) / np.exp(noisy).mean())
    return found


def test_a_client_is_told_by_its_size_worth_range_entropy_and_what_went_wrong() -> None:
    federation = toy_federation(sizes=(2, 6))
    private = {
        "c0": kept([0.5, 1.5], entropy=40.0, power=0.3),
        "c1": kept(np.ones(6), entropy=20.0, trouble=ALL_EQUAL),
    }
    found = told(federation, private)
    assert found == {
        # (0.5 + 1.5)² / (0.25 + 2.25) = 1.6; two of eight training samples are its own.
        "c0": {"n": 2, "effective": pytest.approx(1.6), "least": 0.5, "most": 1.5,
               "entropy": 40.0, "power": 0.3, "trouble": 0,
               "leak": {"share": 0.25, "bits": 10.0}},
        "c1": {"n": 6, "effective": 6.0, "least": 1.0, "most": 1.0,
               "entropy": 20.0, "power": None, "trouble": 3,
               "leak": {"share": 0.75, "bits": 15.0}},
    }  # fmt: skip


def test_without_weights_there_is_nothing_to_tell() -> None:
    private: dict[str, Groups] = {"c0": {"model": {}}, "c1": {}}
    assert told(toy_federation(sizes=(2, 6)), private) == {}


def test_a_client_without_weights_is_left_out_but_its_samples_count_in_shares() -> None:
    found = told(toy_federation(sizes=(2, 6)), {"c0": kept([1.0, 2.0], entropy=8.0)})
    assert list(found) == ["c0"]
    assert found["c0"]["leak"] == {"share": 0.25, "bits": 2.0}


def test_real_valued_samples_have_no_entropy_and_no_bound() -> None:
    found = told(toy_federation(sizes=(2, 6)), {"c0": kept([1.0, 2.0])})
    assert found["c0"]["entropy"] is None
    assert found["c0"]["leak"] is None


def test_the_truth_is_compared_as_scipy_does() -> None:
    federation = with_truth(toy_federation())
    private = near(federation)
    found = told(federation, private)
    assert federation.log_ratio is not None
    for client in federation.clients:
        weights = private[client.name]["sample_weight"]["w"].numpy().astype(np.float64)
        true = federation.log_ratio.numpy()[client.train].astype(np.float64)
        best = np.exp(true) / np.exp(true).mean()
        assert found[client.name]["truth"] == {
            "pearson": pytest.approx(stats.pearsonr(np.log(weights), true).statistic),
            "spearman": pytest.approx(stats.spearmanr(np.log(weights), true).statistic),
            "slope": pytest.approx(stats.linregress(np.log(weights), true).slope),
            "effective": pytest.approx(best.sum() ** 2 / (best**2).sum()),
        }


def test_the_slope_says_how_far_the_truth_goes_where_the_estimate_goes_one() -> None:
    estimated = torch.tensor([-1.0, 0.0, 1.0, 2.0])
    found = agreement(estimated.exp(), 0.5 * estimated + 7.0)
    assert found["slope"] == pytest.approx(0.5)
    assert found["pearson"] == pytest.approx(1.0)
    assert found["spearman"] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("weights", "log_ratio", "slope"),
    [
        ([1.0, 1.0, 1.0], [0.1, 0.2, 0.3], None),
        ([0.5, 1.0, 1.5], [0.2, 0.2, 0.2], 0.0),
        ([1.0], [0.2], None),
    ],
)
def test_what_never_varies_correlates_with_nothing(
    weights: list[float], log_ratio: list[float], slope: float | None
) -> None:
    found = agreement(torch.tensor(weights), torch.tensor(log_ratio))
    assert found["pearson"] is None
    assert found["spearman"] is None
    assert found["slope"] == (slope if slope is None else pytest.approx(slope, abs=1e-12))


def test_true_ratios_no_exponential_can_hold_still_have_a_worth() -> None:
    found = agreement(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([5000.0, 5000.0, -5000.0]))
    assert found["effective"] == pytest.approx(2.0)


@pytest.mark.parametrize("known", [True, False])
def test_all_that_is_told_can_be_written_as_strict_json(known: bool) -> None:
    federation = toy_federation()
    if known:
        federation = with_truth(federation)
    private = {c.name: kept(np.ones(len(c.train)), trouble=ALL_EQUAL) for c in federation.clients}
    found = told(federation, private)
    assert ("truth" in found["c0"]) == known
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_every_weight_is_left_with_its_row_label_and_truth() -> None:
    federation = with_truth(toy_federation())
    private = near(federation)
    left = left_by(SampleWeightsLeft(), federation, private)
    assert list(left) == [client.name for client in federation.clients]
    assert federation.log_ratio is not None
    for client in federation.clients:
        found = left[client.name].arrays
        assert set(found) == {"client", "row", "weight", "truth", "label"}
        assert found["row"].dtype == np.int64
        assert set(found["client"].tolist()) == {client.name}
        assert found["row"].tolist() == client.train.tolist()
        assert found["label"].tolist() == federation.y.numpy()[client.train].tolist()
        saved: Tensor = private[client.name]["sample_weight"]["w"]
        assert found["weight"].tolist() == saved.tolist()
        assert found["truth"].tolist() == federation.log_ratio.numpy()[client.train].tolist()


def test_an_unknown_truth_is_left_as_nan() -> None:
    federation = toy_federation(sizes=(2, 6))
    (left,) = left_by(SampleWeightsLeft(), federation, {"c0": kept([0.5, 1.5])}).values()
    assert left.arrays["weight"].tolist() == [0.5, 1.5]
    assert np.isnan(left.arrays["truth"]).all()
