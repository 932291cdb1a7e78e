"""Feature skews: changes to the samples of a federation that make its clients look different.

Every row of a client changes, or may be dropped (train, validation and test, unseen clients too).
Random numbers are keyed by the client's name, so the order of the clients does not change any
client's data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from fedskew.data.colour import colour
from fedskew.data.federation import Federation, checked_federation
from fedskew.data.selection_skew import selection
from fedskew.data.skew_tools import need_images, need_numbers, need_unit_scale, part
from fedskew.errors import ConfigError
from fedskew.registry.entries import Entry, Registry
from fedskew.registry.knobs import Knob
from fedskew.rng import keyed_rng

SKEWS = Registry("skew", "skews", Entry, leading=2)
"""Functions ``(federation, seed, **knobs)`` that return the federation with other samples."""
_named = SKEWS.register

CHUNK = 2048


def apply_skew(federation: Federation, skew: Mapping[str, Any], seed: int) -> Federation:
    """The federation under one skew, given as its kind and knobs: ``{"kind": "noise", ...}``."""
    knobs = dict(skew)
    kind = knobs.pop("kind", None)
    if not isinstance(kind, str):
        raise ConfigError(f"a skew needs its kind, one of {', '.join(sorted(SKEWS))}.")
    return checked_federation(f"skew {kind!r}", SKEWS.find(kind).make(federation, seed, **knobs))


@dataclass(frozen=True)
class Turning:
    """Which images a rotation turns, and by which angles."""

    low: Annotated[int, Knob("smallest angle of a client, in degrees")] = 0
    high: Annotated[int, Knob("largest angle of a client, in degrees")] = 179
    angles: Annotated[
        Sequence[float] | None, Knob("fixed angles, which clients take in turn, by name")
    ] = None
    spread: Annotated[
        float | None,
        Knob("most degrees from the client's angle; none: 10, or 0 if angles are fixed", ge=0),
    ] = None
    environments: Annotated[int, Knob("equal bins of a client's angles", ge=1)] = 2
    fill: Annotated[
        float | None, Knob("value of pixels a turn uncovers; none: the image's own background")
    ] = None
    odd_angle: Annotated[float | None, Knob("angle of odd clients, instead of their own")] = None
    odd: Annotated[
        int | Literal["unseen"] | None,
        Knob("how many seen clients are odd, drawn by the seed, or all unseen ones; none: 1", ge=1),
    ] = None
    test_angle: Annotated[float, Knob("angle of the central test set")] = 0.0

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ConfigError(
                f"low of skew 'rotation' must not exceed high, but {self.low} > {self.high}."
            )
        if self.angles is not None and not self.angles:
            raise ConfigError("angles of skew 'rotation' must name an angle, or be left out.")
        if self.odd is not None and self.odd_angle is None:
            raise ConfigError("odd of skew 'rotation' needs odd_angle, the angle of these clients.")

    @property
    def width(self) -> float:
        """The most degrees between an image and its client's angle."""
        if self.spread is not None:
            return self.spread
        return 10.0 if self.angles is None else 0.0

    def angle(self, position: int, rng: np.random.Generator) -> float:
        """The angle of the client at this position; drawn even if it is fixed."""
        drawn = float(rng.integers(self.low, self.high, endpoint=True))
        return drawn if self.angles is None else float(self.angles[position % len(self.angles)])


ANY_ANGLE = Turning()


