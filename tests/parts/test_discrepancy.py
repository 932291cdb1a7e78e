"""Label discrepancies against scipy, weights made of discrepancies by hand, and what composes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import assert_close, method_holdings, run, toy_federation
from scipy.spatial.distance import cosine
from scipy.stats import entropy, norm

from fedskew import run as run_experiment
from fedskew.cli import main
from fedskew.data.federation import Client, Federation
from fedskew.methods import find
from fedskew.parts.aggregate import Mean, ServerState, Update, normalised
from fedskew.parts.discrepancy import ByDiscrepancy, label_discrepancy
from fedskew.parts.generative import w1_to_normal
from fedskew.parts.step import LearningRate

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


@pytest.mark.parametrize("metric", ["kl", "l1", "l2", "cosine"])
def test_rounding_makes_no_discrepancy_negative(metric: Any) -> None:
    """Below zero means broken, which counts as the largest."""
    for classes in range(2, 101):
        counts = torch.full((classes,), 7.0, dtype=torch.float64)
        assert 0.0 <= label_discrepancy(counts, metric) < 1e-12


def update(client: str, size: int, d: float | None) -> Update:
    reports = {} if d is None else {"discrepancy": {"d": torch.tensor(d, dtype=torch.float64)}}
    return Update(client, {"w": torch.zeros(1)}, size, 1, reports)


STATE = ServerState({"w": torch.zeros(1)})


def weights(updates: list[Update], state: ServerState = STATE, **knobs: Any) -> list[float]:
    known: dict[str, Any] = {"alpha": 0.5, "b": 0.1, "normalise": True, **knobs}
    return normalised(ByDiscrepancy(**known), updates, state)[0]


def test_five_lopsided_clients_and_an_even_one_by_hand() -> None:
    """Shares 1/6; discrepancies 1/5 each and 0: 1/6 - 0.1 + 0.1 five times and 1/6 + 0.1 once,
    in all 1.1: 0.1515 five times and 0.2424."""
    found = weights([*(update(f"c{i}", 10, 0.7) for i in range(5)), update("even", 10, 0.0)])
    assert found == pytest.approx([0.15152] * 5 + [0.24242], abs=1e-4)


def test_discrepancies_as_they_are() -> None:
    """0.25 - 0.5·0.4 + 0 = 0.05 and 0.75 - 0.5·0.1 = 0.70."""
    found = weights([update("a", 1, 0.4), update("b", 3, 0.1)], b=0.0, normalise=False)
    assert found == pytest.approx([0.05 / 0.75, 0.70 / 0.75])


RAW: dict[str, Any] = {"alpha": 0.5, "b": 0.0, "normalise": False}


def remembering(**d: float) -> ServerState:
    found = {f"{client}/d": torch.tensor(v, dtype=torch.float64) for client, v in d.items()}
    return ServerState({"w": torch.zeros(1)}, memory={"discrepancy": found})


def test_what_was_said_earlier_stands_until_something_else_is_said() -> None:
    """0.25 - 0.5·0.4 = 0.05 remembered and 0.75 - 0.5·0.1 = 0.70 now, not 0.75 - 0.5·0.8."""
    found = weights(
        [update("a", 1, None), update("b", 3, 0.1)], remembering(a=0.4, b=0.8, away=9.0), **RAW
    )
    assert found == pytest.approx([0.05 / 0.75, 0.70 / 0.75])


def test_before_anybody_is_measured_sizes_decide() -> None:
    assert weights([update("a", 1, None), update("b", 3, None)]) == [0.25, 0.75]


def test_who_was_never_heard_of_counts_as_the_mean_of_those_who_were() -> None:
    """Shares 1/3: d = 0.1, 0.3 and so 0.2: 1/3 less 0.05, 0.15 and 0.10, in all 0.7."""
    clients = [update("a", 1, 0.1), update("b", 1, 0.3), update("new", 1, None)]
    expected = [(1 / 3 - off) / 0.7 for off in (0.05, 0.15, 0.10)]
    assert weights(clients, **RAW) == pytest.approx(expected)


def test_a_discrepancy_that_could_not_be_computed_counts_as_the_largest() -> None:
    clients = [update("a", 1, 0.1), update("broken", 1, -1.0), update("b", 1, 0.3)]
    expected = [(1 / 3 - off) / 0.65 for off in (0.05, 0.15, 0.15)]
    assert weights(clients, **RAW) == pytest.approx(expected)


def test_a_broken_client_is_not_part_of_the_mean_of_the_others() -> None:
    """The newcomer counts as 0.2, the mean of 0.1 and 0.3; the broken one as 0.3."""
    clients = [
        update("a", 1, 0.1), update("b", 1, 0.3), update("broken", 1, -1.0), update("new", 1, None),
    ]  # fmt: skip
    expected = [(0.25 - off) / 0.55 for off in (0.05, 0.15, 0.15, 0.10)]
    assert weights(clients, **RAW) == pytest.approx(expected)


def test_where_all_are_broken_sizes_decide() -> None:
    found = weights([update("a", 1, -1.0), update("b", 3, -1.0)], **RAW)
    assert found == pytest.approx([0.25, 0.75])


@pytest.mark.parametrize("normalise", [False, True])
def test_without_alpha_weights_are_by_size_whatever_was_measured(normalise: bool) -> None:
    clients = [update("a", 1, 9.0), update("b", 3, 0.0), update("c", 4, -1.0)]
    found = weights(clients, alpha=0.0, b=0.0, normalise=normalise)
    assert found == pytest.approx([0.125, 0.375, 0.5])


@pytest.mark.parametrize("alpha", [0.1, 0.5, 0.9])
def test_a_client_with_everybodys_codes_weighs_more_than_one_with_two_classes(alpha: float) -> None:
    """Ten classes share N(0, 1) by deciles; five clients hold two each, one holds them all."""
    rng = np.random.default_rng(0)
    codes = [norm.ppf(rng.uniform(2 * k / 10, 2 * (k + 1) / 10, 600)) for k in range(5)]
    codes.append(rng.normal(size=600))
    d = [float(w1_to_normal(torch.from_numpy(c)[:, None])) for c in codes]
    found = weights([update(f"c{k}", 600, v) for k, v in enumerate(d)], alpha=alpha, b=0.0,
                    normalise=False)  # fmt: skip
    assert d[5] < 0.1 < 0.4 < min(d[:5])
    assert found[5] > max(found[:5])


def test_where_nobody_has_weight_sizes_take_over_or_the_best_client() -> None:
    clients = [update("a", 1, 9.0), update("b", 3, 8.0)]
    knobs: dict[str, Any] = {"b": 0.0, "normalise": False}
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
    result = run(method_holdings("feddisco", federation=lopsided()), 1)
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
    ours = run(method_holdings("feddisco", knobs=neutral), 2)
    theirs = run(method_holdings(base, knobs={"weights": "size"}), 2)
    assert_close(ours.shared, theirs.shared, 1e-6)
    moved = run(method_holdings("feddisco", knobs={"base": base}, federation=lopsided()), 2)
    still = run(method_holdings(base, knobs={"weights": "size"}, federation=lopsided()), 2)
    name = sorted(moved.shared)[0]
    assert (moved.shared[name] - still.shared[name]).abs().max() > 1e-4


def test_the_base_may_have_settings() -> None:
    recipe = find("feddisco").recipe(base={"name": "fedavg", "server_lr": 0.5})
    assert isinstance(recipe.aggregates, Mean)
    assert recipe.steps == LearningRate(0.5)


def test_a_run_records_the_weights_over_time(tmp_path: Path) -> None:
    settings = {"model": "logistic", "train": {"rounds": 2}, "method": "feddisco"}
    rows = run_experiment(settings, out=tmp_path, draw=False).rows()
    found = [r.value for r in rows if r.metric == "weight" and r.round == 2]
    assert len(found) == 10
    assert sum(found) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        (
            "method.metric=emd",
            "metric of method 'feddisco' must be 'kl', 'l1', 'l2' or 'cosine', not 'emd'.",
        ),
        ("method.alpha=-1", "alpha of method 'feddisco' must be a number of at least 0, not -1."),
        (
            "method.all_zero=first",
            "all_zero of method 'feddisco' must be 'size' or 'best', not 'first'.",
        ),
        ("method.base=local", "base = 'local' does not weigh clients"),
        ("method.base=fedavgg", "unknown method 'fedavgg': did you mean 'fedavg'"),
        (
            "method.base=3",
            "base of method 'feddisco' must be a name or a table like {name = …}, not 3.",
        ),
        ("method.base={mu = 1}", "base must name a method"),
    ],
)
def test_bad_settings_get_one_sentence(
    setting: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["run", "digits", "--set", "method=feddisco", "--set", setting]
    assert main([*arguments, "--out", str(tmp_path)]) == 2
    assert says in capsys.readouterr().err


def test_what_is_known_of_a_client_is_recorded_beside_its_weight() -> None:
    memory = {"discrepancy": {"a/d": torch.tensor(0.5), "a/active": torch.tensor(2.0)}}
    updates = [Update("a", {}, 1, 1), Update("b", {}, 1, 1)]
    rule = ByDiscrepancy(1.0, 0.0, False)
    assert rule.measured(updates, [0.25, 0.75], ServerState({}, memory=memory)) == {
        "a": {"weight": 0.25, "discrepancy": 0.5, "active_dimensions": 2.0},
        "b": {"weight": 0.75},
    }
