"""Every registered model trains in the engine as it does in a plain PyTorch loop."""

from __future__ import annotations

import copy

import pytest
import torch
from helpers import assert_close, copied, make_site
from torch.nn import functional as F

from fedskew.data.federation import Client, Federation
from fedskew.engine.batches import schedule
from fedskew.engine.cohort import Trained, Work, train
from fedskew.engine.evaluate import trains_batch_statistics
from fedskew.engine.optim import Optimiser
from fedskew.models import describe, seeded
from fedskew.recipe import Phase, Recipe
from fedskew.site import Settings

SMALL: dict[str, dict[str, object]] = {
    "mlp": {"hidden": [8]},
    "femnist-cnn": {"k": 2},
    "cnn-bn": {"channels": 3},
    "resnet18": {"width": 2},
}


def images() -> Federation:
    """Two clients with 6 and 9 random pictures of 16x16 in three colours."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(15, 3, 16, 16, generator=generator)
    rows = torch.arange(15).numpy()
    return Federation(
        "pictures", x, torch.arange(15) % 4, tuple("abcd"),
        (Client("ann", rows[:6]), Client("bob", rows[6:])),
    )  # fmt: skip


@pytest.mark.parametrize("chunk", [1, 2], ids=["threads", "stacked"])
@pytest.mark.parametrize("name", [card.name for card in describe()])
def test_a_model_trains_as_in_a_plain_loop(name: str, chunk: int) -> None:
    """Compared are how far parameters went, so that a missing gradient cannot hide."""
    federation = images()
    model = seeded(name, (3, 16, 16), 4, seed=2, **SMALL.get(name, {}))
    ragged = trains_batch_statistics(model)
    if ragged and chunk > 1:
        pytest.skip("models with batch statistics are never stacked")
    settings = Settings(Optimiser("sgd", 0.02), epochs=1, batch_size=4)
    site = make_site(Recipe(), federation, model, settings, chunk=chunk)
    works = [Work(c.name, c.train, site.initial, key=(c.name,)) for c in federation.clients]
    for work, result in zip(works, train(works, site.training(Phase(), 1.0)), strict=True):
        assert isinstance(result, Trained), result
        plain = copy.deepcopy(model).train()
        optimiser = torch.optim.SGD(plain.parameters(), lr=0.02)
        plan = schedule(work.rows, work.key, 4, 1, not ragged)
        for positions, mask in zip(plan.positions, plan.mask, strict=True):
            rows = torch.from_numpy(work.rows[positions[mask > 0]])
            optimiser.zero_grad()
            loss = F.cross_entropy(plain(federation.x[rows]), federation.y[rows])
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        ours = {n: t - site.initial[n] for n, t in result.tensors.items()}
        theirs = {n: t - site.initial[n] for n, t in copied(plain.state_dict()).items()}
        assert_close(ours, theirs, 1e-5)
        assert all(bool(ours[n].any()) for n in site.parameters if "weight" in n)
