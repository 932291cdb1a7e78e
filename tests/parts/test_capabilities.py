"""What parts say about themselves, and what methods built on others make of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
from helpers import assert_same_bits, make_holdings, method_holdings, run

from fedskew.errors import ConfigError
from fedskew.methods import METHODS, find
from fedskew.parts.aggregate import (
    Aggregator,
    Apart,
    BySize,
    BySteps,
    Mean,
    MeanAndVolunteer,
    MeanWithVariates,
    NormalisedMean,
    ServerState,
    Uniform,
    Update,
    Weighting,
)
from fedskew.parts.generative import RememberingMean, VaeLoss
from fedskew.parts.invariance import EnvironmentErm
from fedskew.parts.masked import MaskedMean
from fedskew.parts.mix import SelfMix
from fedskew.parts.objective import Erm
from fedskew.parts.private import Private
from fedskew.parts.step import Reptile

OWN = """
from dataclasses import dataclass, replace

import torch
from fedskew.parts.aggregate import Aggregator, Mean
from fedskew.parts.objective import Erm
from fedskew.federate.recipe import Recipe


@dataclass(frozen=True)
class Median(Aggregator):
    def aggregate(self, state, updates, clients):
        stacked = {n: torch.stack([u.tensors[n] for u in updates]) for n in state.shared}
        return replace(state, shared={n: t.median(dim=0).values for n, t in stacked.items()})


@dataclass(frozen=True)
class Largest(Mean):
    def aggregate(self, state, updates, clients):
        largest = max(updates, key=lambda update: update.size)
        return replace(state, shared={**state.shared, **largest.tensors})


@dataclass(frozen=True)
class Smooth(Erm):
    def loss(self, model, batch, client):
        return 0.5 * super().loss(model, batch, client)


def median():
    return Recipe(aggregates=Median())


def largest():
    return Recipe(aggregates=Largest())


def smooth():
    return Recipe(objective=Smooth())
