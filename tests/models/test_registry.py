"""Models from users' own functions: what they are given, and what is told of bad ones."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedskew.errors import ConfigError
from fedskew.models import Classifier, build

GREY = (1, 28, 28)


class Stray(Classifier):
    """A model that holds a parameter outside its two parts."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(784, 10))
        self.scale = nn.Parameter(torch.ones(1))


class OwnVae(nn.Module):
    """A user's VAE that inherits nothing of ours; without ``latent``, if none is given."""

    def __init__(self, latent: object = None, *, stray: bool = False) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(784, 4))
        self.decoder = nn.Sequential(nn.Linear(2, 784), nn.Unflatten(1, GREY))
        if latent is not None:
            self.latent = latent
        if stray:
            self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        drawn: Tensor = self.decoder(self.encoder(x)[:, :2])
        return drawn


def own_model(shape: tuple[int, ...], classes: int, *, depth: int = 1) -> nn.Module:
    hidden = [nn.Linear(shape[-1] ** 2, shape[-1] ** 2) for _ in range(depth - 1)]
    return Classifier(nn.Sequential(nn.Flatten(), *hidden), nn.Linear(shape[-1] ** 2, classes))


def failing_model(shape: tuple[int, ...], classes: int) -> nn.Module:
    raise ZeroDivisionError("no layers")


@pytest.fixture
def user_module(monkeypatch: pytest.MonkeyPatch) -> str:
    module = ModuleType("their_models")
    vars(module).update(
        good=own_model,
        failing=failing_model,
        number=3,
        listing=lambda shape, classes: [1],
        headless=lambda shape, classes: nn.Sequential(nn.Flatten()),
        stray=lambda shape, classes: Stray(),
        bare=lambda: Stray(),
        vae=lambda shape, classes: OwnVae(2),
        vae_without_latent=lambda shape, classes: OwnVae(),
        vae_with_half_a_latent=lambda shape, classes: OwnVae(1.5),
        vae_with_stray=lambda shape, classes: OwnVae(2, stray=True),
        lazy=lambda shape, classes: Classifier(nn.Flatten(), nn.LazyLinear(classes)),
        lazy_norm=lambda shape, classes: Classifier(
            nn.Sequential(nn.Flatten(), nn.LazyBatchNorm1d(affine=False)), nn.Linear(784, classes)
        ),
        encoder_alone=lambda shape, classes: nn.ModuleDict({"encoder": nn.Linear(784, 4)}),
    )
    monkeypatch.setitem(sys.modules, "their_models", module)
    return "their_models"


def test_a_users_factory_gets_shape_classes_and_settings(user_module: str) -> None:
    model = build(f"{user_module}:good", GREY, 10, depth=2)

    assert sum(parameter.numel() for parameter in model.parameters()) == 785 * 784 + 785 * 10
    assert model(torch.randn(2, *GREY)).shape == (2, 10)


def test_a_users_vae_needs_no_class_of_ours(user_module: str) -> None:
    model = build(f"{user_module}:vae", GREY, 10)

    assert isinstance(model, OwnVae)
    assert model(torch.randn(2, *GREY)).shape == (2, *GREY)


@pytest.mark.parametrize(
    ("factory", "knobs", "message"),
    [
        ("their_models:", {}, "must read 'module:function'"),
        (":good", {}, "must read 'module:function'"),
        ("no_such_models:good", {}, "module 'no_such_models' cannot be imported"),
        ("their_models:goood", {}, "module 'their_models' has no function 'goood'"),
        ("their_models:number", {}, "module 'their_models' has no function 'number'"),
        (
            "their_models:bare",
            {},
            "model 'their_models:bare' cannot be called as a model: too many positional arguments.",
        ),
        (
            "their_models:good",
            {"dep": 2},
            "unknown knob 'dep' of model 'their_models:good': did you mean 'depth'?",
        ),
        ("their_models:failing", {}, "raised ZeroDivisionError: no layers"),
        ("their_models:listing", {}, "must return a torch.nn.Module, not list"),
        ("their_models:headless", {}, "has no parameters to train."),
        ("their_models:lazy", {}, "has the lazy layer 'head', whose size its first batch would"),
        ("their_models:lazy_norm", {}, "has the lazy layer 'body.1'"),
        ("their_models:encoder_alone", {}, 'is missing the required "forward" function'),
        ("their_models:vae_with_stray", {}, "'scale' outside 'encoder' and 'decoder'"),
        ("their_models:vae_without_latent", {}, "so it needs a whole number 'latent'"),
        ("their_models:vae_with_half_a_latent", {}, "so it needs a whole number 'latent'"),
    ],
)
def test_a_users_factory_that_cannot_be_used_is_told_why(
    user_module: str, factory: str, knobs: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        build(factory, GREY, 10, **knobs)

    assert message in str(raised.value)
    assert repr(factory) in str(raised.value)