@_named("rotation")
def rotation(federation: Federation, seed: int, turning: Turning = ANY_ANGLE) -> Federation:
    """Each client's images turned by its own angle (low..high degrees), plus or minus spread.

    ``angles`` fixes the angles instead: clients take them in turn, in the order of their names.
    ``spread`` is 10 degrees around a drawn angle and 0 around a fixed one unless given. Pixels
    that the turn uncovers get the image's own background (the median of its corners) or ``fill``.
    A client's range of 2 * spread degrees is cut into ``environments`` equal bins. The central
    test set is turned by ``test_angle``: it stays upright unless that is given. Clients may have
    that angle too; choose ``low`` and ``high`` to avoid it.

    ``odd_angle`` turns some clients by this angle instead of their own: ``odd`` of the seen ones,
    drawn by the seed (one unless given), or with ``odd = "unseen"`` all unseen clients and no
    others. Their images are spread around it only if ``spread`` is given, and are one environment
    otherwise. Which clients are odd does not change the angles of the others.
    """
    need_images("rotation", federation)
    turned = _odd(federation, seed, turning)
    disjoint = part(federation)
    x = federation.x[disjoint.source]
    ids = disjoint.fresh_environment()
    for position, client, rows in disjoint:
        rng = keyed_rng(seed, "rotation", client.name)
        centre, around = turning.angle(position, rng), turning.width
        if turning.odd_angle is not None and client.name in turned:
            centre, around = float(turning.odd_angle), turning.spread or 0.0
        offset = rng.uniform(-1.0, 1.0, len(rows))
        x[rows] = rotate(x[rows], torch.from_numpy(centre + around * offset), turning.fill)
        bins = np.minimum((offset + 1) / 2 * turning.environments, turning.environments - 1)
        ids[rows] = torch.from_numpy(bins.astype(np.int64)) if around > 0 else 0
    if turning.test_angle:
        central = federation.central_test
        angles = torch.full((len(central),), float(turning.test_angle))
        x[central] = rotate(x[central], angles, turning.fill)
    binned = turning.width > 0 and turning.environments > 1
    made = disjoint.holding(x, ids, "rotation") if binned else disjoint.holding(x)
    return made.with_data(odd=tuple(sorted({*federation.odd, *turned})))


def _odd(federation: Federation, seed: int, turning: Turning) -> set[str]:
    """The names of the clients that a rotation turns by ``odd_angle``."""
    if turning.odd_angle is None:
        return set()
    odd = turning.odd
    if odd == "unseen":
        if not federation.unseen:
            raise ConfigError("odd='unseen' of skew 'rotation' needs federation.unseen above 0.")
        return {client.name for client in federation.unseen}
    count = 1 if odd is None else odd
    seen = sorted(client.name for client in federation.clients)
    if isinstance(count, str) or count > len(seen):
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
    # The grid's axes both run from -1 to 1, so a non-square image needs its aspect ratio.
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
    federation: Federation,
    seed: int,
    *,
    level: Annotated[float, Knob("about the variance of the noisiest client's noise", ge=0)] = 0.3,
    clip: Annotated[bool, Knob("cut values to 0..1 afterwards")] = True,
) -> Federation:
    """Gaussian noise whose variance grows with the client: k * level / clients for client k.

    k counts all clients (unseen ones too) in the order of their names, from 0. ``clip`` cuts
    to [0, 1] afterwards, so it expects values of unit scale. The central test set stays clean.
    """
    need_numbers("skew 'noise'", federation)
    if clip:
        need_unit_scale("noise", federation.x, " or set clip to false")
    disjoint = part(federation)
    x = federation.x[disjoint.source]
    for position, client, rows in disjoint:
        rng = keyed_rng(seed, "noise", client.name)
        sigma = float(np.sqrt(position * level / len(federation.by_name)))
        drawn = rng.standard_normal((len(rows), *federation.sample_shape), dtype=np.float32)
        noisy = torch.from_numpy(drawn).mul_(sigma).add_(x[rows])
        x[rows] = noisy.clamp_(0.0, 1.0) if clip else noisy
    return disjoint.holding(x)


_named("selection")(selection)


def _background(images: Tensor) -> Tensor:
    """The median of each image's corners, per channel."""
    corners = images[..., [0, 0, -1, -1], [0, -1, 0, -1]]
    return corners.median(dim=-1).values[..., None, None]
