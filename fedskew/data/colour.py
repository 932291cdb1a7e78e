"""The skew that gives grey images colours: a covariate shift, or a shortcut to the label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedskew.data.federation import Federation
from fedskew.data.skew_tools import DisjointClients, need_images, need_unit_scale, part
from fedskew.errors import ConfigError, DataError, at_least
from fedskew.registry.knobs import Knob
from fedskew.rng import keyed_rng
from fedskew.types import Indices

LEVELS = np.arange(51, 255)
"""Grey levels that stand for colours in one channel: from a fifth of full brightness on."""


@dataclass(frozen=True)
class Colouring:
    """Which images get which colours."""

    mode: Annotated[
        Literal["client", "class"],
        Knob("'client': any colour on any label, as published; 'class': a colour per class"),
    ] = "client"
    colours: Annotated[int, Knob("colours of a client, and of the test set", ge=1)] = 5
    flat: Annotated[bool, Knob("every inked pixel gets the plain colour; false: shaded")] = True
    channels: Annotated[
        Literal[1, 2, 3],
        Knob("3; 1 for grey levels in place of colours; 2: a class has a channel to itself"),
    ] = 3
    correlation: Annotated[
        Sequence[float] | None,
        Knob("class mode: by environment, the chance of the class's own colour", ge=0, le=1),
    ] = None
    shared: Annotated[bool, Knob("class mode: all clients have the same class colours")] = False
    test: Annotated[
        Literal["held-out", "permuted"],
        Knob("'held-out' colours, or 'permuted' class colours, which mislead"),
    ] = "held-out"
    test_correlation: Annotated[
        float | None,
        Knob("class mode: in the test set, the chance of the class's own colour", ge=0, le=1),
    ] = None
    label_noise: Annotated[
        float, Knob("chance that a label, in training and test, becomes another", ge=0, le=1)
    ] = 0.0
    reference: Annotated[bool, Knob("never use the last colour, as the published code does")] = (
        False
    )

    def __post_init__(self) -> None:
        asked = {
            "correlation": self.correlation is not None,
            "shared": self.shared,
            "test='permuted'": self.test == "permuted",
            "test_correlation": self.test_correlation is not None,
            "channels=2": self.channels == 2,
        }
        if not self.by_class and any(asked.values()):
            name = next(name for name, given in asked.items() if given)
            raise ConfigError(
                f"{name} of skew 'colour' needs a colour per class: set mode='class'."
            )
        if self.test == "permuted" and self.test_correlation is not None:
            raise ConfigError(
                "test='permuted' of skew 'colour' says that no test image has its class's colour: "
                "leave it or test_correlation out."
            )
        if self.channels == 2 and self.test == "held-out" and self.test_correlation is None:
            raise ConfigError(
                "channels=2 of skew 'colour' leaves no colour to hold out for the test set: set "
                "test_correlation, or test='permuted'."
            )
        if self.correlation is not None and not self.correlation:
            raise ConfigError("correlation of skew 'colour' must name a chance, or be left out.")
        at_least("colours", self.colours, 2 if self.reference else 1)

    @property
    def by_class(self) -> bool:
        return self.mode == "class"

    @property
    def chances(self) -> NDArray[np.float64]:
        """By environment, the chance of a class's own colour."""
        return np.array(self.correlation or [1.0], dtype=np.float64)

    @property
    def used(self) -> int:
        """Colours that images get."""
        return self.colours - int(self.reference)


BY_CLIENT = Colouring()


def colour(federation: Federation, seed: int, colouring: Colouring = BY_CLIENT) -> Federation:
    """Grey images in colours of the client's own: any colour on any label, or one per class.

    ``mode="client"``: each client draws ``colours`` colours and each image gets one of them,
    whatever its label (a covariate shift; the environment is the colour). ``"class"``: each client
    draws one colour per class, so colour gives the label away inside a client (a spurious feature).
    The central test set gets ``colours`` colours drawn for it alone, whatever the label.
    ``flat`` replaces every non-zero pixel by the colour; otherwise the colour is scaled by the
    pixel. Samples must lie in [0, 1] with 0 as background. With ``channels=1`` a colour is a grey
    level, and clients have other levels than the central test set. ``reference`` never uses the
    last colour, as the published code does.

    Under ``"class"``, each chance in ``correlation`` makes an environment, to which a client's
    images are dealt at random: an image gets the colour of its class with that chance, else that
    of another class. A single chance (default 1) makes none. ``shared`` gives all clients the same
    class colours. ``test="permuted"`` makes colour mislead: all central images of a class get the
    colour of the same other class, each as one of the seen clients has it. ``test_correlation`` is
    the chance of its own class's colour for a central image instead. ``channels=2`` is for two
    classes: an image stands in one of two channels, which is its colour.

    ``label_noise`` turns labels into others, at clients and in the central test set, before images
    are coloured: colour then goes with the label, and the shape with what it was.
    """
    federation.need_classes("skew 'colour'")
    classes, chances = federation.classes, colouring.chances
    colours, channels = colouring.colours, colouring.channels
    by_class = colouring.by_class
    _check_samples(federation, channels, max(colours, classes if by_class else 0), classes)
    parties = part(federation)
    x = federation.x.expand(-1, channels, -1, -1)[parties.source]
    y, ids = _noisy(parties, colouring.label_noise, seed), parties.fresh_environment()
    for_test = keyed_rng(seed, "colour", "")
    held_out = _palette(colours, channels, for_test)
    in_common = _palette(classes, channels, keyed_rng(seed, "shared colours"), held_out)
    palettes = {}
    for _, client, rows in parties:
        rng = keyed_rng(seed, "colour", client.name)
        palette = _palette(classes if by_class else colours, channels, rng, held_out)
        ids[rows] = picked = torch.from_numpy(rng.integers(0, colouring.used, len(rows)))
        if by_class:
            palette = in_common if colouring.shared else palette
            ids[rows], picked = _mostly(y[rows], chances, classes, rng)
        palettes[client.name] = palette
        x[rows] = _paint(x[rows], palette[picked], colouring.flat)
    central = federation.central_test
    shown = _shown_in_test(colouring, y[central], classes, for_test)
    if shown is None:
        inks = held_out[for_test.integers(0, colouring.used, len(central))]
    else:
        inks = _as_clients_have_them(shown, federation, palettes, for_test)
    x[central] = _paint(x[central], inks, colouring.flat)
    # A colour per class would make the environment the label, of which nothing is invariant.
    told_apart = not by_class or len(chances) > 1
    return parties.holding(x, ids, "colour", y) if told_apart else parties.holding(x, y=y)


