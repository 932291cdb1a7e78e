"""The executor for debuggers: plain PyTorch, one client after the other, in this thread."""

from __future__ import annotations

import random
import threading
import traceback
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from helpers import assert_close, make_holdings, run, toy_federation
from torch import Tensor, nn
from torch.func import grad_and_value

from fedskew.engine.cohort import train
from fedskew.engine.executor import ONE_BY_ONE
from fedskew.engine.graph import PlainStep
from fedskew.engine.training import Work
from fedskew.errors import ConfigError, place_of
from fedskew.federate.holdings import Holdings
from fedskew.federate.recipe import Phase, Recipe
from fedskew.parts.correct import Correction
from fedskew.parts.objective import Batch, Bound, Context, Erm, Objective
from fedskew.parts.report import Finished, Report, Reported
from fedskew.types import Tensors

SIZES = (7, 19)
STEPS = (2, 6)
"""Two epochs in batches of 8."""


@dataclass(frozen=True)
class Seen:
    """What somebody who stops in a part can see."""

    thread: threading.Thread
    values: tuple[float, ...]
    frames: frozenset[str]


def look(*values: float) -> Seen:
    frames = frozenset(frame.name for frame in traceback.extract_stack())
    return Seen(threading.current_thread(), values, frames)


@dataclass(frozen=True)
class Watched(Erm):
    """Cross-entropy that writes down what can be seen from inside."""

    losses: list[Seen] = field(default_factory=list, compare=False, hash=False)
    scored: list[Seen] = field(default_factory=list, compare=False, hash=False)

    def loss(self, model: Bound, batch: Batch, client: Context) -> Tensor:
        loss = super().loss(model, batch, client)
        assert str(loss).startswith("tensor(")
        bias = model.tensors["head.bias"].detach().numpy()
        self.losses.append(look(loss.item(), *bias, float(batch.x.numpy().sum())))
        return loss

    def scores(self, model: Bound, batch: Batch) -> Tensors:
        self.scored.append(look(float(batch.mask.sum())))
        return super().scores(model, batch)


@dataclass(frozen=True)
class WatchedReport(Report):
    """Writes down which thread asks for it."""

    seen: list[Seen] = field(default_factory=list, compare=False, hash=False)

    def report(self, finished: Finished) -> Reported:
        self.seen.append(look(float(finished.steps)))
        return Reported()


def holdings_of(recipe: Recipe, executor: str = ONE_BY_ONE) -> Holdings:
    return make_holdings(recipe, toy_federation(SIZES), chunk=1, executor=executor)


def works(holdings: Holdings) -> list[Work]:
    return [
        Work(c.name, c.train, holdings.plan.initial, key=(c.name,))
        for c in holdings.federation.clients
    ]


def test_an_objective_sees_the_values_of_every_batch_in_the_calling_thread() -> None:
    objective, report = Watched(), WatchedReport()
    result = run(holdings_of(Recipe(objective=objective, reports=(report,))), 1)
    assert len(objective.losses) == sum(STEPS)
    assert len({seen.values for seen in objective.losses}) == sum(STEPS)
    # Clients with most steps go first, and a record holds the mean of the clients' mean losses.
    losses = [seen.values[0] for seen in objective.losses]
    means = [sum(losses[:6]) / 6, sum(losses[6:]) / 2]
    assert result.journal.records[0].train_loss == pytest.approx(sum(means) / 2, rel=1e-5)
    assert [seen.values for seen in report.seen] == [(2.0,), (6.0,)]
    assert objective.scored
    everywhere = [*objective.losses, *objective.scored, *report.seen]
    assert {seen.thread for seen in everywhere} == {threading.current_thread()}
    here = "test_an_objective_sees_the_values_of_every_batch_in_the_calling_thread"
    assert all(here in seen.frames for seen in everywhere)


def test_nothing_is_traced_and_nothing_stacked() -> None:
    objective = Watched()
    holdings = holdings_of(Recipe(objective=objective))
    assert isinstance(holdings.training(holdings.plan.recipe.trains[0]).step, PlainStep)
    run(holdings, 1)
    assert not {"make_fx", "vmap", "_trace"} & set().union(*(s.frames for s in objective.losses))
    assert not any(holdings._steps.values())


@dataclass(frozen=True)
class Halved(Correction):
    """Half the gradient, if its numbers can be asked for."""

    def correct(self, gradients: Tensors, trained: Tensors, client: Context) -> Tensors:
        largest = max(float(g.numpy().max()) for g in gradients.values())
        return {name: 0.5 * g for name, g in gradients.items()} if largest > -1.0 else gradients


