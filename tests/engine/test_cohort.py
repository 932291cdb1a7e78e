"""The training loop against eager PyTorch, on everything a recipe may ask of it."""

from __future__ import annotations

import copy
import resource
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import (
    Tensors,
    assert_close,
    assert_same_bits,
    copied,
    make_holdings,
    method_holdings,
    toy_federation,
    toy_model,
)
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from fedskew.engine.batches import schedule
from fedskew.engine.cohort import split, train
from fedskew.engine.optim import Optimiser
from fedskew.engine.training import Trained, Work
from fedskew.federate.holdings import Holdings
from fedskew.federate.plan import Settings
from fedskew.federate.recipe import Phase, Recipe
from fedskew.models.registry import Classifier
from fedskew.parts.objective import Batch, Bound, Context, Erm, Objective
from fedskew.parts.select import only
from fedskew.rng import stream

SETTINGS = Settings(Optimiser("sgd", 0.1), epochs=2, batch_size=8)


def works(holdings: Holdings, **changes: Any) -> list[Work]:
    return [
        replace(Work(c.name, c.train, holdings.plan.initial, key=("test", c.name)), **changes)
        for c in holdings.federation.clients
    ]


def trained(holdings: Holdings, work: list[Work], phase: Phase | None = None) -> list[Trained]:
    results = train(work, holdings.training(phase or holdings.plan.recipe.trains[0], 1.0))
    for result in results:
        if isinstance(result, Exception):
            raise result
    return [result for result in results if isinstance(result, Trained)]


def eager(
    holdings: Holdings, work: Work, loss: Any, environments: int = 1
) -> tuple[Tensors, float]:
    """One client, one batch at a time, with autograd; ``loss(tensors, x, y, step, places)``."""
    tensors = copied(work.tensors)
    environment = holdings.federation.environment
    plan = schedule(
        work.rows,
        work.key,
        holdings.plan.settings.batch_size,
        holdings.plan.settings.epochs,
        True,
        None if environment is None else environment.numpy()[work.rows],
        environments,
    )
    losses = []
    for step in range(plan.steps):
        places = plan.positions[step][plan.mask[step] > 0]
        rows = torch.from_numpy(work.rows[places])
        leaves = {n: t.requires_grad_() for n, t in copied(tensors).items()}
        value = loss(leaves, holdings.federation.x[rows], holdings.federation.y[rows], step, places)
        gradients = torch.autograd.grad(value, list(leaves.values()))
        losses.append(float(value.detach()))
        for name, gradient in zip(leaves, gradients, strict=True):
            tensors[name] = tensors[name] - holdings.plan.settings.optimiser.lr * gradient
    return tensors, float(np.mean(losses))


