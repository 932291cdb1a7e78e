"""The table of models: each registers a factory with its knobs, and the smallest image it takes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fedskew.errors import ConfigError, FedskewError
from fedskew.registry.entries import Entry, Registry
from fedskew.registry.knobs import Knob

Shape = tuple[int, ...]
Hidden = Annotated[Sequence[int], Knob("units of each hidden layer, first to last", ge=1)]
Latent = Annotated[int, Knob("dimensions of a code", ge=1)]


class Classifier(nn.Module):
    """A body that makes features and a head that turns them into logits.

    Methods that treat the two differently (frozen heads, private heads) tell them apart by the
    parameter names ``body.*`` and ``head.*``, so nothing else may hold parameters.
    """

    def __init__(self, body: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        """Logits of a batch."""
        logits: Tensor = self.head(self.body(x))
        return logits


CLASSIFIER = ("body", "head")
VAE = ("encoder", "decoder")
MADE = ("hidden", "output")


@dataclass(frozen=True)
class Model(Entry):
    """A registered factory ``(sample_shape, classes, **knobs)``.

    ``min_side`` is None for models that flatten whatever they get. ``parts`` are the model's
    children, which between them hold every parameter.
    """

    min_side: int | None = field(default=None, kw_only=True)
    parts: tuple[str, ...] = field(default=CLASSIFIER, kw_only=True)

    def takes(self, shape: Shape) -> bool:
        """Whether samples of this shape fit."""
        if self.min_side is None:
            return True
        return len(shape) == 3 and min(shape[1:]) >= self.min_side


MODELS = Registry("model", "models", Model, leading=2)
register = MODELS.register


def construct(name: str, shape: Shape, classes: int, knobs: Mapping[str, Any]) -> nn.Module:
    """Build a model after checking its knobs and the shape of the samples."""
    entry = MODELS.find(name)
    entry.check(knobs)
    _check_shape(entry, shape)
    if entry.function.__module__.startswith("fedskew."):
        _check_size(entry, shape, classes, knobs)
        module: nn.Module = entry.make(shape, classes, **knobs)
        return module
    try:
        return _checked(entry, entry.make(shape, classes, **knobs))
    except FedskewError:
        raise
    except Exception as error:
        raise ConfigError(f"{entry.title} raised {type(error).__name__}: {error}") from error


def _check_shape(entry: Model, shape: Shape) -> None:
    """Refuse images too small for the model before torch fails inside a convolution."""
    if entry.takes(shape):
        return
    fitting = ", ".join(
        sorted(n for n, e in MODELS.items() if e.parts == entry.parts and e.takes(shape))
    )
    if len(shape) != 3:
        raise ConfigError(
            f"{entry.title} needs images of shape (channels, height, width), but the "
            f"samples have shape {shape}: choose from {fitting}."
        )
    raise ConfigError(
        f"{entry.title} needs images of at least {entry.min_side}x{entry.min_side} pixels, "
        f"but these are {shape[1]}x{shape[2]}: choose from {fitting}."
    )


WIDE = 512
"""Up to this number of channels, models of this package fit any machine."""


def _check_size(entry: Model, shape: Shape, classes: int, knobs: Mapping[str, Any]) -> None:
    """Refuse layers whose weights this machine could not hold four times over."""
    given = {
        name: value for name, value in {**entry.defaults, **knobs}.items() if "seed" not in name
    }
    lists = [[], *(value for value in given.values() if isinstance(value, list | tuple))]
    weights = sum(a * b for units in lists for a, b in pairwise([prod(shape), *units, classes]))
    wide = [value for value in given.values() if type(value) is int and value > WIDE]
    if wide and max(wide) <= WIDE**2 and not _too_many(weights):
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            weights = sum(p.numel() for p in entry.make(shape, classes, **knobs).parameters())
    elif wide:
        weights = max(wide) ** 2
    if _too_many(weights):
        raise ConfigError(
            f"{entry.title} would have {weights} weights with these knobs, more than this machine "
            "can train: choose smaller layers."
        )


def _too_many(weights: int) -> bool:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return 4 * 4 * weights > memory


def _checked(entry: Model, model: object) -> nn.Module:
    """Check that a user's model is split like ours: every parameter is in one of its parts."""
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"{entry.title} must return a torch.nn.Module, not {type(model).__name__}."
        )
    children = dict(model.named_children())
    parts: tuple[str, ...] = VAE if "encoder" in children else CLASSIFIER
    for part in parts:
        if part not in children:
            raise ConfigError(
                f"{entry.title} must return a module with children {parts[0]!r} and {parts[1]!r}, "
                f"and {part!r} is missing."
            )
    if "encoder" in children and "classifier" in children:
        parts = (*parts, "classifier")
    for held, tensor in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(tensor):
            raise ConfigError(
                f"{entry.title} has the lazy layer {held.rpartition('.')[0]!r}, whose size its "
                "first batch would tell: give the layer its size."
            )
    for parameter, _ in model.named_parameters():
        if parameter.split(".")[0] not in parts:
            raise ConfigError(
                f"{entry.title} has the parameter {parameter!r} outside "
                f"{' and '.join(repr(part) for part in parts)}: move it into one of them."
            )
    if "encoder" in children and not isinstance(getattr(model, "latent", None), int):
        raise ConfigError(
            f"{entry.title} has an encoder, so it needs a whole number 'latent': how many means "
            "the encoder gives, before as many log-variances."
        )
    return model
