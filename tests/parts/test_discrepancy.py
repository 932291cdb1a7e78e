"""Label discrepancies against scipy, FedDisco's weights by hand, and what it composes with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import assert_close, method_site, run, toy_federation
from scipy.spatial.distance import cosine
from scipy.stats import entropy

from fedskew import run as run_experiment
from fedskew.cli import main
from fedskew.data.federation import Client, Federation
from fedskew.parts.aggregate import Mean, ServerState, Update, normalised
from fedskew.parts.discrepancy import ByDiscrepancy, label_discrepancy
from fedskew.recipe import find

COUNTS = [7.0, 0.0, 2.0, 11.0]
SHARES = np.array(COUNTS) / sum(COUNTS)
EQUAL = np.full(4, 0.25)


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("kl", entropy(SHARES, EQUAL)),
        ("l1", np.abs(SHARES - EQUAL).sum()),
        ("l2", np.linalg.norm(SHARES - EQUAL)),
        ("cosine", cosine(SHARES, EQUAL)),
    ],
)
def test_discrepancies_are_what_scipy_says(metric: Any, expected: float) -> None:
    assert label_discrepancy(torch.tensor(COUNTS), metric) == pytest.approx(float(expected))
    assert label_discrepancy(torch.ones(4), metric) == pytest.approx(0.0, abs=1e-7)


def update(client: str, size: int, d: float) -> Update:
    return Update(client, {"w": torch.zeros(1)}, size, 1, {"discrepancy": {"d": torch.tensor(d)}})


STATE = ServerState({"w": torch.zeros(1)})


def weights(updates: list[Update], **knobs: Any) -> list[float]:
    known = {"alpha": 0.5, "b": 0.1, "normalise": True, **knobs}
    return normalised(ByDiscrepancy(**known), updates, STATE)[0]


def test_five_lopsided_clients_and_an_even_one_by_hand() -> None:
    """Shares 1/6; discrepancies 1/5 each and 0: 1/6 - 0.1 + 0.1 five times and 1/6 + 0.1 once,
    in all 1.1: 0.1515 five times and 0.2424."""
    found = weights([*(update(f"c{i}", 10, 0.7) for i in range(5)), update("even", 10, 0.0)])
    assert found == pytest.approx([0.15152] * 5 + [0.24242], abs=1e-4)


def test_discrepancies_as_they_are() -> None:
    """0.25 - 0.5·0.4 + 0 = 0.05 and 0.75 - 0.5·0.1 = 0.70."""
    found = weights([update("a", 1, 0.4), update("b", 3, 0.1)], b=0.0, normalise=False)
    assert found == pytest.approx([0.05 / 0.75, 0.70 / 0.75])


def test_where_nobody_has_weight_sizes_take_over_or_the_best_client() -> None:
    clients = [update("a", 1, 9.0), update("b", 3, 8.0)]
    knobs = {"b": 0.0, "normalise": False}
    by_size, notes = normalised(ByDiscrepancy(0.5, 0.0, False), clients, STATE)
    assert by_size == pytest.approx([0.25, 0.75])
    assert notes == ("no usable aggregation weight: fell back to weights by size",)
    assert weights(clients, all_zero="best", **knobs) == [0.0, 1.0]


def test_equal_labels_everywhere_are_weighed_by_size() -> None:
    found = weights([update("a", 1, 0.0), update("b", 3, 0.0)], b=0.0)
    assert found == pytest.approx([0.25, 0.75])


def lopsided() -> Federation:
    """Three clients of the same size: all classes, two classes, one class."""
    federation = toy_federation((60, 60, 60))
    y = federation.y.numpy()
    pools = [np.flatnonzero(y == k) for k in range(3)]
    even = np.concatenate([pool[:4] for pool in pools])
    two = np.concatenate([pool[4:10] for pool in pools[:2]])
    return federation.with_data(
        clients=(Client("even", even), Client("one", pools[0][10:22]), Client("two", two)),
        unseen=(),
    )


def test_the_more_lopsided_a_client_the_less_it_weighs() -> None:
    result = run(method_site("feddisco", federation=lopsided()), 1)
    measured = result.progress.state.measured
    even, one, two = (measured[name] for name in ("even", "one", "two"))
    assert even["discrepancy"] == pytest.approx(0.0, abs=1e-6)
    assert two["discrepancy"] == pytest.approx(np.log(1.5), abs=1e-6)
    assert one["discrepancy"] == pytest.approx(np.log(3.0), abs=1e-6)
    assert even["weight"] > two["weight"] > one["weight"] > 0
    assert sum(m["weight"] for m in measured.values()) == pytest.approx(1.0)


@pytest.mark.parametrize("base", ["fedprox", "scaffold", "fednova", "fedbn", "ditto", "fedper"])
def test_it_replaces_the_weights_of_other_methods(base: str) -> None:
    """Without discrepancy and offset it is the base by size, and with them it is not."""
    neutral = {"base": base, "alpha": 0.0, "b": 0.0}
    ours = run(method_site("feddisco", knobs=neutral), 2)
    theirs = run(method_site(base, knobs={"weights": "size"}), 2)
    assert_close(ours.shared, theirs.shared, 1e-6)
    moved = run(method_site("feddisco", knobs={"base": base}, federation=lopsided()), 2)
    still = run(method_site(base, knobs={"weights": "size"}, federation=lopsided()), 2)
    name = sorted(moved.shared)[0]
    assert (moved.shared[name] - still.shared[name]).abs().max() > 1e-4


def test_the_base_may_have_settings() -> None:
    recipe = find("feddisco").recipe(base={"name": "fedavg", "server_lr": 0.5})
    assert isinstance(recipe.aggregates, Mean)
    assert recipe.aggregates.server_lr == 0.5


def test_a_run_records_the_weights_over_time(tmp_path: Path) -> None:
    settings = {"model": "logistic", "train": {"rounds": 2}, "method": "feddisco"}
    rows = run_experiment(settings, out=tmp_path, draw=False).rows()
    found = [r.value for r in rows if r.metric == "weight" and r.round == 2]
    assert len(found) == 10
    assert sum(found) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("method.metric=emd", "metric must be one of kl, l1, l2, cosine, not 'emd'"),
        ("method.alpha=-1", "alpha must not be negative"),
        ("method.all_zero=first", "all_zero must be 'size' or 'best'"),
        ("method.base=local", "base = 'local' weighs no clients"),
        ("method.base=fedavgg", "unknown method 'fedavgg': did you mean 'fedavg'"),
        ("method.base=3", "base must name a method, like 'fedprox', not 3"),
        ("method.base={mu = 1}", "base must name a method"),
    ],
)
def test_bad_settings_get_one_sentence(
    setting: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["run", "digits", "--set", "method=feddisco", "--set", setting]
    assert main([*arguments, "--out", str(tmp_path)]) == 2
    assert says in capsys.readouterr().err