@pytest.mark.parametrize("chunk", [1, 4])
def test_a_client_takes_the_steps_of_eager_pytorch_and_reports_their_mean_loss(chunk: int) -> None:
    holdings = make_holdings(Recipe(), settings=SETTINGS, chunk=chunk)

    def loss(tensors: Tensors, x: Tensor, y: Tensor, *_: Any) -> Tensor:
        return F.cross_entropy(functional_call(holdings.plan.module, tensors, (x,)), y)

    for work, result in zip(works(holdings), trained(holdings, works(holdings)), strict=True):
        expected, mean_loss = eager(holdings, work, loss)
        assert_close(result.tensors, expected, 1e-5)
        assert result.loss == pytest.approx(mean_loss, abs=1e-5)
        assert result.steps == 2 * -(-len(work.rows) // 8)


def test_training_leaves_the_tensors_it_was_given_alone() -> None:
    holdings = make_holdings(Recipe(), chunk=4)
    before = copied(holdings.plan.initial)
    trained(holdings, works(holdings))
    assert_close(holdings.plan.initial, before, 0.0)


def test_parameters_outside_the_phase_do_not_move() -> None:
    phase = Phase(trains=only("head"))
    holdings = make_holdings(Recipe(trains=(phase,)), chunk=4)
    for result in trained(holdings, works(holdings), phase):
        moved = {
            n for n, t in result.tensors.items() if not torch.equal(t, holdings.plan.initial[n])
        }
        assert moved == {"head.weight", "head.bias"}


@pytest.mark.parametrize("chunk", [1, 4])
def test_sample_weights_scale_losses_and_not_the_number_of_samples(chunk: int) -> None:
    holdings = make_holdings(Recipe(), settings=SETTINGS, chunk=chunk)
    weights = {c.name: torch.rand(len(c.train)) * 2 for c in holdings.federation.clients}
    weighted = [replace(w, sample_weight=weights[w.name]) for w in works(holdings)]
    for work, result in zip(weighted, trained(holdings, weighted), strict=True):

        def loss(
            tensors: Tensors, x: Tensor, y: Tensor, _: int, places: Any, work: Work = work
        ) -> Tensor:
            each = F.cross_entropy(
                functional_call(holdings.plan.module, tensors, (x,)), y, reduction="none"
            )
            return (each * weights[work.name][places]).sum() / len(y)

        assert_close(result.tensors, eager(holdings, work, loss)[0], 1e-5)


def test_weights_of_one_change_nothing_beside_clients_that_have_none() -> None:
    holdings = make_holdings(Recipe(), chunk=4)
    plain = trained(holdings, works(holdings))
    mixed = works(holdings)
    mixed[1] = replace(mixed[1], sample_weight=torch.ones(len(mixed[1].rows)))
    for ours, theirs in zip(trained(holdings, mixed), plain, strict=True):
        assert_close(ours.tensors, theirs.tensors, 1e-6)


@dataclass(frozen=True)
class Jittered(Erm):
    """Cross-entropy on inputs with half a standard normal added, so that noise matters."""

    def noise(self, module: nn.Module, samples: int) -> dict[str, tuple[int, ...]]:
        return {"jitter": (samples, module.get_parameter("body.0.weight").shape[1])}

    def loss(self, model: Bound, batch: Batch, client: Context) -> Tensor:
        noisy = batch.x + 0.5 * batch.noise["jitter"]
        return batch.mean(F.cross_entropy(model(noisy), batch.y, reduction="none"))


@pytest.mark.parametrize("chunk", [1, 4])
def test_noise_comes_from_the_stream_of_its_client(chunk: int) -> None:
    holdings = make_holdings(Recipe(objective=Jittered()), settings=SETTINGS, chunk=chunk)
    for work, result in zip(works(holdings), trained(holdings, works(holdings)), strict=True):
        steps = 2 * -(-len(work.rows) // 8)
        draws = stream(0, "noise", "jitter", *work.key).standard_normal(
            (steps, 8, 6), dtype=np.float32
        )

        def loss(
            tensors: Tensors, x: Tensor, y: Tensor, step: int, _: Any, draws: Any = draws
        ) -> Tensor:
            noisy = x + 0.5 * torch.from_numpy(draws[step, : len(x)])
            return F.cross_entropy(functional_call(holdings.plan.module, tensors, (noisy,)), y)

        assert_close(result.tensors, eager(holdings, work, loss)[0], 1e-5)


@dataclass(frozen=True)
class Apart(Erm):
    """The sum of the mean losses of two environments, plus the square of their difference."""

    by_environment = True

    def loss(self, model: Bound, batch: Batch, client: Context) -> Tensor:
        assert batch.environments == 2
        first, second = batch.risks(F.cross_entropy(model(batch.x), batch.y, reduction="none"))
        return first + second + (first - second) ** 2


@pytest.mark.parametrize("chunk", [1, 4])
def test_every_step_sees_a_batch_of_each_environment(chunk: int) -> None:
    federation = toy_federation((12, 30, 21))
    federation = federation.with_data(environment=torch.arange(len(federation.y)) % 3 // 2)
    holdings = make_holdings(Recipe(objective=Apart()), federation, settings=SETTINGS, chunk=chunk)

    def loss(tensors: Tensors, x: Tensor, y: Tensor, *_: Any) -> Tensor:
        assert len(x) == 16
        each = F.cross_entropy(
            functional_call(holdings.plan.module, tensors, (x,)), y, reduction="none"
        )
        first, second = each[:8].mean(), each[8:].mean()
        return first + second + (first - second) ** 2

    for work, result in zip(works(holdings), trained(holdings, works(holdings)), strict=True):
        expected, _ = eager(holdings, work, loss, environments=2)
        assert_close(result.tensors, expected, 1e-5)


@pytest.mark.parametrize("chunk", [1, 4])
def test_a_client_of_one_environment_has_ordinary_batches(chunk: int) -> None:
    """Its risk is that of plain training, the other environment's is nought."""
    federation = toy_federation((12, 30, 21))
    environment = torch.arange(len(federation.y)) % 2
    environment[federation.clients[1].train] = 1
    federation = federation.with_data(environment=environment)
    holdings = make_holdings(Recipe(objective=Apart()), federation, settings=SETTINGS, chunk=chunk)

    def loss(tensors: Tensors, x: Tensor, y: Tensor, *_: Any) -> Tensor:
        mean = F.cross_entropy(functional_call(holdings.plan.module, tensors, (x,)), y)
        return mean + mean**2

    work = works(holdings)[1]
    result = trained(holdings, works(holdings))[1]
    assert_close(result.tensors, eager(holdings, work, loss)[0], 1e-5)


@dataclass(frozen=True)
class Counting(Erm):
    """Weighs a step's loss by how many the client remembers, this one included."""

    def memory(self, environments: int, parameters: Tensors) -> Tensors:
        return {"count": torch.zeros(())}

    def gradient(
        self, module: nn.Module, trained: Tensors, fixed: Tensors, batch: Batch, client: Context
    ) -> tuple[Tensors, Tensor, Tensors]:
        gradients, loss, _ = super().gradient(module, trained, fixed, batch, client)
        count = client["count"] + 1
        return {n: g * count for n, g in gradients.items()}, loss * count, {"count": count}


@pytest.mark.parametrize("chunk", [1, 4])
def test_what_an_objective_remembers_goes_from_step_to_step_and_from_call_to_call(
    chunk: int,
) -> None:
    """Clients of different lengths: whoever is done must not go on counting."""
    holdings = make_holdings(Recipe(objective=Counting()), settings=SETTINGS, chunk=chunk)
    works_before = [replace(w, memory={"count": torch.tensor(3.0)}) for w in works(holdings)]
    for before, given in ((0, works(holdings)), (3, works_before)):

        def loss(
            tensors: Tensors, x: Tensor, y: Tensor, step: int, _: Any, before: int = before
        ) -> Tensor:
            mean = F.cross_entropy(functional_call(holdings.plan.module, tensors, (x,)), y)
            return (before + step + 1) * mean

        for work, result in zip(given, trained(holdings, given), strict=True):
            assert_close(result.tensors, eager(holdings, work, loss)[0], 1e-5)
            assert result.memory["count"].item() == before + result.steps


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the memory in use there")
def test_a_traced_step_keeps_no_copy_of_the_data() -> None:
    """Two shapes are traced, and the data take 200 MB, of which clients hold little."""

    def megabytes() -> float:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6

    federation = toy_federation((12, 30))
    x = torch.ones(100_000, 500)
    labels = torch.zeros(len(x), dtype=torch.int64)
    large = federation.with_data(x=x, y=labels, environment=None)
    module = Classifier(nn.Linear(500, 5), nn.Linear(5, 3))
    holdings = make_holdings(Recipe(), large, module, SETTINGS, chunk=1)
    before = megabytes()
    trained(holdings, works(holdings))
    graphs = holdings.training(holdings.plan.recipe.trains[0]).step._graphs
    assert len(graphs) >= 2
    assert megabytes() - before < 0.5 * x.numel() * 4 / 1e6


@dataclass(frozen=True)
class SignAgreement(Erm):
    """Follows only the gradients of the two halves of a batch that agree in sign."""

    def gradient(
        self, module: nn.Module, trained: Tensors, fixed: Tensors, batch: Batch, client: Context
    ) -> tuple[Tensors, Tensor, Tensors]:
        halves = [
            super(SignAgreement, self).gradient(
                module, trained, fixed, replace(batch, weight=batch.weight * half), client
            )
            for half in (torch.arange(8) < 4, torch.arange(8) >= 4)
        ]
        (first, loss, buffers), (second, other, _) = halves
        agreed = {n: (first[n] + second[n]) * (first[n] * second[n] > 0) for n in trained}
        return agreed, loss + other, buffers


def test_an_objective_may_follow_something_that_is_no_gradient_of_a_loss() -> None:
    federation = toy_federation((16, 24))
    holdings = make_holdings(
        Recipe(objective=SignAgreement()), federation, settings=SETTINGS, chunk=2
    )
    for work, result in zip(works(holdings), trained(holdings, works(holdings)), strict=True):
        tensors = copied(work.tensors)
        plan = schedule(work.rows, work.key, 8, 2, True)
        for positions in plan.positions:
            rows = torch.from_numpy(work.rows[positions])
            halves = []
            for part in (rows[:4], rows[4:]):
                leaves = {n: t.requires_grad_() for n, t in copied(tensors).items()}
                logits = functional_call(holdings.plan.module, leaves, (federation.x[part],))
                value = F.cross_entropy(logits, federation.y[part], reduction="sum") / 8
                halves.append(torch.autograd.grad(value, list(leaves.values())))
            for name, first, second in zip(tensors, *halves, strict=True):
                agreed = (first + second) * (torch.sign(first) == torch.sign(second))
                tensors[name] = tensors[name] - 0.1 * agreed
        assert_close(result.tensors, tensors, 1e-5)


def test_batch_norm_moves_its_statistics_as_in_a_plain_module() -> None:
    holdings = make_holdings(Recipe(), toy_federation((21, 16)), toy_model("batch-norm"), SETTINGS)
    for work, result in zip(works(holdings), trained(holdings, works(holdings)), strict=True):
        model = copy.deepcopy(holdings.plan.module).train()
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        plan = schedule(work.rows, work.key, 8, 2, pads=False)
        for positions, mask in zip(plan.positions, plan.mask, strict=True):
            rows = torch.from_numpy(work.rows[positions[mask > 0]])
            optimiser.zero_grad()
            value = F.cross_entropy(model(holdings.federation.x[rows]), holdings.federation.y[rows])
            value.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        assert_close(result.tensors, copied(model.state_dict()), 1e-5)
        assert int(result.tensors["body.1.num_batches_tracked"]) == plan.steps


class Shifted(nn.Module):
    """Adds a constant that is a buffer, but not part of the state."""

    shift: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("shift", torch.arange(6.0), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.shift


def test_a_model_may_hold_constants_as_buffers_outside_its_state() -> None:
    model = Classifier(Shifted(), nn.Linear(6, 3))
    holdings = make_holdings(Recipe(), module=model, settings=SETTINGS, chunk=4)

    def loss(tensors: Tensors, x: Tensor, y: Tensor, *_: Any) -> Tensor:
        return F.cross_entropy(functional_call(model, tensors, (x,)), y)

    for work, result in zip(works(holdings), trained(holdings, works(holdings)), strict=True):
        assert_close(result.tensors, eager(holdings, work, loss)[0], 1e-5)


class Twisted(nn.Module):
    """Uses its weights turned around, so that their gradients lie in memory otherwise than they."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.linspace(-1, 1, 24).reshape(6, 4))
        self.cube = nn.Parameter(torch.linspace(-1, 1, 60).reshape(3, 4, 5))

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(x @ self.matrix)
        return torch.einsum("bi,jik->bkj", hidden, self.cube).flatten(1)


@pytest.mark.parametrize("optimiser", [Optimiser("sgd", 0.1), Optimiser("sgd", 0.1, 0.5)], ids=str)
@pytest.mark.parametrize("chunk", [1, 4])
def test_gradients_may_lie_in_memory_in_any_order(chunk: int, optimiser: Optimiser) -> None:
    model = Classifier(Twisted(), nn.Linear(15, 3))
    settings = Settings(optimiser, epochs=2, batch_size=8)
    holdings = make_holdings(Recipe(), module=model, settings=settings, chunk=chunk)
    for work, result in zip(works(holdings), trained(holdings, works(holdings)), strict=True):
        plain = copy.deepcopy(model)
        sgd = torch.optim.SGD(plain.parameters(), 0.1, optimiser.momentum)
        plan = schedule(work.rows, work.key, 8, 2, pads=True)
        for positions, mask in zip(plan.positions, plan.mask, strict=True):
            rows = torch.from_numpy(work.rows[positions[mask > 0]])
            sgd.zero_grad()
            value = F.cross_entropy(plain(holdings.federation.x[rows]), holdings.federation.y[rows])
            value.backward()  # type: ignore[no-untyped-call]
            sgd.step()
        assert_close(result.tensors, copied(plain.state_dict()), 1e-5)


@pytest.mark.parametrize("chunk", [1, 2, 4])
def test_a_client_that_raises_harms_nobody_else(chunk: int) -> None:
    holdings = make_holdings(Recipe(), settings=SETTINGS, chunk=chunk)
    healthy = trained(holdings, works(holdings))
    broken = works(holdings)
    broken[2] = replace(broken[2], rows=broken[2].rows + 10_000)
    results = train(broken, holdings.training(Phase(), 1.0))
    assert isinstance(results[2], IndexError | RuntimeError)
    for i in (0, 1, 3):
        result = results[i]
        assert isinstance(result, Trained)
        assert_close(result.tensors, healthy[i].tensors, 1e-5)


def test_a_client_whose_loss_is_not_a_number_harms_nobody_in_its_stack() -> None:
    holdings = make_holdings(Recipe(), settings=SETTINGS, chunk=4)
    healthy = trained(holdings, works(holdings))
    poisoned = works(holdings)
    weight = torch.full((len(poisoned[1].rows),), float("nan"))
    poisoned[1] = replace(poisoned[1], sample_weight=weight)
    results = trained(holdings, poisoned)
    assert torch.isnan(results[1].tensors["head.weight"]).all()
    for i in (0, 2, 3):
        assert_close(results[i].tensors, healthy[i].tensors, 1e-5)


def test_a_single_sample_under_batch_norm_is_one_lost_client() -> None:
    federation = toy_federation((1, 16))
    holdings = make_holdings(Recipe(), federation, toy_model("batch-norm"), SETTINGS)
    alone, other = train(works(holdings), holdings.training(Phase(), 1.0))
    assert isinstance(alone, ValueError)
    assert isinstance(other, Trained)


def test_an_objective_that_raises_fails_every_client_with_its_reason() -> None:
    @dataclass(frozen=True)
    class Broken(Objective):
        def loss(self, model: Bound, batch: Batch, client: Context) -> Tensor:
            raise ZeroDivisionError("by design")

    holdings = make_holdings(Recipe(objective=Broken()), chunk=4)
    results = train(works(holdings), holdings.training(Phase(), 1.0))
    assert [str(result) for result in results] == ["by design"] * 4


def test_results_stand_in_the_order_of_the_work() -> None:
    holdings = make_holdings(Recipe(), settings=SETTINGS, chunk=2)
    forwards = trained(holdings, works(holdings))
    backwards = trained(holdings, works(holdings)[::-1])[::-1]
    for ours, theirs in zip(backwards, forwards, strict=True):
        assert_close(ours.tensors, theirs.tensors, 0.0)


@pytest.mark.parametrize(
    ("count", "most", "lengths"),
    [(50, 32, [25, 25]), (7, 3, [3, 2, 2]), (3, 8, [2, 1]), (0, 4, [])],
)
def test_chunks_are_as_equal_as_can_be(count: int, most: int, lengths: list[int]) -> None:
    chunks = list(split(range(count), most))
    assert [len(chunk) for chunk in chunks] == lengths
    assert [i for chunk in chunks for i in chunk] == list(range(count))


def test_the_order_in_which_a_dictionary_names_tensors_changes_nothing() -> None:
    """A personal model read back from disk names its tensors in another order."""
    holdings = method_holdings("ditto", "mlp", {"lam": 0.3})
    phase = holdings.plan.recipe.trains[1]
    client = holdings.federation.clients[0]
    shuffled = dict(sorted(holdings.plan.initial.items(), key=lambda item: item[0][::-1]))
    assert list(shuffled) != list(holdings.plan.initial)

    def trained(tensors: dict[str, Tensor], received: dict[str, Tensor]) -> dict[str, Tensor]:
        names = holdings.training(phase).trained
        context = {"received": {n: received[n] for n in received if n in names}}
        work = Work(client.name, client.train, tensors, context, key=(0, client.name))
        (result,) = train([work], holdings.training(phase))
        assert isinstance(result, Trained)
        return result.tensors

    one = trained(holdings.plan.initial, shuffled)
    other = trained(shuffled, holdings.plan.initial)
    assert_same_bits(one, other)
