"""Weights fixed before training: the rule's, by hand, and those of its controls."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import entropy

from fedskew.errors import ConfigError
from fedskew.parts.aggregate import Mean, ServerState, Update, normalised
from fedskew.parts.discrepancy import ByDiscrepancy, FixedWeights
from fedskew.types import Groups


def handed(**clients: tuple[float, float, float, float]) -> Groups:
    """What a stage leaves: by client its samples, its d, its lot and how uneven its labels are."""

    def column(name: str, place: int) -> dict[str, torch.Tensor]:
        return {
            f"{client}/{name}": torch.tensor(values[place], dtype=torch.float64)
            for client, values in clients.items()
        }

    said = {**column("n", 0), **column("d", 1), **column("lot", 2)}
    return {"discrepancy": said, "label-discrepancy": column("d", 3)}


RULE = ByDiscrepancy(0.5, 0.0, False)
HANDED = handed(a=(10, 0.1, 0.9, 0.3), b=(10, 0.6, 0.2, 1.0), c=(20, 0.3, 0.5, 0.1))
"""The rule gives 0.25 - 0.05 = 0.2, 0.25 - 0.3 < 0 and 0.5 - 0.15 = 0.35."""
HOPELESS = handed(a=(10, 5.0, 0.9, 0.3), b=(10, 4.0, 0.2, 1.0), c=(20, 6.0, 0.5, 0.1))
"""0.25 - 2.5, 0.25 - 2.0 and 0.5 - 3.0: no weight for anybody, b the least bad."""


def evenness(weights: dict[str, float]) -> float:
    return float(entropy(list(weights.values())))


def test_fixed_weights_are_the_rules() -> None:
    assert FixedWeights(RULE).fixed(HANDED) == pytest.approx({"a": 0.2, "b": 0.0, "c": 0.35})


def test_the_best_control_gives_everything_to_whom_the_rule_likes_most() -> None:
    assert FixedWeights(RULE, "best").fixed(HANDED) == {"a": 0.0, "b": 0.0, "c": 1.0}
    assert FixedWeights(RULE, "best").fixed(HOPELESS) == {"a": 0.0, "b": 1.0, "c": 0.0}


def test_the_random_control_keeps_as_many_by_lot_and_weighs_them_by_size() -> None:
    """Two clients have weight; b drew 0.2 and c 0.5, a drew 0.9."""
    assert FixedWeights(RULE, "random").fixed(HANDED) == {"a": 0.0, "b": 10.0, "c": 20.0}
    everybody = {"a": 10.0, "b": 10.0, "c": 20.0}
    assert FixedWeights(RULE, "random").fixed(HOPELESS) == everybody


def test_the_labels_control_follows_labels_and_is_as_uneven_as_the_rule() -> None:
    """By labels c is best, then a, then b; the rule's entropy is that of 0.2 and 0.35."""
    found = FixedWeights(RULE, "labels").fixed(HANDED)
    assert found["c"] / 20 > found["a"] / 10 > found["b"] / 10
    assert evenness(found) == pytest.approx(float(entropy([0.2, 0.35])), abs=0.01)


@pytest.mark.parametrize("alpha", [0.1, 0.25, 0.4, 0.55])
@pytest.mark.parametrize("even", [0.0, 1e-4, 0.02])
def test_the_labels_control_is_as_uneven_where_one_client_has_all_classes(
    even: float, alpha: float
) -> None:
    """Five clients with two of ten classes (KL ln 5) and one with nearly equal shares of all."""
    skewed = {f"c{k}": (10_000.0, 0.25 + 0.01 * k, 0.5, float(np.log(5))) for k in range(5)}
    memory = handed(**skewed, even=(10_000.0, 0.02, 0.5, even))
    rule = FixedWeights(ByDiscrepancy(alpha, 0.0, False))
    target = evenness(rule.fixed(memory))
    found = FixedWeights(rule.rule, "labels").fixed(memory)
    assert evenness(found) == pytest.approx(target, abs=0.02)
    assert found["even"] > max(found[c] for c in skewed)


