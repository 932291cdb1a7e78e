"""Layers that keep statistics train one client at a time, as in plain PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from helpers import assert_close, copied, make_holdings, toy_federation
from torch import Tensor, nn
from torch.nn import functional as F

from fedskew.engine.batches import schedule
from fedskew.engine.cohort import train
from fedskew.engine.evaluate import trains_batch_statistics
from fedskew.engine.executor import choose
from fedskew.engine.optim import Optimiser
from fedskew.engine.training import Trained, Work
from fedskew.federate.plan import Settings
from fedskew.federate.recipe import Phase, Recipe
from fedskew.federate.scoring import score_samples
from fedskew.federate.tasks import ScoreTask
from fedskew.methods import find
from fedskew.models import MODELS, seeded
from fedskew.models.registry import Classifier


class RunningCentre(nn.Module):
    """A user's own layer: it subtracts a moving average of what it has seen in training."""

    centre: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.centre.mul_(0.7).add_(0.3 * x.detach().mean(dim=0))
        return x - self.centre


def lines() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (2, 4)), nn.InstanceNorm1d(2, track_running_stats=True), nn.Flatten()
    )


def squares() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (2, 2, 2)),
        nn.InstanceNorm2d(2, momentum=0.3, affine=True, track_running_stats=True),
        nn.Flatten(),
    )


def model_with(layer: Callable[[], nn.Module]) -> Classifier:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return Classifier(nn.Sequential(nn.Linear(6, 8), layer(), nn.Tanh()), nn.Linear(8, 3))


KEEPING = pytest.mark.parametrize("layer", [lines, squares, RunningCentre])


@KEEPING
def test_layers_that_keep_statistics_are_never_stacked(layer: Callable[[], nn.Module]) -> None:
    for executor in ("auto", "vectorised"):
        found = choose(model_with(layer), executor, 8)
        assert (found.executor, found.chunk) == ("threads", 1)


@KEEPING
@pytest.mark.parametrize("executor", ["vectorised", "threads", "one-by-one"])
def test_kept_statistics_are_those_of_plain_pytorch(
    layer: Callable[[], nn.Module], executor: str
) -> None:
    """Of clients with unlike numbers of samples, whose last batches are short."""
    federation, model = toy_federation((13, 19, 22)), model_with(layer)
    settings = Settings(Optimiser("sgd", 0.1), epochs=2, batch_size=8)
    holdings = make_holdings(Recipe(), federation, model, settings, chunk=3, executor=executor)
    works = [
        Work(c.name, c.train, holdings.plan.initial, key=(c.name,)) for c in federation.clients
    ]
    for work, result in zip(works, train(works, holdings.training(Phase(), 1.0)), strict=True):
        assert isinstance(result, Trained), result
        plain = copy.deepcopy(model).train()
        optimiser = torch.optim.SGD(plain.parameters(), lr=0.1)
        plan = schedule(work.rows, work.key, 8, 2, pads=False)
        for positions, mask in zip(plan.positions, plan.mask, strict=True):
            rows = torch.from_numpy(work.rows[positions[mask > 0]])
            optimiser.zero_grad()
            loss = F.cross_entropy(plain(federation.x[rows]), federation.y[rows])
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        assert_close(result.tensors, copied(plain.state_dict()), 1e-5)
        moved = [n for n, _ in model.named_buffers() if not n.endswith("num_batches_tracked")]
        for name in moved:
            away = (result.tensors[name] - holdings.plan.initial[name]).abs().max()
            assert float(away) > 1e-3, name


def test_only_models_with_buffers_in_their_state_keep_statistics() -> None:
    """Ours have none but BatchNorm's; instances normalised by themselves alone leave no trace."""
    keeping = {
        name for name, entry in MODELS.items()
        if trains_batch_statistics(
            seeded(name, (2, 16), 4, seed=0)
            if "signals" in entry.kinds
            else seeded(name, (16,), 4, seed=0, vocabulary=9)
            if entry.kinds
            else seeded(name, (3, 16, 16), 4, seed=0)
        )
    }  # fmt: skip
    assert keeping == {"cnn-babu", "cnn-bn", "resnet18"}
    assert not trains_batch_statistics(nn.InstanceNorm1d(2))


def test_an_unseen_client_of_fedbn_averages_instance_statistics_over_its_own_inputs() -> None:
    holdings = make_holdings(find("fedbn").recipe(), module=model_with(lines))
    plan, federation = holdings.plan, holdings.federation
    (client,) = federation.unseen
    sent = {name: plan.initial[name] for name in plan.shared}
    (looked,) = score_samples(
        holdings, [ScoreTask(client.name, 1, sent, "personal", ("test",))], {}
    )
    outputs = federation.x[client.train] @ plan.initial["body.0.weight"].T
    rows = (outputs + plan.initial["body.0.bias"]).reshape(-1, 2, 4)
    found = looked.model["body.1.1.running_mean"], looked.model["body.1.1.running_var"]
    torch.testing.assert_close(found[0], rows.mean(dim=(0, 2)))
    torch.testing.assert_close(found[1], rows.var(dim=2).mean(dim=0))
