"""The skew that gives grey images colours: a covariate shift, or a shortcut to the label."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedskew.data.choice import at_least
from fedskew.data.federation import Federation
from fedskew.data.keyed import keyed_rng
from fedskew.data.needs import all_real, need_images, need_unit_scale
from fedskew.data.parties import part
from fedskew.errors import ConfigError, DataError, unknown
from fedskew.types import Indices

LEVELS = np.arange(51, 255)
"""Grey levels that stand for colours in one channel: from a fifth of full brightness on."""


def colour(
    federation: Federation,
    seed: int,
    *,
    mode: str = "client",
    colours: int = 5,
    flat: bool = True,
    channels: int = 3,
    correlation: list[float] | None = None,
    shared: bool = False,
    test: str = "held-out",
    reference: bool = False,
) -> Federation:
    """Grey images in colours of the client's own: any colour on any label, or one per class.

    ``client``: each client draws ``colours`` colours and each image gets one of them whatever its
    label (a covariate shift; the environment is the colour). ``class``: each client draws one
    colour per class, so colour gives the label away inside a client (a spurious feature).
    The central test set gets ``colours`` colours drawn for it alone, whatever the label.
    ``flat`` replaces every non-zero pixel by the colour, as the reference does; otherwise the
    colour is scaled by the pixel. Expects values in [0, 1] with 0 as background. With
    ``channels = 1`` images stay grey and a colour is a grey level; no client has a level that was
    drawn for the central test set. ``reference`` never uses the last of ``colours``, as the
    reference did.

    Under ``class``, ``correlation`` lists how far colour can be trusted: a client's images are
    dealt at random to as many environments as it has entries, and an image gets the colour of its
    class with the chance of its environment, else that of another class. One entry makes no
    environments, and none is [1.0]. ``shared`` gives all clients, unseen ones too, the same class
    colours. ``test = "permuted"`` makes colour mislead: every central image has the class colour
    of one of the seen clients, but always that of another class, the same one for all its class.
    """
    by_class = _checked_mode(mode, correlation, shared, test)
    shares = _shares(correlation)
    at_least("colours", colours, 2 if reference else 1)
    need_images("colour", federation, channels=1)
    need_unit_scale("colour", federation.x)
    classes, used = federation.classes, colours - int(reference)
    _check_channels(channels, max(colours, classes if by_class else 0))
    parties = part(federation)
    x = federation.x.expand(-1, channels, -1, -1)[parties.source]
    y, ids = parties.y, parties.fresh_environment()
    for_test = keyed_rng(seed, "colour", "")
    held_out = _palette(colours, channels, for_test)
    in_common = _palette(classes, channels, keyed_rng(seed, "shared colours"), held_out)
    palettes = {}
    for _, client, rows in parties:
        rng = keyed_rng(seed, "colour", client.name)
        palette = _palette(classes if by_class else colours, channels, rng, held_out)
        ids[rows] = picked = torch.from_numpy(rng.integers(0, used, len(rows)))
        if by_class:
            palette = in_common if shared else palette
            ids[rows], picked = _mostly(y[rows], shares, classes, rng)
        palettes[client.name] = palette
        x[rows] = _paint(x[rows], palette[picked], flat)
    central = federation.central_test
    if test == "permuted":
        seen = [palettes[name] for name in sorted(c.name for c in federation.clients)]
        inks = _misleading(torch.stack(seen), y[central], for_test)
    else:
        inks = held_out[for_test.integers(0, used, len(central))]
    x[central] = _paint(x[central], inks, flat)
    # A colour per class would make the environment the label, of which nothing is invariant.
    return (
        parties.holding(x) if by_class and len(shares) == 1 else parties.holding(x, ids, "colour")
    )


def _checked_mode(mode: str, correlation: list[float] | None, shared: bool, test: str) -> bool:
    """Whether colours go by class; refuse what makes sense only then."""
    if mode not in ("client", "class"):
        raise unknown("mode of skew 'colour'", mode, ("client", "class"))
    if test not in ("held-out", "permuted"):
        raise unknown("test of skew 'colour'", test, ("held-out", "permuted"))
    asked = {
        "correlation": correlation is not None,
        "shared": shared,
        "test='permuted'": test == "permuted",
    }
    if mode == "client" and any(asked.values()):
        name = next(name for name, given in asked.items() if given)
        raise ConfigError(f"{name} of skew 'colour' needs a colour per class: set mode='class'.")
    return mode == "class"


def _shares(correlation: list[float] | None) -> NDArray[np.float64]:
    shares = [1.0] if correlation is None else correlation
    listed = isinstance(shares, list) and shares and all_real(shares)
    if not listed or not all(0 <= share <= 1 for share in shares):
        raise ConfigError(
            "correlation of skew 'colour' must be a list of chances from 0 to 1 like [0.9, 0.7], "
            f"not {correlation!r}."
        )
    return np.array(shares, dtype=np.float64)


def _check_channels(channels: int, colours: int) -> None:
    if channels not in (1, 3):
        raise ConfigError(f"channels of skew 'colour' must be 1 or 3, not {channels}.")
    if channels == 1 and 2 * colours > len(LEVELS):
        raise DataError(
            f"skew 'colour' has {len(LEVELS)} grey levels, too few for {colours} colours of a "
            "client and as many of the test set: set channels=3."
        )


def _palette(
    colours: int, channels: int, rng: np.random.Generator, taken: Tensor | None = None
) -> Tensor:
    """Colours in 0..1 [colours, channels]; grey levels differ from each other and those taken."""
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


def _misleading(palettes: Tensor, y: Tensor, rng: np.random.Generator) -> Tensor:
    """By image, the colour that some client [clients, classes, channels] gives a wrong class."""
    clients, classes, _ = palettes.shape
    if classes < 2:
        raise DataError("test='permuted' of skew 'colour' needs two classes or more.")
    wrong = torch.from_numpy(derangement(classes, rng))
    return palettes[rng.integers(0, clients, len(y)), wrong[y]]


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
