"""The table of models: each registers a factory, its knobs and the smallest image it takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor, nn

from fedskew.errors import ConfigError, unknown

Shape = tuple[int, ...]


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


Factory = Callable[..., nn.Module]
F = TypeVar("F", bound=Factory)
CLASSIFIER = ("body", "head")
VAE = ("encoder", "decoder")
MADE = ("hidden", "output")


@dataclass(frozen=True)
class Entry:
    """One registered model; ``min_side`` is None for models that flatten whatever they get.

    ``parts`` are its children, which between them hold every parameter.
    """

    name: str
    factory: Factory
    min_side: int | None
    parts: tuple[str, ...] = CLASSIFIER

    @property
    def knobs(self) -> dict[str, object]:
        """The settings a user may change, with their defaults."""
        parameters = inspect.signature(self.factory).parameters.values()
        return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}

    def takes(self, shape: Shape) -> bool:
        """Whether samples of this shape fit."""
        if self.min_side is None:
            return True
        return len(shape) == 3 and min(shape[1:]) >= self.min_side


MODELS: dict[str, Entry] = {}


def register(
    name: str, min_side: int | None = None, parts: tuple[str, ...] = CLASSIFIER
) -> Callable[[F], F]:
    """Enter a factory ``(sample_shape, classes, *, knob=default, ...)`` under a name."""

    def enter(factory: F) -> F:
        MODELS[name] = Entry(name, factory, min_side, parts)
        return factory

    return enter


def construct(name: str, shape: Shape, classes: int, knobs: Mapping[str, object]) -> nn.Module:
    """Build a registered model after checking everything the user could have got wrong."""
    if name not in MODELS:
        raise unknown("model", name, MODELS)
    entry = MODELS[name]
    for knob, value in knobs.items():
        _check_knob(entry, knob, value)
    _check_shape(entry, shape)
    return entry.factory(shape, classes, **knobs)


def _check_knob(entry: Entry, knob: str, value: object) -> None:
    """Hold a setting to the kind of value its default has."""
    known = entry.knobs
    if not known:
        raise ConfigError(f"model {entry.name!r} has no settings, so remove {knob!r}.")
    if knob not in known:
        raise unknown("model setting", knob, known)
    default = known[knob]
    if isinstance(default, bool):
        fits, wanted = isinstance(value, bool), "true or false"
    elif isinstance(default, int):
        fits, wanted = _is_positive(value), "a positive whole number"
    else:
        fits = isinstance(value, list | tuple) and all(_is_positive(v) for v in value)
        wanted = "a list of positive whole numbers"
    if not fits:
        raise ConfigError(f"model setting {knob!r} must be {wanted}, not {value!r}.")


def _is_positive(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _check_shape(entry: Entry, shape: Shape) -> None:
    """Refuse images too small for the model before torch fails inside a convolution."""
    if entry.takes(shape):
        return
    fitting = ", ".join(
        sorted(n for n, e in MODELS.items() if e.parts == entry.parts and e.takes(shape))
    )
    if len(shape) != 3:
        raise ConfigError(
            f"model {entry.name!r} needs images of shape (channels, height, width), but the "
            f"samples have shape {shape}: choose from {fitting}."
        )
    raise ConfigError(
        f"model {entry.name!r} needs images of at least {entry.min_side}x{entry.min_side} pixels, "
        f"but these are {shape[1]}x{shape[2]}: choose from {fitting}."
    )