@pytest.mark.parametrize("seed", range(5))
def test_the_labels_control_is_as_uneven_on_any_clients(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes, d, labels = rng.integers(50, 2000, 8), rng.gamma(1, 0.1, 8), rng.gamma(1, 1.0, 8)
    clients = {f"c{k}": (float(sizes[k]), d[k], 0.5, labels[k]) for k in range(8)}
    rule = ByDiscrepancy(0.6, 0.0, False)
    target = evenness(FixedWeights(rule).fixed(handed(**clients)))
    assert target < entropy(sizes) - 0.05
    found = evenness(FixedWeights(rule, "labels").fixed(handed(**clients)))
    assert found == pytest.approx(target, abs=0.02)


def test_the_labels_control_of_equal_labels_is_by_size() -> None:
    memory = handed(a=(10, 0.1, 0.9, 0.0), b=(30, 0.6, 0.2, 0.0))
    found = FixedWeights(RULE, "labels").fixed(memory)
    assert found["b"] == pytest.approx(3 * found["a"])


def test_the_labels_control_of_weights_that_fall_back_to_sizes_is_no_less_even() -> None:
    """Nobody has weight, so the rule trains by size: its control must not pick one client."""
    found = FixedWeights(RULE, "labels").fixed(HOPELESS)
    assert evenness(found) == pytest.approx(float(entropy([1, 1, 2])), abs=0.01)


def state_with(memory: Groups) -> ServerState:
    return ServerState({"w": torch.zeros(1)}, memory=memory)


STATE = state_with({})
TRIO = [
    Update(client, {"w": torch.zeros(1)}, size, 1)
    for client, size in (("a", 10), ("b", 10), ("c", 20))
]
SIZES_TAKE_OVER = ("no usable aggregation weight: fell back to weights by size",)


def test_clients_without_weight_are_not_asked_and_those_with_it_share_all() -> None:
    rule, state = FixedWeights(RULE), state_with(HANDED)
    assert list(Mean(rule).wanted(["c", "b", "a"], state)) == ["c", "a"]
    found, notes = normalised(rule, [TRIO[2], TRIO[0]], state)
    assert found == pytest.approx([0.35 / 0.55, 0.2 / 0.55])
    assert notes == ()
    assert list(FixedWeights(RULE, "best").wanted(["a", "b", "c"], state)) == ["c"]
    assert list(rule.wanted(["b"], state)) == ["b"]
    assert list(rule.wanted(["stranger", "a"], state)) == ["a"]


def test_where_all_fixed_weights_are_zero_sizes_take_over_with_a_note() -> None:
    state = state_with(HOPELESS)
    assert list(FixedWeights(RULE).wanted(["a", "b", "c"], state)) == ["a", "b", "c"]
    assert normalised(FixedWeights(RULE), TRIO, state) == ([0.25, 0.25, 0.5], SIZES_TAKE_OVER)
    best = FixedWeights(ByDiscrepancy(0.5, 0.0, False, all_zero="best"))
    assert normalised(best, TRIO, state) == ([0.0, 1.0, 0.0], ())


def test_without_any_memory_sizes_decide_and_everybody_is_asked() -> None:
    assert FixedWeights(RULE).fixed({}) == {}
    assert list(FixedWeights(RULE).wanted(["a", "b"], STATE)) == ["a", "b"]
    assert normalised(FixedWeights(RULE), TRIO, STATE) == ([0.25, 0.25, 0.5], ())
    assert FixedWeights(RULE).measured(TRIO, [0.25, 0.25, 0.5], STATE) == {}


@pytest.mark.parametrize("control", ["none", "best", "random", "labels"])
def test_a_broken_client_makes_no_weight_that_is_no_number(control: Any) -> None:
    """Its d counts as 0.3, the largest: 0.25 - 0.15 = 0.10 for b and 0.5 - 0.15 for c."""
    memory = handed(a=(10, 0.1, 0.9, 0.3), b=(10, -1.0, 0.2, 1.0), c=(20, 0.3, 0.5, 0.1))
    found = FixedWeights(RULE, control).fixed(memory)
    assert sum(found.values()) > 0
    assert all(0 <= value < np.inf for value in found.values())
    if control == "none":
        assert found == pytest.approx({"a": 0.2, "b": 0.1, "c": 0.35})


def test_everybodys_numbers_are_recorded_also_of_those_who_were_not_asked() -> None:
    memory = {**HANDED, "discrepancy": {**HANDED["discrepancy"], "b/active": torch.tensor(1.0)}}
    found = FixedWeights(RULE).measured([TRIO[0], TRIO[2]], [0.4, 0.6], state_with(memory))
    assert found == {
        "a": {"weight": 0.4, "discrepancy": 0.1},
        "b": {"weight": 0.0, "discrepancy": 0.6, "active_dimensions": 1.0},
        "c": {"weight": 0.6, "discrepancy": 0.3},
    }


def test_an_unknown_control_is_told_which_there_are() -> None:
    with pytest.raises(ConfigError) as raised:
        FixedWeights(RULE, "worst")  # type: ignore[arg-type]
    assert str(raised.value) == "control must be 'none', 'best', 'random' or 'labels', not 'worst'."