def test_a_correction_is_called_with_plain_tensors() -> None:
    holdings = holdings_of(Recipe(trains=(Phase(corrects=(Halved(),)),)))
    halved = train(works(holdings), holdings.training(holdings.plan.recipe.trains[0]))
    whole = train(works(holdings), holdings.training(Phase(lr=0.05)))
    for ours, theirs in zip(halved, whole, strict=True):
        assert not isinstance(ours, Exception)
        assert not isinstance(theirs, Exception)
        assert_close(ours.tensors, theirs.tensors, 1e-6)


@pytest.mark.parametrize("executor", [ONE_BY_ONE, "threads"])
def test_parameters_a_loss_does_not_use_stay_where_they_are(executor: str) -> None:
    @dataclass(frozen=True)
    class Idle(Erm):
        uses: bool

        def loss(self, model: Bound, batch: Batch, client: Context) -> Tensor:
            return batch.mask.mean() + (model.tensors["head.bias"].sum() if self.uses else 0.0)

    for uses, way in ((True, 0.1), (False, 0.0)):
        holdings = holdings_of(Recipe(objective=Idle(uses)), executor)
        for result, steps in zip(
            train(works(holdings), holdings.training(Phase())), STEPS, strict=True
        ):
            assert not isinstance(result, Exception)
            bias = holdings.plan.initial["head.bias"] - way * steps
            assert_close(result.tensors, {**holdings.plan.initial, "head.bias": bias}, 1e-6)


@dataclass(frozen=True)
class Ahead(Erm):
    """The loss plus the length of its own gradient: a derivative inside a derivative."""

    def loss(self, model: Bound, batch: Batch, client: Context) -> Tensor:
        def risk(bias: Tensor) -> Tensor:
            moved = Bound(model.module, {**model.tensors, "head.bias": bias})
            return super(Ahead, self).loss(moved, batch, client)

        slope, here = grad_and_value(risk)(model.tensors["head.bias"])
        return here + (slope**2).sum()


@dataclass(frozen=True)
class Inside(Erm):
    """Calls the plain gradient inside another derivative, where only torch.func can follow."""

    def gradient(
        self, module: nn.Module, trained: Tensors, fixed: Tensors, batch: Batch, client: Context
    ) -> tuple[Tensors, Tensor, Tensors]:
        def length(trained: Tensors) -> tuple[Tensor, Tensors]:
            found, _, buffers = super(Inside, self).gradient(module, trained, fixed, batch, client)
            return sum((g**2).sum() for g in found.values()), buffers

        gradients, (value, buffers) = grad_and_value(length, has_aux=True)(trained)
        return gradients, value, buffers


@pytest.mark.parametrize("objective", [Ahead(), Inside()])
def test_derivatives_of_derivatives_are_those_of_traced_steps(objective: Objective) -> None:
    recipe = Recipe(objective=objective)
    plain, traced = run(holdings_of(recipe), 2), run(holdings_of(recipe, "threads"), 2)
    assert_close(plain.everything(), traced.everything(), 1e-6)
    before = plain.holdings.plan.initial["head.bias"]
    assert float((plain.shared["head.bias"] - before).abs().max()) > 1e-3


@dataclass(frozen=True)
class Drawing(Erm):
    def loss(self, model: Bound, batch: Batch, client: Context) -> Tensor:
        return super().loss(model, batch, client) * torch.rand(())


@dataclass(frozen=True)
class DrawingWithNumpy(Erm):
    def loss(self, model: Bound, batch: Batch, client: Context) -> Tensor:
        return super().loss(model, batch, client) * np.random.rand()  # noqa: NPY002


@dataclass(frozen=True)
class DrawingWithPython(Erm):
    def loss(self, model: Bound, batch: Batch, client: Context) -> Tensor:
        return super().loss(model, batch, client) * random.random()


@pytest.mark.parametrize("objective", [Drawing(), DrawingWithNumpy(), DrawingWithPython()])
@pytest.mark.parametrize("executor", [ONE_BY_ONE, "threads"])
def test_hidden_randomness_is_refused_as_in_other_executors(
    executor: str, objective: Objective
) -> None:
    holdings = holdings_of(Recipe(objective=objective), executor)
    for result, steps in zip(
        train(works(holdings), holdings.training(Phase())), STEPS, strict=True
    ):
        assert isinstance(result, ConfigError)
        assert "draws random numbers by itself" in str(result)
        assert place_of(result) == f"batch 1 of {steps}"
