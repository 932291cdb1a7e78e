"""The laws where samples have no class: every method that trains on numbers or on several labels
at once, and the reason of every method that does not."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from helpers import (
    ListJournal,
    OpenBackend,
    Run,
    assert_close,
    assert_same_bits,
    copied,
    every_method,
    make_holdings,
    method_holdings,
    over_the_wire,
    run,
    toy_task,
)
from torch.nn import functional as F

from fedskew.config import make_config
from fedskew.engine.batches import schedule
from fedskew.engine.executor import ONE_BY_ONE
from fedskew.engine.optim import Optimiser
from fedskew.errors import ConfigError
from fedskew.federate.holdings import roster_of
from fedskew.federate.metrics import MAIN
from fedskew.federate.plan import Settings
from fedskew.federate.planning import checked_model
from fedskew.federate.progress import Progress
from fedskew.federate.recipe import Stage
from fedskew.federate.rounds import Rounds
from fedskew.federate.server import federate
from fedskew.methods import METHODS, find
from fedskew.methods.registry import ReducesTo
from fedskew.parts.losses import LOSSES
from fedskew.parts.objective import Erm
from fedskew.store import load_groups, save_groups

TASKS = ("regression", "multi-label")
BALANCES = "to balance a softmax by how many samples of each a client has"
INFORMS = "to make its codes tell classes apart"
REFUSES = {
    "fedrod": BALANCES,
    "feddisco": "to measure how unequal a client's shares of them are",
    "civae": INFORMS,
    "fed-civae": INFORMS,
    "fedreptile-civae": INFORMS,
}
"""By method, what it needs classes for; all others train whatever is learned."""
MODELS = {"encoder": "beta-vae", "classifier": "dense-civae", "output": "gaussian-made"}

each_task = pytest.mark.parametrize("task", TASKS)
CAN = sorted(METHODS.keys() - REFUSES.keys())
LABELLED = (
    "fedavg", "scaffold", "ditto", "fedshibu", "per-fedavg", "irm", "vrex", "mmd", "mldg",
    "groupdro", "and-mask",
)  # fmt: skip
"""Of every kind of client step one, for what differs from numbers in the loss only."""

each_that_can = pytest.mark.parametrize("name", CAN)
each_with_its_task = pytest.mark.parametrize(
    ("name", "task"),
    [*((name, "regression") for name in CAN), *((name, "multi-label") for name in LABELLED)],
)


@every_method
@each_task
def test_every_method_takes_the_task_or_says_what_it_needs_classes_for(
    name: str, task: str
) -> None:
    recipe, roster = find(name).recipe(), roster_of(toy_task(task))
    model = next((m for part, m in MODELS.items() if part in recipe.objective.needs), "mlp")
    model = "dense-civae" if "classifier" in recipe.objective.needs else model
    config = make_config({"method": name, "model": model, "train": {"batch_size": 4}})

    def check() -> None:
        for stage in (*recipe.prepares, Stage(MAIN, recipe)):
            checked_model(config, roster, stage)

    if name not in REFUSES:
        return check()
    with pytest.raises(ConfigError, match=f"method '{name}' needs classes {REFUSES[name]}, but"):
        check()
    return None


@cache
def standard(name: str, task: str) -> Run:
    return run(method_holdings(name, federation=toy_task(task)))


@each_with_its_task
def test_a_stack_trains_as_plain_pytorch_does_one_client_after_another(
    name: str, task: str
) -> None:
    stacked = standard(name, task)
    federation = toy_task(task)
    apart = run(method_holdings(name, federation=federation, chunk=1, executor=ONE_BY_ONE))
    assert_close(stacked.everything(), apart.everything(), 1e-5)
    # Errors come in the target's units, of which one deviation is 40.
    assert stacked.scores == pytest.approx(apart.scores, rel=1e-4, abs=1e-4, nan_ok=True)


@each_with_its_task
def test_a_carrier_of_bytes_changes_nothing(name: str, task: str) -> None:
    holdings = method_holdings(name, federation=toy_task(task))
    if holdings.plan.recipe.pools:
        pytest.skip("pools raw data, and is refused where clients keep theirs")
    carried, here = over_the_wire(holdings), standard(name, task)
    assert_same_bits(carried.everything(), here.everything())
    assert carried.journal.rows == pytest.approx(here.journal.rows)


@each_that_can
def test_permuting_the_clients_permutes_the_result_and_nothing_else(name: str) -> None:
    federation = toy_task("regression")
    shuffled = federation.with_data(clients=tuple(federation.clients[i] for i in (2, 0, 3, 1)))
    permuted = run(method_holdings(name, federation=shuffled))
    assert_same_bits(permuted.everything(), standard(name, "regression").everything())


REDUCTIONS = [
    pytest.param(name, reduction, id=f"{name}-{reduction.method}")
    for name in sorted(METHODS.keys() - REFUSES.keys())
    for reduction in find(name).card.reduces
    if reduction.method not in REFUSES
]


@pytest.mark.parametrize(("name", "reduction"), REDUCTIONS)
def test_a_method_reduces_to_what_its_card_says(name: str, reduction: ReducesTo) -> None:
    full = Settings(Optimiser("sgd", 0.1), epochs=2, batch_size=64)
    settings = full if len(find(name).recipe(**reduction.at).trains) > 1 else None

    def finished(method: str, knobs: dict[str, object]) -> Run:
        federation = toy_task("regression")
        holdings = method_holdings(method, knobs=knobs, federation=federation, settings=settings)
        return run(holdings)

    ours, theirs = finished(name, reduction.at), finished(reduction.method, reduction.given)
    if ours.holdings.plan.shared == theirs.holdings.plan.shared:
        assert_close(ours.shared, theirs.shared, 1e-6)


@each_with_its_task
def test_one_client_alone_trains_as_plain_pytorch_does(name: str, task: str) -> None:
    neutral = {
        k: v for r in find(name).card.reduces if r.method == "fedavg" for k, v in r.at.items()
    }
    recipe = find(name).recipe(**neutral)
    if any((phase.objective or recipe.objective) != Erm() for phase in recipe.trains):
        pytest.skip("its objective is not the loss of the plain loop")
    if len(recipe.trains) > 1 or recipe.trains[0].lr is not None:
        pytest.skip("one phase is enough here; tests/laws/test_alone.py has all")
    holdings = method_holdings(name, knobs=neutral, federation=toy_task(task, (19,)))
    trainer = "pooled" if recipe.pools else "c0"
    model, data = holdings.plan.module, holdings.federation
    model.load_state_dict(holdings.plan.initial)
    moving = recipe.trains[0].trains.names(model)
    rows = holdings.clients[trainer].train
    for number in (1, 2):
        key = (0, holdings.plan.stage, "train", 0, trainer, number)
        plan = schedule(rows, key, 8, recipe.trains[0].epochs or 2, True)
        for positions, mask in zip(plan.positions, plan.mask, strict=True):
            chosen = torch.from_numpy(rows[positions[mask > 0]])
            outputs, y = model(data.x[chosen]), data.y[chosen]
            squared = task == "regression"
            loss = (
                F.mse_loss(outputs[:, 0], y)
                if squared
                else F.binary_cross_entropy_with_logits(outputs, y)
            )
            model.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            with torch.no_grad():
                for parameter, w in model.named_parameters():
                    if parameter in moving:
                        w.sub_(0.1 * w.grad)
    trained = copied(model.state_dict())
    alone = method_holdings(name, knobs=neutral, federation=toy_task(task, (19,)))
    assert_close(run(alone, 2).model_of(trainer), trained, 1e-5)


class GoesOn(ListJournal):
    """Finds the last round of another run, its tensors read from files."""

    def __init__(self, before: Run, folder: Path) -> None:
        super().__init__()
        last = before.journal.states[-1]
        save_groups(folder / "state", {"shared": last.state.shared})
        save_groups(folder / "memory", last.state.memory)
        self.found = replace(
            last,
            state=replace(
                last.state,
                shared=load_groups(folder / "state").get("shared", {}),
                memory=load_groups(folder / "memory"),
            ),
        )

    def resume(self, stage: str) -> Progress | None:
        return self.found


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "ditto", "fedrep", "groupdro"])
@each_task
def test_a_run_that_goes_on_ends_as_an_uninterrupted_one(
    name: str, task: str, tmp_path: Path
) -> None:
    first = method_holdings(name, federation=toy_task(task))
    before = run(first, 2, OpenBackend(first, tmp_path))
    holdings = method_holdings(name, federation=toy_task(task))
    resumed = Run(holdings, OpenBackend(holdings, tmp_path), GoesOn(before, tmp_path))
    resumed.progress = federate(holdings.plan, resumed.backend, Rounds(3), resumed.journal)
    assert_same_bits(resumed.everything(), standard(name, task).everything())


@pytest.mark.parametrize("loss", ["absolute", "huber", "pinball"])
def test_every_loss_of_a_number_trains_alike_in_every_executor(loss: str) -> None:
    def trained(chunk: int, executor: str) -> Run:
        settings = Settings(Optimiser("sgd", 0.1), 2, 8, LOSSES.find(loss).make())
        federation = toy_task("regression")
        recipe = find("irm").recipe()
        return run(
            make_holdings(recipe, federation, None, settings, chunk=chunk, executor=executor)
        )

    stacked = trained(2, "vectorised")
    assert_close(stacked.everything(), trained(1, ONE_BY_ONE).everything(), 1e-5)
    squared = standard("irm", "regression")
    gone = stacked.shared["head.weight"] - squared.shared["head.weight"]
    assert float(gone.abs().max()) > 1e-3
