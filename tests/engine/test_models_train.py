"""Every registered model trains in the engine as it does in a plain PyTorch loop."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from helpers import assert_close, copied, make_holdings
from torch import Tensor, nn
from torch.distributions import Categorical, MixtureSameFamily, Normal
from torch.nn import functional as F

from fedskew.data.federation import Client, Federation
from fedskew.engine.batches import schedule
from fedskew.engine.cohort import train
from fedskew.engine.evaluate import trains_batch_statistics
from fedskew.engine.optim import Optimiser
from fedskew.engine.training import Trained, Work
from fedskew.federate.plan import Settings
from fedskew.federate.recipe import Phase, Recipe
from fedskew.models import MODELS, Civae, Vae, seeded
from fedskew.models.made import Made
from fedskew.models.registry import for_samples
from fedskew.parts.civae import CivaeLoss
from fedskew.parts.density import DensityLoss
from fedskew.parts.generative import VaeLoss
from fedskew.rng import stream

SMALL: dict[str, dict[str, object]] = {
    "mlp": {"hidden": [8]},
    "femnist-cnn": {"k": 2},
    "cnn-bn": {"channels": 3},
    "resnet18": {"width": 2},
    "beta-vae": {"hidden": [8]},
    "conv-vae": {"latent": 3},
    "transformer": {"units": 8, "heads": 2, "dropout": 0.0},
    "lstm": {"layers": 2},
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


def sequences(tokens: bool) -> Federation:
    """The same clients with texts of 1 to 9 words, or signals of two channels."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(15, 2, 9, generator=generator)
    rows = torch.arange(15).numpy()
    if tokens:
        ids = torch.randint(1, 12, (15, 9), generator=generator)
        x = ids * (torch.arange(9) <= torch.arange(15).unsqueeze(1) % 9)
    return Federation(
        "sequences", x, torch.arange(15) % 4, tuple("abcd"),
        (Client("ann", rows[:6]), Client("bob", rows[6:])), vocabulary=12 if tokens else 0,
    )  # fmt: skip


def density_loss_of(described: Tensor, x: Tensor) -> Tensor:
    """What a MADE has to minimise: of one number an input log odds, of more a mixture."""
    if described.shape[1] == 1:
        loss = F.binary_cross_entropy_with_logits(described[:, 0], x, reduction="sum")
        return loss / len(x)
    shares, mean, log_scale = described.transpose(1, 2).chunk(3, dim=2)
    mixture = MixtureSameFamily(Categorical(logits=shares), Normal(mean, log_scale.exp()))
    found: Tensor = -mixture.log_prob(x).sum() / len(x)  # type: ignore[no-untyped-call]
    return found


def loss_of(model: nn.Module, x: Tensor, y: Tensor, noise: Tensor) -> Tensor:
    """Cross-entropy, or what a VAE with β = 20 has to minimise, for one code drawn a sample.

    A class-informed one has three times the cross-entropy of its codes on top.
    """
    if isinstance(model, Made):
        return density_loss_of(model(x), x.flatten(1))
    if not isinstance(model, Vae):
        return F.cross_entropy(model(x), y)
    mean, log_variance = model.encoder(x).chunk(2, dim=1)
    codes = mean + log_variance.exp().sqrt() * noise
    divergence: Tensor = (mean**2 + log_variance.exp() - log_variance - 1).sum() / 2
    loss = (F.mse_loss(model.decoder(codes), x, reduction="sum") + 20 * divergence) / len(x)
    if isinstance(model, Civae):
        loss = loss + 3 * F.cross_entropy(model.classifier(codes), y)
    return loss


@pytest.mark.parametrize("chunk", [1, 2], ids=["threads", "stacked"])
@pytest.mark.parametrize(
    ("name", "kind"),
    [(name, kind) for name, entry in MODELS.items() for kind in (entry.kinds or ("images",))],
)
def test_a_model_trains_as_in_a_plain_loop(name: str, kind: str, chunk: int) -> None:
    """Compared are how far parameters went, so that a missing gradient cannot hide."""
    federation = images() if kind == "images" else sequences(kind == "tokens")
    knobs = for_samples(name, SMALL.get(name, {}), federation.sample_shape, federation.vocabulary)
    model = seeded(name, federation.sample_shape, 4, seed=2, **knobs)
    ragged = trains_batch_statistics(model)
    if ragged and chunk > 1:
        pytest.skip("models with batch statistics are never stacked")
    # A sum over 768 pixels has steeper gradients than a cross-entropy.
    lr, recipe, latent = 0.02, Recipe(), 0
    if isinstance(model, Vae):
        lr, recipe, latent = 5e-3, Recipe(objective=VaeLoss(beta=20.0)), model.latent
    if isinstance(model, Made):
        lr, recipe = 1e-3, Recipe(objective=DensityLoss())
    if isinstance(model, Civae):
        recipe = Recipe(objective=CivaeLoss(beta=20.0, scale=1.0, kl="sum"))
    settings = Settings(Optimiser("sgd", lr), epochs=1, batch_size=4)
    holdings = make_holdings(recipe, federation, model, settings, chunk=chunk)
    works = [
        Work(c.name, c.train, holdings.plan.initial, key=(c.name,)) for c in federation.clients
    ]
    for work, result in zip(works, train(works, holdings.training(Phase(), 1.0)), strict=True):
        assert isinstance(result, Trained), result
        plain = copy.deepcopy(model).train()
        optimiser = torch.optim.SGD(plain.parameters(), lr=lr)
        plan = schedule(work.rows, work.key, 4, 1, not ragged)
        noise = stream(0, "noise", "codes", *work.key).standard_normal(
            (plan.steps, plan.positions.shape[1], latent), dtype=np.float32
        )
        for positions, mask, draws in zip(plan.positions, plan.mask, noise, strict=True):
            rows = torch.from_numpy(work.rows[positions[mask > 0]])
            optimiser.zero_grad()
            codes = torch.from_numpy(draws[: len(rows)])
            loss = loss_of(plain, federation.x[rows], federation.y[rows], codes)
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        ours = {n: t - holdings.plan.initial[n] for n, t in result.tensors.items()}
        theirs = {n: t - holdings.plan.initial[n] for n, t in copied(plain.state_dict()).items()}
        assert_close(ours, theirs, 1e-5)
        assert all(bool(ours[n].any()) for n in holdings.plan.parameters if "weight" in n)