def _noisy(parties: DisjointClients, chance: float, seed: int) -> Tensor:
    """The labels, each turned into one of the others with a chance; public rows keep theirs."""
    y = parties.y
    holders = [(client.name, rows) for _, client, rows in parties]
    classes = parties.federation.classes
    for name, rows in [*holders, ("", parties.federation.central_test)]:
        rng = keyed_rng(seed, "label noise", name)
        y[rows] = _mostly(y[rows], np.array([1.0 - chance]), classes, rng)[1]
    return y


def _check_samples(federation: Federation, channels: int, colours: int, classes: int) -> None:
    """Refuse samples that are not grey images in 0..1, and channels too few for the colours."""
    need_images("colour", federation, channels=1)
    need_unit_scale("colour", federation.x)
    if channels == 1 and 2 * colours > len(LEVELS):
        raise DataError(
            f"skew 'colour' has {len(LEVELS)} grey levels, too few for {colours} colours of a "
            "client and as many of the test set: set channels=3."
        )
    if channels == 2 and classes != 2:
        raise DataError(
            f"channels=2 of skew 'colour' has a channel for each of two classes, not {classes}: "
            "set channels=3, or federation.classes to two groups."
        )


def _palette(
    colours: int, channels: int, rng: np.random.Generator, taken: Tensor | None = None
) -> Tensor:
    """Colours in 0..1 [colours, channels]; grey levels differ from each other and those taken."""
    if channels == 2:
        return torch.eye(2)[rng.permutation(colours) % 2]
    if channels == 3:
        drawn: NDArray[np.int64] = rng.integers(0, 255, (colours, 3))
    else:
        levels = LEVELS
        if taken is not None:
            levels = np.setdiff1d(LEVELS, (taken * 255).round().long().numpy())
        drawn = rng.choice(levels, (colours, 1), replace=False)
    return torch.from_numpy(drawn).float() / 255


def _mostly(
    y: Tensor, shares: NDArray[np.float64], classes: int, rng: np.random.Generator
) -> tuple[Tensor, Tensor]:
    """By image, its environment and the class whose colour it gets."""
    environment = rng.permutation(len(y)) % len(shares)
    strays = rng.random(len(y)) >= shares[environment]
    others = rng.integers(1, max(classes, 2), len(y))
    shown = (y.numpy() + np.where(strays, others, 0)) % classes
    return torch.from_numpy(environment), torch.from_numpy(shown)


def _shown_in_test(
    colouring: Colouring, y: Tensor, classes: int, rng: np.random.Generator
) -> Tensor | None:
    """By central test image, the class whose colour it gets; None where colours are held out."""
    if colouring.test_correlation is not None:
        return _mostly(y, np.array([colouring.test_correlation]), classes, rng)[1]
    if colouring.test == "held-out":
        return None
    if classes < 2:
        raise DataError("test='permuted' of skew 'colour' needs two classes or more.")
    return torch.from_numpy(derangement(classes, rng))[y]


def _as_clients_have_them(
    shown: Tensor, federation: Federation, palettes: Mapping[str, Tensor], rng: np.random.Generator
) -> Tensor:
    """Each class's colour, as some seen client has it."""
    names = sorted(client.name for client in federation.clients)
    seen = torch.stack([palettes[name] for name in names])
    return seen[rng.integers(0, len(names), len(shown)), shown]


def derangement(count: int, rng: np.random.Generator) -> Indices:
    """A random order of two or more in which nothing keeps its place.

    >>> derangement(2, np.random.default_rng(0)).tolist()
    [1, 0]
    """
    while True:
        order = rng.permutation(count)
        if (order != np.arange(count)).all():
            return order


def _paint(grey: Tensor, colours: Tensor, flat: bool) -> Tensor:
    ink = (grey > 0).float() if flat else grey
    return ink * colours[:, :, None, None]
