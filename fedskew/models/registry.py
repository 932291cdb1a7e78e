"""The table of models: each registers a factory with its knobs, and the samples it takes."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod
from typing import Annotated, Any, ClassVar

import torch
from torch import nn

from fedskew.errors import ConfigError, FedskewError
from fedskew.models.classifier import Classifier as Classifier
from fedskew.models.own import CONTRACT, check_steady, checked
from fedskew.registry.entries import Entry, Registry
from fedskew.registry.knobs import Knob

Shape = tuple[int, ...]
VOCABULARY = "vocabulary"
"""The knob by which a model is told how many token ids there are."""
Hidden = Annotated[Sequence[int], Knob("units of each hidden layer, first to last", ge=1)]
Vocabulary = Annotated[
    int, Knob("different token ids there are; 0: as the samples have, if they are token ids", ge=0)
]
Latent = Annotated[int, Knob("dimensions of a code", ge=1)]
KINDS = {
    "tokens": "token ids (whole numbers with a vocabulary)",
    "signals": "signals of shape (channels, time)",
}
CLASSIFIER = ("body", "head")
VAE = ("encoder", "decoder")
MADE = ("hidden", "output")


@dataclass(frozen=True)
class Model(Entry):
    """A registered factory ``(sample_shape, classes, **knobs)``.

    Its models answer a sample with ``classes`` numbers. ``min_side`` is None for models that
    flatten whatever they get. ``kinds`` are the samples that others take, which have no sides:
    "tokens" (ids in a row, see the knob ``vocabulary``) and "signals" (channels by time).
    ``parts`` are the model's children, which between them hold every
    parameter.
    """

    contract: ClassVar[str] = CONTRACT
    min_side: int | None = field(default=None, kw_only=True)
    kinds: tuple[str, ...] = field(default=(), kw_only=True)
    parts: tuple[str, ...] = field(default=CLASSIFIER, kw_only=True)
    handed_over: bool = field(default=False, kw_only=True)
    """Whether a program handed it over as an object, which other processes do not know."""

    def takes(self, shape: Shape, vocabulary: int = 0) -> bool:
        """Whether samples of this shape fit; with a vocabulary they are token ids."""
        if vocabulary or self.kinds:
            kind = "tokens" if vocabulary else "signals" if len(shape) == 2 else ""
            return kind in self.kinds
        if self.min_side is None:
            return True
        return len(shape) == 3 and min(shape[1:]) >= self.min_side

    @property
    def needs(self) -> str:
        """The samples it takes, in words."""
        if self.kinds:
            return " or ".join(KINDS[kind] for kind in self.kinds)
        return "numbers" if self.min_side is None else "images of shape (channels, height, width)"


class Models(Registry[Model]):
    """The registry of models; one that was handed over as an object is known by name for a time."""

    def __init__(self) -> None:
        super().__init__("model", "models", Model, leading=2)
        self.objects: dict[str, Model] = {}
        """Those that were handed over, which no list of models shows."""

    def find(self, name: str) -> Model:
        if name in self.objects:
            return self.objects[name]
        if name in self or not HANDED_OVER.fullmatch(name):
            return super().find(name)
        raise ConfigError(
            f"model {name!r} is an object that a program handed over, which this one has not: hand "
            "it over again, fedskew.load_run(path, model=...) or fedskew.run(..., model=...); for "
            "other processes and commands, write a factory into a file and name it "
            f"'module:factory'. {CONTRACT}"
        )


HANDED_OVER = re.compile(r"[\w-]*-[0-9a-f]{12}")
"""Names that objects get: their class or function, and a hash of what they are."""
MODELS = Models()
register = MODELS.register


def construct(name: str, shape: Shape, classes: int, knobs: Mapping[str, Any]) -> nn.Module:
    """Build a model after checking its knobs and the shape of the samples."""
    entry = MODELS.find(name)
    entry.check(knobs)
    _check_shape(entry, shape, int(knobs.get(VOCABULARY, 0)))
    if entry.function.__module__.startswith("fedskew.") and not entry.handed_over:
        _check_size(entry, shape, classes, knobs)
        module: nn.Module = entry.make(shape, classes, **knobs)
        return module
    before = torch.get_rng_state()
    own = _own(entry, shape, classes, knobs)
    key = (entry.function, shape, classes, repr(sorted(knobs.items())))
    if key not in _STEADY:
        after = torch.get_rng_state()
        torch.set_rng_state(before)
        check_steady(entry.title, own, _own(entry, shape, classes, knobs))
        torch.set_rng_state(after)
        _STEADY.add(key)
    return own


_STEADY: set[tuple[Any, ...]] = set()
"""Users' factories, with what they were called with, that returned the same model twice."""


def _own(entry: Model, shape: Shape, classes: int, knobs: Mapping[str, Any]) -> nn.Module:
    """What a user's factory makes, its parts found."""
    try:
        made = entry.make(shape, classes, **knobs)
    except FedskewError:
        raise
    except Exception as error:
        raise ConfigError(
            f"{entry.title} raised {type(error).__name__}: {error}. {CONTRACT}"
        ) from error
    return checked(entry.title, made, shape, classes)


def for_samples(
    name: str, knobs: Mapping[str, Any], shape: Shape, vocabulary: int
) -> dict[str, Any]:
    """The knobs of a model for these samples; token ids are refused where they do not fit.

    A model that takes token ids is told their vocabulary by its knob of that name.
    """
    entry = MODELS.find(name)
    if not vocabulary:
        return dict(knobs)
    if VOCABULARY not in entry.knobs:
        if entry.function.__module__.startswith("fedskew."):
            _check_shape(entry, shape, vocabulary)
        return dict(knobs)
    entry.check(knobs)
    given = knobs.get(VOCABULARY) or vocabulary
    if given < vocabulary:
        raise ConfigError(
            f"model.vocabulary is {given}, but the token ids of the samples go up to "
            f"{vocabulary - 1}: leave it out."
        )
    return {**knobs, VOCABULARY: given}


def _check_shape(entry: Model, shape: Shape, vocabulary: int = 0) -> None:
    """Refuse what a model does not take before torch fails inside one of its layers."""
    if entry.takes(shape, vocabulary):
        return
    alike = (n for n, e in MODELS.items() if e.parts == entry.parts and e.takes(shape, vocabulary))
    fitting = ", ".join(sorted(alike))
    if vocabulary:
        remedy = f"choose from {fitting}" if fitting else "choose another method"
        raise ConfigError(
            f"{entry.title} takes {entry.needs}, but the samples are {KINDS['tokens']}: {remedy}."
        )
    if entry.kinds or len(shape) != 3:
        raise ConfigError(
            f"{entry.title} needs {entry.needs}, but the "
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
    vocabulary = given.pop(VOCABULARY, 0)
    lists = [[], *(value for value in given.values() if isinstance(value, list | tuple))]
    weights = sum(a * b for units in lists for a, b in pairwise([prod(shape), *units, classes]))
    wide = [value for value in given.values() if type(value) is int and value > WIDE]
    if wide and max(wide) <= WIDE**2 and not _too_many(weights):
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            weights = sum(p.numel() for p in entry.make(shape, classes, **knobs).parameters())
    elif wide:
        weights = max(wide) ** 2
    weights += vocabulary * max((v for v in given.values() if type(v) is int), default=1)
    if _too_many(weights):
        raise ConfigError(
            f"{entry.title} would have {weights} weights with these knobs, more than this machine "
            "can train: choose smaller layers."
        )


def _too_many(weights: int) -> bool:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return 4 * 4 * weights > memory