"""


@pytest.fixture(autouse=True)
def _own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "able_parts.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))


def test_only_the_plain_mean_learns_nothing_but_the_mean() -> None:
    others = (
        Apart(), MeanAndVolunteer(), MeanWithVariates(), NormalisedMean(), MaskedMean(0.4),
        RememberingMean(), SelfMix(), Private(Mean(), 1.0, 1.0),
    )  # fmt: skip
    assert Mean().averages
    assert [type(other).__name__ for other in others if other.averages] == []


def test_what_weighs_clients_can_be_given_another_weighting_and_keeps_all_else() -> None:
    assert Mean(BySize(), divergence=True).reweighted(Uniform()) == Mean(Uniform(), True)
    assert MaskedMean(0.3).reweighted(Uniform()) == MaskedMean(0.3, Uniform())
    assert NormalisedMean().reweighted(Uniform()) == NormalisedMean(Uniform())
    kept = MeanAndVolunteer(volunteers=("decoder",)).reweighted(Uniform())
    assert kept == MeanAndVolunteer(Uniform(), volunteers=("decoder",))
    assert Apart().reweighted(Uniform()) is None
    assert Private(Mean(), 1.0, 1.0).reweighted(Uniform()) is None


def test_an_aggregator_of_ones_own_is_reweighted_by_the_name_of_its_field() -> None:
    @dataclass(frozen=True)
    class First(Aggregator):
        weighting: Weighting = field(default_factory=BySize)

        def aggregate(
            self, state: ServerState, updates: Sequence[Update], clients: int
        ) -> ServerState:
            return replace(state, shared=updates[0].tensors)

    assert First().reweighted(Uniform()) == First(Uniform())
    assert not First().averages


def test_models_may_be_added_up_where_sizes_alone_say_what_each_counts() -> None:
    assert [Mean(weighting).presums for weighting in (BySize(), Uniform())] == [True, True]
    assert not Mean(BySteps()).presums
    assert not Mean(divergence=True).presums
    assert not MeanAndVolunteer(volunteers=("decoder",)).presums
    assert not MaskedMean(0.3).presums


def test_divergence_is_recorded_by_means_only() -> None:
    assert Mean(Uniform()).with_divergence() == Mean(Uniform(), divergence=True)
    assert MeanWithVariates().with_divergence() == MeanWithVariates(divergence=True)
    assert NormalisedMean().with_divergence() is None
    with pytest.raises(ConfigError, match="base = 'fednova' computes no weighted mean"):
        find("vae").recipe(base="fednova", divergence=True)


@pytest.mark.parametrize("base", ["scaffold", "fednova", "local"])
def test_clients_that_never_load_the_model_need_a_plain_mean(base: str) -> None:
    with pytest.raises(ConfigError, match=f"base = '{base}' does more than average"):
        find("vae").recipe(base=base, sync=False)


def test_only_plain_empirical_risk_may_be_replaced() -> None:
    assert Erm().replaceable
    assert not EnvironmentErm().replaceable
    assert not VaeLoss().replaceable
    for wrapper, why in (("irm", "an objective of its own"), ("vae", "brings a loss")):
        with pytest.raises(ConfigError, match=why):
            find(wrapper).recipe(base="able_parts:smooth")


def test_a_median_has_a_target_that_reptile_steps_towards() -> None:
    """η of the way from the start to the median, in the first of all rounds."""
    holdings = method_holdings("able_parts:median")
    median = run(holdings, 1).shared
    ours = run(
        method_holdings("fedreptile", knobs={"base": "able_parts:median", "eta": 0.5}), 1
    ).shared
    halfway = {n: torch.lerp(holdings.plan.initial[n], t, 0.5) for n, t in median.items()}
    assert_same_bits(ours, halfway)
    with pytest.raises(ConfigError, match="does not weigh clients, so leave out weights"):
        find("fedreptile").recipe(base="able_parts:median", weights="size")


@pytest.mark.parametrize("name", ["median", "largest"])
def test_noise_in_the_sum_hides_nobody_from_a_server_that_takes_no_mean(name: str) -> None:
    with pytest.raises(ConfigError, match="its server takes no plain mean"):
        find("private").recipe(base=f"able_parts:{name}")


def test_a_private_mean_is_a_target_like_others() -> None:
    """Reptile over private is private over Reptile: the step comes after the noise in both."""
    knobs = {"clip": 0.01, "noise": 0.0}
    outside = find("fedreptile").recipe(base={"name": "private", **knobs})
    inside = find("private").recipe(base="fedreptile", **knobs)
    assert outside.steps == inside.steps == Reptile(0.35)
    ours, theirs = run(make_holdings(outside), 2), run(make_holdings(inside), 2)
    assert_same_bits(ours.everything(), theirs.everything())


def test_cards_say_what_a_comparison_asks() -> None:
    cards = {name: known.card for name, known in METHODS.items()}
    references = {name: card.reference for name, card in cards.items() if card.reference}
    assert references == {"local": "alone", "central": "pooled"}
    plain = {card.side: name for name, card in cards.items() if card.plain}
    assert plain == {"objective": "erm", "aggregator": "fedavg"}
    for name, card in cards.items():
        crossed = {"base", "environments"} <= METHODS[name].defaults.keys()
        assert (card.side == "objective") == crossed, name


@pytest.mark.parametrize(
    ("method", "knobs", "found"),
    [
        ("fedavg", {}, {"name": "local"}),
        ("civae", {}, {"name": "local"}),
        ("feddisk", {}, {"name": "local"}),
        ("made", {}, {"name": "made", "base": "local"}),
        ("vae", {"beta": 10.0}, {"name": "vae", "base": "local"}),
        ("latent-weights", {"beta": 2.0, "sampled": False},
         {"name": "vae", "base": "local", "beta": 2.0, "sampled": False}),
    ],
)  # fmt: skip
def test_an_objective_names_the_method_that_trains_it_by_anothers_means(
    method: str, knobs: dict[str, object], found: dict[str, object]
) -> None:
    objective = find(method).recipe(**knobs).objective
    assert objective.trained_by("local") == found
    reference = find(str(found["name"])).recipe(**{k: v for k, v in found.items() if k != "name"})
    if method != "civae":
        assert reference.objective == objective
