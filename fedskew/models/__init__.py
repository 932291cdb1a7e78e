"""The models: classifiers (a body that makes features, a head that makes logits), VAEs, MADEs.

All parameters of a classifier are named ``body.*`` or ``head.*``, of a VAE ``encoder.*`` or
``decoder.*``, of a class-informed one also ``classifier.*``, of a MADE ``hidden.*`` or
``output.*``. There are no buffers in their state but BatchNorm's, no in-place operations and no
branches on data, so that a model can be called with other parameters
(``torch.func.functional_call``), over a stack of clients (``vmap``) and traced.
"""

from __future__ import annotations

import copy
import inspect
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedskew.errors import ConfigError
from fedskew.models import (  # noqa: F401  (they register)
    civae,
    cnn,
    linear,
    made,
    mlp,
    resnet,
    vae,
)
from fedskew.models.civae import Civae
from fedskew.models.own import construct_own
from fedskew.models.registry import MODELS, Classifier, Shape, construct
from fedskew.models.vae import Vae

__all__ = ["Civae", "Classifier", "ModelCard", "Vae", "build", "describe", "redrawn", "seeded"]


@dataclass(frozen=True)
class ModelCard:
    """What ``fedskew list models`` prints about one model."""

    name: str
    summary: str
    knobs: dict[str, object]


def build(name: str, sample_shape: Shape, classes: int, **knobs: object) -> nn.Module:
    """A model for samples of this shape, drawn from torch's current random state.

    ``name`` is a registered model or a user's ``module:factory``, which is called with
    (sample_shape, classes, **knobs).

    >>> model = build("mlp", (1, 8, 8), 10, hidden=[32])
    >>> [name for name, _ in model.named_parameters()]
    ['body.1.weight', 'body.1.bias', 'head.weight', 'head.bias']
    """
    if ":" in name:
        return construct_own(name, sample_shape, classes, knobs)
    return construct(name, sample_shape, classes, knobs)


def seeded(
    name: str, sample_shape: Shape, classes: int, *, seed: int, **knobs: object
) -> nn.Module:
    """The same as ``build`` with weights that depend on the seed alone.

    Only the CPU generator is seeded, and put back afterwards: ``torch.manual_seed`` would also
    reset the generators of accelerators, which nobody asked for.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return build(name, sample_shape, classes, **knobs)


def redrawn(module: nn.Module, seed: int) -> dict[str, Tensor]:
    """The tensors of the same model, its layers initialised anew from a seed."""
    copied = copy.deepcopy(module)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        for name, layer in copied.named_modules():
            if hasattr(layer, "reset_parameters"):
                layer.reset_parameters()
            elif next(layer.parameters(recurse=False), None) is not None:
                raise ConfigError(
                    f"layer {name!r} ({type(layer).__name__}) has no reset_parameters, so no "
                    "further initial model can be drawn: give it one, or choose settings under "
                    "which all begin with one model (shared_start = true)."
                )
    return {name: t.detach() for name, t in copied.state_dict().items()}


def describe() -> list[ModelCard]:
    """All registered models, by name, with their settings and defaults."""
    return [
        ModelCard(name, _first_line(entry.factory), entry.knobs)
        for name, entry in sorted(MODELS.items())
    ]


def _first_line(documented: object) -> str:
    return (inspect.getdoc(documented) or "").partition("\n")[0]
