"""Law 1: at its neutral setting a method equals the one it reduces to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from helpers import (
    Run,
    assert_close,
    copied,
    method_holdings,
    run,
    standard_run,
    toy_federation,
    toy_model,
)

from fedskew.engine.optim import Optimiser
from fedskew.federate.plan import Settings
from fedskew.methods import METHODS, ReducesTo, find

FULL_BATCH = Settings(Optimiser("sgd", 0.1), epochs=2, batch_size=64)
"""Two steps a round on all of a client's data: the order of its samples does not matter."""

REDUCTIONS = [
    pytest.param(name, reduction, id=f"{name}-{reduction.method}-{i}")
    for name, method in sorted(METHODS.items())
    for i, reduction in enumerate(method.card.reduces)
]


def finished(name: str, knobs: dict[str, Any], settings: Settings | None = None) -> Run:
    return run(method_holdings(name, knobs=knobs, settings=settings))


def assert_same_scores(ours: Run, theirs: Run) -> None:
    """Whatever both measured, they measured the same."""
    both = ours.scores.keys() & theirs.scores.keys()
    assert both
    for key in both:
        assert ours.scores[key] == pytest.approx(theirs.scores[key], abs=1e-6), key


@pytest.mark.parametrize(("name", "reduction"), REDUCTIONS)
def test_the_card_of_a_method_tells_the_truth_about_what_it_reduces_to(
    name: str, reduction: ReducesTo
) -> None:
    recipe = find(name).recipe(**reduction.at)
    # A second phase shuffles with another stream, so only full batches can be compared.
    settings = FULL_BATCH if len(recipe.trains) > 1 else None
    ours = finished(name, reduction.at, settings)
    theirs = finished(reduction.method, reduction.given, settings)
    if ours.holdings.plan.shared == theirs.holdings.plan.shared:
        assert_close(ours.shared, theirs.shared, 1e-6)
    assert_same_scores(ours, theirs)


def test_fedprox_with_a_pull_is_not_fedavg() -> None:
    pulled = finished("fedprox", {"mu": 1.0})
    plain = standard_run("fedavg")
    assert (pulled.shared["head.weight"] - plain.shared["head.weight"]).abs().max() > 1e-3


def test_fednova_with_equal_sizes_and_steps_is_fedavg() -> None:
    equal = toy_federation((16, 16, 16))
    nova = run(method_holdings("fednova", federation=equal))
    average = run(method_holdings("fedavg", federation=equal))
    assert_close(nova.shared, average.shared, 1e-6)
    assert_same_scores(nova, average)


def test_fednova_with_unequal_steps_is_not_fedavg() -> None:
    nova, average = standard_run("fednova"), standard_run("fedavg")
    assert (nova.shared["head.weight"] - average.shared["head.weight"]).abs().max() > 1e-3


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_fednova_with_equal_steps_and_any_sizes_is_fedavg(momentum: float) -> None:
    settings = Settings(Optimiser("sgd", 0.05, momentum), epochs=3, batch_size=64)
    nova = finished("fednova", {}, settings)
    assert_close(nova.shared, finished("fedavg", {}, settings).shared, 1e-6)


def test_the_first_round_of_scaffold_is_the_uniform_mean() -> None:
    scaffold = run(method_holdings("scaffold"), 1)
    uniform = run(method_holdings("fedavg", knobs={"weights": "uniform"}), 1)
    assert_close(scaffold.shared, uniform.shared, 1e-6)


def test_the_second_round_of_scaffold_is_not_the_uniform_mean() -> None:
    scaffold = run(method_holdings("scaffold"), 2)
    uniform = run(method_holdings("fedavg", knobs={"weights": "uniform"}), 2)
    assert (scaffold.shared["head.weight"] - uniform.shared["head.weight"]).abs().max() > 1e-4


def test_scaffold_keeps_the_server_variate_at_the_mean_of_the_clients() -> None:
    """c = (1/N)·Σ c_k holds in every round when all take part."""
    scaffold = standard_run("scaffold")
    names = [client.name for client in scaffold.holdings.federation.clients]
    own = [scaffold.backend.private_of(name)["own_control"] for name in names]
    mean = {n: torch.stack([c[n] for c in own]).mean(dim=0) for n in own[0]}
    assert_close(scaffold.progress.state.memory["control"], mean, 1e-5)


def test_fedbn_without_batch_norm_is_fedavg() -> None:
    bn, average = standard_run("fedbn"), standard_run("fedavg")
    assert_close(bn.shared, average.shared, 1e-6)
    assert_same_scores(bn, average)


def test_fedbn_with_batch_norm_is_not_fedavg() -> None:
    bn, average = standard_run("fedbn", "batch-norm"), standard_run("fedavg", "batch-norm")
    assert average.shared.keys() - bn.shared.keys() == {
        f"body.1.{entry}"
        for entry in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    }
    assert (bn.shared["head.weight"] - average.shared["head.weight"]).abs().max() > 1e-4


def test_ditto_without_a_pull_trains_its_personal_models_as_local_does() -> None:
    ditto = finished("ditto", {"lam": 0.0}, FULL_BATCH)
    local = finished("local", {}, FULL_BATCH)
    for client in ditto.holdings.federation.clients:
        personal = ditto.backend.private_of(client.name)["personal"]
        assert_close(personal, local.model_of(client.name), 1e-6)
    personal_scores = {k: v for k, v in ditto.scores.items() if k[1:3] == ("personal", "seen")}
    assert personal_scores == pytest.approx(
        {k: v for k, v in local.scores.items() if k[2] == "seen"}, abs=1e-6
    )


def test_the_global_model_of_ditto_is_that_of_fedavg() -> None:
    ditto, average = standard_run("ditto"), standard_run("fedavg")
    assert_close(ditto.shared, average.shared, 1e-6)
    assert_same_scores(ditto, average)


def test_a_server_learning_rate_of_one_half_goes_half_the_way() -> None:
    start = copied(toy_model().state_dict())
    whole = run(method_holdings("fedavg"), 1)
    half = run(method_holdings("fedavg", knobs={"server_lr": 0.5}), 1)
    expected = {n: (start[n] + t) / 2 for n, t in whole.shared.items()}
    assert_close(half.shared, expected, 1e-6)


def test_central_on_full_batches_is_one_client_that_holds_everything() -> None:
    settings = Settings(Optimiser("sgd", 0.1), epochs=3, batch_size=128)
    central = finished("central", {}, settings)
    federation = toy_federation()
    alone = federation.with_data(clients=(replace(federation.pooled(), name="all"),))
    fedavg = run(method_holdings("fedavg", federation=alone, settings=settings))
    assert_close(central.shared, fedavg.shared, 1e-6)
