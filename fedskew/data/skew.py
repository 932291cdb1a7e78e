"""Feature skews: changes to the samples of a federation that make its clients look different.

Every row of a client changes, or may be dropped (train, validation and test, unseen clients too).
What is random is keyed by the client's name, so the order in which clients stand changes nobody's
data.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from fedskew.data.choice import Choice, at_least, register
from fedskew.data.colour import colour
from fedskew.data.federation import Federation
from fedskew.data.keyed import keyed_rng
from fedskew.data.needs import all_real, need_images, need_unit_scale
from fedskew.data.parties import part
from fedskew.data.selection import selection
from fedskew.errors import ConfigError, unknown

SKEWS: dict[str, Choice] = {}
_named = partial(register, "skew", SKEWS)

CHUNK = 2048


def apply_skew(federation: Federation, skew: Mapping[str, Any], seed: int) -> Federation:
    """The federation under one skew, given as its kind and knobs: ``{"kind": "noise", ...}``."""
    knobs = dict(skew)
    kind = knobs.pop("kind", None)
    if not isinstance(kind, str):
        raise ConfigError(f"a skew needs its kind, one of {', '.join(sorted(SKEWS))}.")
    if kind not in SKEWS:
        raise unknown("skew", kind, SKEWS)
    SKEWS[kind].check(knobs)
    skewed: Federation = SKEWS[kind].function(federation, seed, **knobs)
    return skewed


@_named("rotation")
def rotation(
    federation: Federation,
    seed: int,
    *,
    low: int = 0,
    high: int = 179,
    angles: list[float] | None = None,
    spread: float | None = None,
    environments: int = 2,
    fill: float | None = None,
    odd_angle: float | None = None,
    odd: int | str | None = None,
    test_angle: float = 0.0,
) -> Federation:
    """Each client's images turned by its own angle (low..high degrees), plus or minus spread.

    ``angles`` fixes the angles instead: clients take them in turn, in the order of their names.
    ``spread`` is 10 degrees around a drawn angle and 0 around a fixed one unless given. What the
    turn uncovers gets the image's own background (the median of its corners) or ``fill``.
    A client's range of 2 * spread degrees is cut into ``environments`` equal bins. The central
    test set is turned by ``test_angle``: it stays upright unless that is given. Clients may have
    that angle too; ``low`` and ``high`` keep them off it.

    ``odd_angle`` turns some clients by this angle instead of their own: ``odd`` of the seen ones,
    drawn by the seed (one unless given), or with ``odd = "unseen"`` all unseen clients and nobody
    else. Their images are spread around it only if ``spread`` is given, and are of one
    environment otherwise. Who is odd changes nobody else's angle.
    """
    need_images("rotation", federation)
    at_least("environments", environments, 1)
    if low > high:
        raise ConfigError(f"low of skew 'rotation' must not exceed high, but {low} > {high}.")
    if angles is not None and not (isinstance(angles, list) and angles and all_real(angles)):
        raise ConfigError(f"angles of skew 'rotation' must be a list of degrees, not {angles!r}.")
    width = spread if spread is not None else 10.0 if angles is None else 0.0
    if not all_real([width]) or width < 0:
        raise ConfigError(f"spread of skew 'rotation' must be at least 0 degrees, not {width!r}.")
    if fill is not None and not all_real([fill]):
        raise ConfigError(f"fill of skew 'rotation' must be a number, not {fill!r}.")
    if not all_real([test_angle]):
        raise ConfigError(f"test_angle of skew 'rotation' must be in degrees, not {test_angle!r}.")
    turned = _odd(federation, seed, odd_angle, odd)
    parties = part(federation)
    x = federation.x[parties.source]
    ids = parties.fresh_environment()
    for position, client, rows in parties:
        rng = keyed_rng(seed, "rotation", client.name)
        drawn = float(rng.integers(low, high, endpoint=True))
        centre = drawn if angles is None else float(angles[position % len(angles)])
        around = width
        if odd_angle is not None and client.name in turned:
            centre, around = float(odd_angle), spread or 0.0
        offset = rng.uniform(-1.0, 1.0, len(rows))
        x[rows] = rotate(x[rows], torch.from_numpy(centre + around * offset), fill)
        bins = np.minimum((offset + 1) / 2 * environments, environments - 1)
        ids[rows] = torch.from_numpy(bins.astype(np.int64)) if around > 0 else 0
    if test_angle:
        central = federation.central_test
        x[central] = rotate(x[central], torch.full((len(central),), float(test_angle)), fill)
    binned = width > 0 and environments > 1
    made = parties.holding(x, ids, "rotation") if binned else parties.holding(x)
    return made.with_data(odd=tuple(sorted({*federation.odd, *turned})))


def _odd(
    federation: Federation, seed: int, odd_angle: float | None, odd: int | str | None
) -> set[str]:
    """The names of the clients that a rotation turns by ``odd_angle``."""
    if odd_angle is None:
        if odd is not None:
            raise ConfigError("odd of skew 'rotation' needs odd_angle, the angle of these clients.")
        return set()
    if not all_real([odd_angle]):
        raise ConfigError(f"odd_angle of skew 'rotation' must be in degrees, not {odd_angle!r}.")
    if odd == "unseen":
        if not federation.unseen:
            raise ConfigError("odd='unseen' of skew 'rotation' needs federation.unseen above 0.")
        return {client.name for client in federation.unseen}
    count = 1 if odd is None else odd
    seen = sorted(client.name for client in federation.clients)
    if type(count) is not int or not 1 <= count <= len(seen):
        raise ConfigError(
            f"odd of skew 'rotation' must be 'unseen' or a number of seen clients from 1 to "
            f"{len(seen)}, not {odd!r}."
        )
    return set(keyed_rng(seed, "odd").permutation(seen)[:count].tolist())


def rotate(images: Tensor, degrees: Tensor, fill: float | None = None) -> Tensor:
    """Images [N, C, H, W] each turned counter-clockwise by its own angle, bilinearly.

    >>> image = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]])
    >>> rotate(image, torch.tensor([90.0])).round(decimals=4).tolist()
    [[[[2.0, 4.0], [1.0, 3.0]]]]
    """
    height, width = images.shape[-2:]
    radians = torch.deg2rad(degrees.double())
    cos, sin, zero = radians.cos(), radians.sin(), torch.zeros_like(radians)
    # The grid's axes both run from -1 to 1, so an oblong image needs its aspect put back.
    across = torch.stack([cos, -sin * height / width, zero], dim=1)
    down = torch.stack([sin * width / height, cos, zero], dim=1)
    theta = torch.stack([across, down], dim=1).to(images.dtype)
    turned = torch.empty_like(images)
    for start in range(0, len(images), CHUNK):
        part = images[start : start + CHUNK]
        ground = _background(part) if fill is None else torch.tensor(fill, dtype=part.dtype)
        grid = affine_grid(theta[start : start + CHUNK], list(part.shape), align_corners=False)
        # Outside the image grid_sample reads zero: let zero mean background while sampling.
        sampled = grid_sample(part - ground, grid, mode="bilinear", align_corners=False)
        turned[start : start + CHUNK] = sampled + ground
    return turned


_named("colour")(colour)


@_named("noise")
def noise(
    federation: Federation, seed: int, *, level: float = 0.3, clip: bool = True
) -> Federation:
    """Gaussian noise whose variance grows with the client: k * level / clients for client k.

    k counts all clients (unseen ones too) in the order of their names, from 0. ``clip`` cuts
    to [0, 1] afterwards, so it expects values of unit scale. The central test set stays clean.
    """
    if level < 0:
        raise ConfigError(f"level of skew 'noise' must be at least 0, not {level}.")
    if clip:
        need_unit_scale("noise", federation.x, " or set clip to false")
    parties = part(federation)
    x = federation.x[parties.source]
    for position, client, rows in parties:
        rng = keyed_rng(seed, "noise", client.name)
        sigma = float(np.sqrt(position * level / len(federation.by_name)))
        drawn = rng.standard_normal((len(rows), *federation.sample_shape), dtype=np.float32)
        noisy = torch.from_numpy(drawn).mul_(sigma).add_(x[rows])
        x[rows] = noisy.clamp_(0.0, 1.0) if clip else noisy
    return parties.holding(x)


_named("selection")(selection)


def _background(images: Tensor) -> Tensor:
    """The median of each image's corners, per channel."""
    corners = images[..., [0, 0, -1, -1], [0, -1, 0, -1]]
    return corners.median(dim=-1).values[..., None, None]
