"""Steps of the server towards a target, on numbers small enough to check by hand."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from helpers import assert_close, assert_same_bits, make_holdings, method_holdings, run

from fedskew.errors import ConfigError, RunError
from fedskew.federate.recipe import Recipe
from fedskew.methods import find
from fedskew.parts.aggregate import ServerState
from fedskew.parts.step import LearningRate, Reptile, Step, Whole, stepped
from fedskew.types import Groups, Tensors

BEFORE = ServerState(
    {"w": torch.tensor([1.0, 1.0]), "mean": torch.zeros(1), "count": torch.tensor(0)},
    memory={"aggregator's": {"a": torch.zeros(1)}},
    buffers=frozenset({"mean", "count"}),
    round=3,
)
AIM = {"w": torch.tensor([3.0, -1.0]), "mean": torch.tensor([4.0]), "count": torch.tensor(7)}
TARGET = replace(BEFORE, shared=AIM, memory={"aggregator's": {"a": torch.ones(1)}})


@dataclass(frozen=True)
class Momentum(Step):
    """v ← βv + (target - x), x ← x + lr·v."""

    beta: float = 0.9
    lr: float = 1.0

    def start(self, parameters: Tensors) -> Groups:
        return {"velocity": {n: torch.zeros_like(t) for n, t in parameters.items()}}

    def step(
        self, shared: Tensors, target: Tensors, memory: Groups, round_number: int
    ) -> tuple[Tensors, Groups]:
        old = memory["velocity"]
        velocity = {n: self.beta * old[n] + (target[n] - x) for n, x in shared.items()}
        return {n: x + self.lr * velocity[n] for n, x in shared.items()}, {"velocity": velocity}


@pytest.mark.parametrize("step", [Whole(), LearningRate(1.0), LearningRate(), Reptile(1.0)])
def test_the_whole_way_ends_at_the_target_bit_for_bit(step: Step) -> None:
    after = stepped(step, BEFORE, TARGET)
    assert_same_bits(after.shared, AIM)
    assert after.memory == TARGET.memory


def test_a_part_of_the_way_moves_parameters_and_takes_statistics_as_they_are() -> None:
    after = stepped(LearningRate(0.25), BEFORE, TARGET).shared
    assert after["w"].tolist() == [1.5, 0.5]
    assert after["mean"].tolist() == [4.0]
    assert after["count"].dtype == torch.int64
    assert int(after["count"]) == 7
    assert BEFORE.shared["w"].tolist() == [1.0, 1.0]
    assert AIM["w"].tolist() == [3.0, -1.0]


def test_a_reptile_step_shrinks_from_round_to_round() -> None:
    first = Reptile(0.35, first=1.0, decay=0.9)
    assert [first.lr(t) for t in (1, 2, 3, 4)] == pytest.approx([1.0, 0.35, 0.315, 0.2835])
    plain = Reptile(0.35, decay=0.9)
    assert [plain.lr(t) for t in (1, 2, 3)] == pytest.approx([0.35, 0.315, 0.2835])
    assert [Reptile().lr(t) for t in (1, 50)] == [0.35, 0.35]
    third = stepped(plain, BEFORE, TARGET).shared["w"].tolist()
    assert third == pytest.approx([1 + 2 * 0.2835, 1 - 2 * 0.2835])


def test_what_an_aggregator_wants_as_it_is_nobody_steps_towards() -> None:
    before = replace(BEFORE, shared={**BEFORE.shared, "shown": torch.zeros(1)})
    shown = {**AIM, "shown": torch.tensor([8.0])}
    target = replace(before, shared=shown, unstepped=frozenset({"shown"}))
    after = stepped(LearningRate(0.5), before, target)
    assert after.shared["shown"].tolist() == [8.0]
    assert after.shared["w"].tolist() == [2.0, 0.0]
    assert after.unstepped == frozenset()


def test_a_step_remembers_apart_from_the_aggregator() -> None:
    """Twice towards (3, -1) from (1, 1): velocities (2, -2), then 0.9·(2, -2) + 0."""
    step = Momentum()
    memory = {"step velocity": {"w": torch.zeros(2)}, "velocity": {"w": torch.full((2,), 9.0)}}
    once = stepped(step, replace(BEFORE, memory=memory), replace(TARGET, memory=memory))
    assert once.shared["w"].tolist() == [3.0, -1.0]
    assert once.memory["step velocity"]["w"].tolist() == [2.0, -2.0]
    assert once.memory["velocity"]["w"].tolist() == [9.0, 9.0]
    twice = stepped(step, once, replace(once, shared=AIM))
    assert twice.shared["w"].tolist() == pytest.approx([4.8, -2.8])
    assert memory["step velocity"]["w"].tolist() == [0.0, 0.0]


def test_a_step_that_loses_a_parameter_is_found_out() -> None:
    class Forgetful(Step):
        def step(
            self, shared: Tensors, target: Tensors, memory: Groups, round_number: int
        ) -> tuple[Tensors, Groups]:
            return {}, {}

    with pytest.raises(RunError, match="step Forgetful must return every parameter it is given"):
        stepped(Forgetful(), BEFORE, TARGET)


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fednova", "fedgma", "fedper", "fedbn"])
def test_a_server_learning_rate_is_a_part_of_the_way_to_the_targets_of_all(name: str) -> None:
    """One round from the same start: half of the way to where the whole step ends."""
    holdings = method_holdings(name)
    whole = run(holdings, 1).shared
    half = run(method_holdings(name, knobs={"server_lr": 0.5}), 1).shared
    middle = {
        n: (t.double() + holdings.plan.initial[n].double()).float() / 2 for n, t in whole.items()
    }
    assert_close(half, middle, 1e-6)


@pytest.mark.parametrize("name", ["scaffold", "fednova", "fedgma"])
def test_reptile_goes_towards_any_target_and_with_eta_one_all_the_way(name: str) -> None:
    theirs = run(method_holdings(name, "batch-norm", {"weights": "uniform"}), 2).everything()
    whole = {"base": name, "eta": 1.0}
    assert_same_bits(
        run(method_holdings("fedreptile", "batch-norm", whole), 2).everything(), theirs
    )
    lr = run(method_holdings(name, "batch-norm", {"weights": "uniform", "server_lr": 0.35}), 2)
    ours = run(method_holdings("fedreptile", "batch-norm", {"base": name}), 2)
    assert_same_bits(ours.everything(), lr.everything())


@pytest.mark.parametrize("name", ["scaffold", "fednova"])
def test_momentum_of_the_server_goes_with_other_methods_targets(name: str) -> None:
    """β = 0 is the method itself. With β = 0.9 the first round is the same, the second has moved
    0.9 of the first round's way further than the second target."""
    recipe = find(name).recipe()
    plain = run(make_holdings(recipe), 2)
    still = run(make_holdings(replace(recipe, steps=Momentum(beta=0.0))), 2)
    assert_close(still.shared, plain.shared, 1e-6)
    holdings = make_holdings(replace(recipe, steps=Momentum()))
    moved = run(holdings, 2)
    first, second = (progress.state.shared for progress in moved.journal.states)
    assert_close(first, plain.journal.states[0].state.shared, 1e-6)
    target = plain.shared
    expected = {n: t + 0.9 * (first[n] - holdings.plan.initial[n]) for n, t in target.items()}
    assert_close(second, expected, 1e-5)


def test_a_step_over_a_model_for_each_client_is_refused() -> None:
    recipe = find("fedshibu").recipe()
    with pytest.raises(ConfigError, match="a server step needs one target for all clients"):
        replace(recipe, steps=LearningRate(0.5))
    assert replace(recipe, steps=LearningRate(1.0)).aggregates == recipe.aggregates


@pytest.mark.parametrize("lr", [0.0, -1.0, float("nan"), float("inf")])
def test_a_server_learning_rate_that_goes_nowhere_is_refused(lr: float) -> None:
    for name in ("fedavg", "scaffold", "fednova", "fedgma", "fedbn", "ditto", "fedper", "vae"):
        with pytest.raises(
            ConfigError, match=f"server_lr of method '{name}' must be a number above 0"
        ):
            find(name).recipe(server_lr=lr)


def test_the_default_step_is_the_whole_way() -> None:
    assert Recipe().steps == Whole()
    assert find("fedbabu").recipe().steps.whole
    assert find("fedavg").recipe().steps.whole
    assert not find("fedavg").recipe(server_lr=0.5).steps.whole
