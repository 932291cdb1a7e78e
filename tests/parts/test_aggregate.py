"""Aggregators on updates small enough to check by hand, and by properties on any."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from helpers import opening
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedskew.parts.aggregate import (
    Apart,
    BySize,
    BySteps,
    Mean,
    MeanWithVariates,
    NormalisedMean,
    ServerState,
    Uniform,
    Update,
    Weighting,
    normalised,
)

STATE = ServerState({"w": torch.tensor([0.0, 0.0])})


def update(client: str, value: Sequence[float], size: int = 1, **others: Tensor) -> Update:
    return Update(client, {"w": torch.tensor(value), **others}, size, steps=1)


ANN, BOB = update("ann", [1.0, 2.0], size=1), update("bob", [5.0, -2.0], size=3)


@dataclass(frozen=True)
class Given(Weighting):
    values: tuple[float, ...]

    def weights(self, updates: Sequence[Update], state: ServerState) -> Tensor:
        return torch.tensor(self.values, dtype=torch.float64)


def test_the_mean_weighs_by_size_or_everyone_the_same() -> None:
    by_size = Mean().aggregate(STATE, [ANN, BOB], 2)
    assert by_size.shared["w"].tolist() == [4.0, -1.0]
    uniform = Mean(Uniform()).aggregate(STATE, [ANN, BOB], 2)
    assert uniform.shared["w"].tolist() == [3.0, 0.0]


def test_the_mean_may_weigh_by_steps() -> None:
    """Three steps and one, whatever the sizes: (3·1 + 5)/4 and (3·2 - 2)/4."""
    updates = [
        Update("ann", ANN.tensors, size=1, steps=3),
        Update("bob", BOB.tensors, size=1000, steps=1),
    ]
    assert normalised(BySteps(), updates, STATE) == ([0.75, 0.25], ())
    assert Mean(BySteps()).aggregate(STATE, updates, 2).shared["w"].tolist() == [2.0, 1.0]


@dataclass(frozen=True)
class Measuring(Uniform):
    def measured(
        self, updates: Sequence[Update], weights: Sequence[float], state: ServerState
    ) -> dict[str, dict[str, float]]:
        return {"ann": {"weight": weights[0]}}


def test_a_mean_may_record_how_far_every_clients_weights_are_from_it() -> None:
    """The mean of [[3, 4], [0, 0]] and [[0, 0], [3, -4]] has length √12.5, as has either
    difference: 1. Of [6, 8] and [0, 0] it is [3, 4]: also 1. Biases and counters are left out."""
    entries = {
        "ann": ([[3.0, 4.0], [0.0, 0.0]], [[6.0, 8.0]], 9.0),
        "bob": ([[0.0, 0.0], [3.0, -4.0]], [[0.0, 0.0]], -9.0),
        "cyd": ([[1.5, 2.0], [1.5, -2.0]], [[3.0, 4.0]], 0.0),
    }
    updates = [
        Update(
            client,
            {"w": torch.tensor(w), "v": torch.tensor(v), "bias": torch.tensor([bias]),
             "count": torch.tensor([[7]])},
            1, 1,
        )
        for client, (w, v, bias) in entries.items()
    ]  # fmt: skip
    zeros = {name: torch.zeros_like(t) for name, t in updates[0].tensors.items()}
    state = ServerState(zeros, buffers=frozenset({"count"}))
    after = Mean(Measuring(), divergence=True).aggregate(state, updates, 3)
    one, none = ({"divergence w": d, "divergence v": d} for d in (1.0, 0.0))
    assert after.measured["ann"] == pytest.approx({**one, "weight": 1 / 3})
    assert after.measured["bob"] == pytest.approx(one)
    assert after.measured["cyd"] == pytest.approx(none, abs=1e-6)
    assert after.shared["v"].tolist() == [[3.0, 4.0]]
    assert Mean(Uniform()).aggregate(state, updates, 3).measured == {}


def test_divergence_from_a_mean_of_zero_is_a_number() -> None:
    """A client at [[1]] and one at [[-1]] differ without end from their mean; NaN it is not."""
    updates = [Update(c, {"w": torch.tensor([[v]])}, 1, 1) for c, v in (("a", 1.0), ("b", -1.0))]
    state = ServerState({"w": torch.zeros(1, 1)})
    found = Mean(divergence=True).aggregate(state, updates, 2).measured
    assert found["a"]["divergence w"] == found["b"]["divergence w"] > 1e30
    same = [Update(c, {"w": torch.zeros(1, 1)}, 1, 1) for c in "ab"]
    found = Mean(divergence=True).aggregate(state, same, 2).measured
    assert found["a"] == {"divergence w": 0.0}


def test_weights_are_normalised_to_one() -> None:
    weights, notes = normalised(Given((1.0, 7.0)), [ANN, BOB], STATE)
    assert weights == [0.125, 0.875]
    assert notes == ()


@pytest.mark.parametrize(
    "useless", [(0.0, 0.0), (float("nan"), 1.0), (float("inf"), 1.0), (-1.0, 0.5)]
)
def test_useless_weights_fall_back_to_sizes_and_say_so(useless: tuple[float, float]) -> None:
    state = Mean(Given(useless)).aggregate(STATE, [ANN, BOB], 2)
    assert state.shared["w"].tolist() == [4.0, -1.0]
    assert state.notes == ("no usable aggregation weight: fell back to weights by size",)
    assert Mean().aggregate(state, [ANN, BOB], 2).notes == ()


def test_the_mean_is_of_parameters_and_statistics_and_copies_counters() -> None:
    state = ServerState(
        {"w": torch.zeros(2), "mean": torch.zeros(1), "count": torch.tensor(0)},
        buffers=frozenset({"mean", "count"}),
    )
    updates = [
        update("ann", [1.0, 2.0], mean=torch.tensor([2.0]), count=torch.tensor(7)),
        update("bob", [5.0, -2.0], mean=torch.tensor([4.0]), count=torch.tensor(9)),
    ]
    after = Mean().aggregate(state, updates, 2)
    assert after.shared["w"].tolist() == [3.0, 0.0]
    assert after.shared["mean"].tolist() == [3.0]
    assert after.shared["count"].dtype == torch.int64
    assert int(after.shared["count"]) == 7


def test_normalised_mean_averages_buffers_and_normalises_only_parameters() -> None:
    """a = 1 and 3, p = 1/4 and 3/4: τ_eff = 2.5; w = 2.5·(1/4·1 + 3/4·5/3) = 3.75."""
    state = ServerState(
        {"w": torch.zeros(1), "mean": torch.zeros(1), "count": torch.tensor(0)},
        buffers=frozenset({"mean", "count"}),
    )
    updates = [
        Update(
            name,
            {"w": torch.tensor([w]), "mean": torch.tensor([mean]), "count": torch.tensor(4)},
            size,
            steps,
            {"length": {"a": torch.tensor(float(steps))}},
        )
        for name, w, mean, size, steps in (("ann", 1.0, 2.0, 1, 1), ("bob", 5.0, 6.0, 3, 3))
    ]
    after = NormalisedMean().aggregate(state, updates, 2)
    assert after.shared["w"].tolist() == pytest.approx([3.75])
    assert after.shared["mean"].tolist() == pytest.approx([5.0])
    assert int(after.shared["count"]) == 4


def test_variates_move_by_the_share_of_clients_that_took_part() -> None:
    """Two of ten clients change theirs by 1 and 4: c moves by 5/10, from the start at 0."""
    aggregator = MeanWithVariates()
    memory = aggregator.start(opening({"w": torch.ones(1)}))
    assert memory["control"]["w"].tolist() == [0.0]
    state = ServerState({"w": torch.zeros(1)}, memory=memory)
    updates = [
        Update(c, {"w": torch.tensor([w])}, 1, 1, {"control_change": {"w": torch.tensor([d])}})
        for c, w, d in (("c1", 1.0, 1.0), ("c2", 3.0, 4.0))
    ]
    after = aggregator.aggregate(state, updates, clients=10)
    assert after.shared["w"].tolist() == [2.0]
    assert after.memory["control"]["w"].tolist() == [0.5]
    assert state.memory["control"]["w"].tolist() == [0.0]
    assert aggregator.broadcasts == ("control",)


def test_apart_combines_nothing() -> None:
    assert Apart().aggregate(STATE, [ANN, BOB], 2).shared["w"].tolist() == [0.0, 0.0]


def test_entries_nobody_sent_stay_as_they_were() -> None:
    state = ServerState({"w": torch.zeros(2), "frozen": torch.ones(1)})
    assert Mean().aggregate(state, [ANN], 1).shared["frozen"].tolist() == [1.0]


def test_aggregation_never_changes_what_clients_sent_or_the_state_before() -> None:
    state = ServerState({"w": torch.tensor([9.0, 9.0])})
    for aggregator in (Mean(), Mean(Uniform())):
        aggregator.aggregate(state, [ANN, BOB], 2)
    assert state.shared["w"].tolist() == [9.0, 9.0]
    assert ANN.tensors["w"].tolist() == [1.0, 2.0]


def test_personal_models_are_sent_to_their_client_and_the_shared_one_to_all_others() -> None:
    own = {"w": torch.ones(2)}
    state = ServerState(STATE.shared, personal={"ann": own})
    assert state.sent_to("ann") is own
    assert state.sent_to("bob") is STATE.shared


values = st.floats(-1e3, 1e3, width=32)
several = st.lists(st.tuples(values, values, st.integers(1, 1000)), min_size=1, max_size=6)


def updates_of(drawn: list[tuple[float, float, int]]) -> list[Update]:
    return [update(f"c{i}", [a, b], size) for i, (a, b, size) in enumerate(drawn)]


@given(several)
def test_a_mean_lies_between_the_smallest_and_the_largest(
    drawn: list[tuple[float, float, int]],
) -> None:
    updates = updates_of(drawn)
    stack = torch.stack([u.tensors["w"] for u in updates])
    low, high = stack.min(dim=0).values, stack.max(dim=0).values
    for weighting in (BySize(), Uniform()):
        mean = Mean(weighting).aggregate(STATE, updates, 6).shared["w"]
        slack = 1e-5 * stack.abs().max() + 1e-30
        assert bool((mean >= low - slack).all())
        assert bool((mean <= high + slack).all())


@given(several, st.randoms(use_true_random=False))
def test_the_order_of_updates_does_not_matter(
    drawn: list[tuple[float, float, int]], random: st.DataObject
) -> None:
    updates = updates_of(drawn)
    shuffled = list(updates)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    for aggregator in (Mean(), Mean(Uniform(), 0.5)):
        ours = aggregator.aggregate(STATE, updates, 6).shared["w"]
        theirs = aggregator.aggregate(STATE, shuffled, 6).shared["w"]
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-3)


@given(several, st.floats(0.1, 1e6))
def test_the_scale_of_weights_does_not_matter_and_they_sum_to_one(
    drawn: list[tuple[float, float, int]], scale: float
) -> None:
    updates = updates_of(drawn)
    given_weights = Given(tuple(scale * u.size for u in updates))
    weights, notes = normalised(given_weights, updates, STATE)
    assert notes == ()
    assert sum(weights) == pytest.approx(1.0)
    assert weights == pytest.approx(normalised(BySize(), updates, STATE)[0])
