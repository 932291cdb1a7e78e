"""The models: classifiers (a body that makes features, a head that makes logits), VAEs, MADEs.

All parameters of a classifier are named ``body.*`` or ``head.*``, of a VAE ``encoder.*`` or
``decoder.*``, of a class-informed one also ``classifier.*``, of a MADE ``hidden.*`` or
``output.*``. A user's module that has no such parts is taken apart at its head, or is one piece
(``whole.*``). Their state has no buffers but BatchNorm's, and they have no in-place operations and
no branches on data, so that a model can be called with other parameters
(``torch.func.functional_call``), over a stack of clients (``vmap``), and traced.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from fedskew.engine.torch_private import redraw_attention
from fedskew.errors import ConfigError
from fedskew.models import (  # noqa: F401  (they register)
    civae,
    cnn,
    linear,
    made,
    mlp,
    resnet,
    sequences,
    vae,
)
from fedskew.models.civae import Civae
from fedskew.models.classifier import FoundHead, OnePiece, tells_classes
from fedskew.models.registry import MODELS, Classifier, Shape, construct
from fedskew.models.vae import Vae

__all__ = [
    "MODELS",
    "Civae",
    "Classifier",
    "FoundHead",
    "OnePiece",
    "Vae",
    "build",
    "redrawn",
    "seeded",
    "tells_classes",
]


def build(name: str, sample_shape: Shape, classes: int, **knobs: object) -> nn.Module:
    """A model for samples of this shape, drawn from torch's current random state.

    ``name`` is a registered model, a model of a plug-in, or a user's ``module:factory``, which is
    called with (sample_shape, classes, **knobs).

    >>> model = build("mlp", (1, 8, 8), 10, hidden=[32])
    >>> [name for name, _ in model.named_parameters()]
    ['body.1.weight', 'body.1.bias', 'head.weight', 'head.bias']
    """
    return construct(name, sample_shape, classes, knobs)


def seeded(
    name: str, sample_shape: Shape, classes: int, *, seed: int, **knobs: object
) -> nn.Module:
    """The same as ``build``, with weights that depend only on the seed.

    Only the CPU generator is seeded, and restored afterwards: ``torch.manual_seed`` would also
    reset the generators of accelerators.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return build(name, sample_shape, classes, **knobs)


def redrawn(module: nn.Module, seed: int) -> dict[str, Tensor]:
    """The tensors of the same model, its layers initialised again from a seed."""
    copied = copy.deepcopy(module)
    attention: list[nn.MultiheadAttention] = []
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        for name, layer in copied.named_modules():
            if hasattr(layer, "reset_parameters"):
                layer.reset_parameters()
            elif isinstance(layer, nn.MultiheadAttention):
                attention.append(layer)
            elif next(layer.parameters(recurse=False), None) is not None:
                raise ConfigError(
                    f"layer {name!r} ({type(layer).__name__}) has no reset_parameters, so no "
                    "further initial model can be drawn: give it one, or choose knobs with "
                    "which all clients start from the same model (shared_start = true)."
                )
        for layer in attention:
            redraw_attention(layer)
    return {name: t.detach() for name, t in copied.state_dict().items()}
