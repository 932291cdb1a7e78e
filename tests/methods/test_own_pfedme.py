"""pFedMe as a stranger writes it, in one file outside the package (tests/own_methods)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import (
    assert_close,
    assert_same_bits,
    make_holdings,
    over_the_wire,
    run,
    spent_on,
    toy_federation,
    toy_model,
)
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

from fedskew.api import run as run_experiment
from fedskew.engine.optim import Optimiser
from fedskew.errors import ConfigError
from fedskew.federate.holdings import Holdings
from fedskew.federate.plan import Settings
from fedskew.federate.privacy import remembers
from fedskew.federate.recipe import Adapt, Phase, Recipe
from fedskew.federate.scoring import score_samples
from fedskew.federate.tasks import ScoreTask
from fedskew.methods import find
from fedskew.parts.report import PERSONAL
from fedskew.parts.step import LearningRate, Reptile

OWN = Path(__file__).parents[1] / "own_methods"
NAME = "pfedme:pfedme"
KNOBS = {"lam": 2.0, "inner": 3, "inner_lr": 0.2}
LR, EPOCHS, ROUNDS = 0.1, 2, 2
FEDERATION = toy_federation((24, 40))
BY_SIZE, ALIKE = (0.375, 0.625), (0.5, 0.5)
Rows = np.ndarray[Any, Any]
Weights = dict[str, Tensor]


@pytest.fixture(autouse=True)
def _own_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(OWN))


def holdings_of(name: str = NAME, executor: str = "vectorised", **knobs: Any) -> Holdings:
    # A batch holds all a client has: no order of samples to agree on.
    settings = Settings(Optimiser("sgd", LR), epochs=EPOCHS, batch_size=64)
    recipe = find(name).recipe(**{**(KNOBS if name == NAME else {}), **knobs})
    return make_holdings(recipe, FEDERATION, toy_model(), settings, executor=executor)


def loss_of(weights: Mapping[str, Tensor], rows: Rows) -> Tensor:
    logits = functional_call(toy_model(), dict(weights), (FEDERATION.x[rows],))
    return F.cross_entropy(logits, FEDERATION.y[rows])


def trained(w: Weights, rows: Rows, steps: int = EPOCHS) -> tuple[Weights, Weights]:
    """One client's w and θ after a round; θ begins with w, as in the authors' code."""
    theta = dict(w)
    for _ in range(steps):
        for _ in range(KNOBS["inner"]):
            leaf = {n: t.detach().clone().requires_grad_() for n, t in theta.items()}
            slopes = torch.autograd.grad(loss_of(leaf, rows), list(leaf.values()))
            theta = {
                n: t - KNOBS["inner_lr"] * (slope + KNOBS["lam"] * (t - w[n]))
                for (n, t), slope in zip(theta.items(), slopes, strict=True)
            }
        w = {n: t - LR * KNOBS["lam"] * (t - theta[n]) for n, t in w.items()}
    return w, theta


def plain_pfedme(
    beta: float = 1.0, shares: tuple[float, float] = BY_SIZE
) -> tuple[Weights, dict[str, Weights]]:
    """Algorithm 1 of the paper: the server's w, and every client's last θ."""
    w = {n: t.detach().clone() for n, t in toy_model().state_dict().items()}
    own: dict[str, Weights] = {}
    for _ in range(ROUNDS):
        ends = []
        for client in FEDERATION.clients:
            end, own[client.name] = trained(w, client.train)
            ends.append(end)
        w = {
            n: (1 - beta) * t + beta * (shares[0] * ends[0][n] + shares[1] * ends[1][n])
            for n, t in w.items()
        }
    return w, own


@pytest.mark.parametrize("executor", ["vectorised", "one-by-one"])
@pytest.mark.parametrize("beta", [1.0, 0.6])
def test_it_is_the_papers_loop(beta: float, executor: str) -> None:
    result = run(holdings_of(executor=executor, beta=beta), ROUNDS)
    w, own = plain_pfedme(beta)
    assert_close(result.shared, w, 1e-5)
    for client, theta in own.items():
        assert_close(result.backend.private_of(client)[PERSONAL], theta, 1e-5)
    first, second = own.values()
    assert max(float((first[n] - second[n]).abs().max()) for n in w) > 1e-2


def test_seen_clients_are_scored_with_their_own_model_unseen_and_central_ones_with_w() -> None:
    result = run(holdings_of(), ROUNDS)
    w, own = plain_pfedme()
    expected = {("global", "central", ""): loss_of(w, FEDERATION.central_test)}
    for client in FEDERATION.clients:
        expected["global", "seen", client.name] = loss_of(w, client.test)
        expected["personal", "seen", client.name] = loss_of(own[client.name], client.test)
    for client in FEDERATION.unseen:
        for kind in ("global", "personal"):
            expected[kind, "unseen", client.name] = loss_of(w, client.test)
    found = {
        (row.model, row.on, row.client): row.value
        for row in result.journal.rows
        if row.round == ROUNDS and row.split == "test" and row.metric == "loss"
    }
    assert found == {k: pytest.approx(float(v), rel=1e-4) for k, v in expected.items()}
    assert result.holdings.plan.primary_model == "personal"


def test_a_newcomer_that_adapts_ends_with_a_model_of_its_own() -> None:
    """Three steps of w, and θ beside it, which is what a client is after."""
    holdings = holdings_of()
    plan = replace(holdings.plan, adapts=(Adapt((Phase(epochs=3),)),))
    holdings = replace(holdings, plan=plan)
    (client,) = FEDERATION.unseen
    task = ScoreTask(client.name, 1, plan.initial, "personal", ("test",), adapt=0)
    (found,) = score_samples(holdings, [task], {})
    assert found.error is None
    _, theta = trained(dict(plan.initial), client.train, steps=3)
    assert_close(found.model, theta, 1e-5)


def test_statistics_of_batch_norm_stand_in_both_models() -> None:
    recipe = find(NAME).recipe(**KNOBS)
    result = run(make_holdings(recipe, FEDERATION, toy_model("batch-norm")), 1)
    own = result.backend.private_of("c0")[PERSONAL]
    assert own.keys() == result.shared.keys()
    assert all(bool(torch.isfinite(t).all()) for t in own.values())
    name = next(n for n in own if n.endswith("running_mean"))
    assert not torch.equal(own[name], torch.zeros_like(own[name]))


def test_own_models_do_not_travel_and_bytes_change_nothing() -> None:
    carried, here = over_the_wire(holdings_of()), run(holdings_of())
    assert_same_bits(carried.everything(), here.everything())
    assert carried.journal.rows == here.journal.rows
    assert carried.journal.records == here.journal.records
    model = sum(t.numel() * t.element_size() for t in here.shared.values())
    assert {(r.bytes_up, r.bytes_down) for r in here.journal.records} == {(2 * model, 2 * model)}


def settings() -> dict[str, Any]:
    return {
        "model": "logistic",
        "method": {"name": NAME, "beta": 0.9},
        "federation": {"unseen": 2},
        "train": {"rounds": 3, "clients_per_round": 4},
        "evaluate": {"fine_tune_epochs": 1},
    }


def final(path: Path) -> dict[str, bytes]:
    folder = path / "models" / "last"
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*.safetensors")}


def test_a_run_that_was_stopped_goes_on_with_its_clients_own_models(tmp_path: Path) -> None:
    whole = run_experiment(settings(), out=tmp_path / "whole", draw=False)

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_experiment(settings(), out=tmp_path / "parts", draw=False, watch=stop)
    again = run_experiment(settings(), out=tmp_path / "parts", draw=False)
    assert final(again.path) == final(whole.path)
    assert any("personal" in name for name in final(whole.path))
    assert again.rows() == whole.rows()
    assert {row.on for row in whole.rows()} >= {"seen", "unseen", "central"}


def test_it_can_be_made_private_and_rounds_before_do_not_show_in_what_a_client_sends() -> None:
    base = {"name": NAME, **KNOBS}
    free = run(holdings_of("private", base=base, clip=1e30, noise=0.0), ROUNDS)
    w, own = plain_pfedme(shares=ALIKE)
    assert_close(free.shared, w, 1e-5)
    assert_close(free.backend.private_of("c1")[PERSONAL], own["c1"], 1e-5)
    assert not remembers(find(NAME).recipe())
    # Two of ten clients by lot: what was drawn helps, as for FedAvg and not as for groupdro.
    spent = {
        name: spent_on(find("private").recipe(base=name), 3, 2, 10)
        for name in (NAME, "fedavg", "groupdro")
    }
    assert spent[NAME] == spent["fedavg"] != spent["groupdro"]


def test_reptile_steps_towards_the_mean_of_w_unless_beta_is_a_step_already() -> None:
    eta = find("fedreptile").recipe(base={"name": NAME, **KNOBS}, eta=0.6)
    assert eta.steps == Reptile(0.6)
    result = run(holdings_of("fedreptile", base={"name": NAME, **KNOBS}, eta=0.6), ROUNDS)
    w, own = plain_pfedme(beta=0.6, shares=ALIKE)
    assert_close(result.shared, w, 1e-5)
    assert_close(result.backend.private_of("c0")[PERSONAL], own["c0"], 1e-5)
    with pytest.raises(ConfigError, match="a server step of its own, which eta would replace"):
        find("fedreptile").recipe(base={"name": NAME, "beta": 0.5})


def test_a_client_has_one_model_of_its_own() -> None:
    personal = (Phase(), Phase(model="personal"))
    with pytest.raises(ConfigError, match="both make a client's own model"):
        Recipe(objective=find(NAME).recipe().objective, trains=personal, steps=LearningRate())


def test_the_file_is_short() -> None:
    assert len((OWN / "pfedme.py").read_text().splitlines()) < 70
