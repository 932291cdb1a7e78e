"""How images are changed while clients train: moved, mirrored, brighter or darker. Off by default.

``train.augment`` names them in the order in which they act, on every sample of every training batch
and on nothing else. What they draw is data: uniform numbers of a stream keyed by client and round,
one row for each place in a batch, so that neither executor nor carrier nor a resume changes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from fedskew.config import Named
from fedskew.errors import ConfigError
from fedskew.registry.entries import Entry, Registry
from fedskew.registry.knobs import Knob, check_fields


class Augmentation:
    """Base of all augmentations; works on plain images, whoever's they are.

    Make it a frozen dataclass, so that steps that change images alike are traced once.
    """

    draws: int = 0
    """How many numbers from 0 up to, not including, 1 it draws for each sample."""

    def check(self, shape: tuple[int, ...]) -> None:
        """Refuse images (channels, height, width) that it cannot change."""

    def change(self, x: Tensor, drawn: Tensor) -> Tensor:
        """Images [N, channels, height, width] changed by what was drawn for them, [N, draws].

        Every image by its own numbers alone: which others it stands beside is chance.
        """
        raise NotImplementedError


AUGMENTATIONS = Registry("augmentation", "augmentations", Entry)
"""Functions ``(**knobs)`` that return an :class:`Augmentation`."""
_named = AUGMENTATIONS.register


def augmentations(chosen: Sequence[Named]) -> tuple[Augmentation, ...]:
    """The parts that a user named, with their knobs."""
    made = tuple(AUGMENTATIONS.find(each.name).make(**each.knobs) for each in chosen)
    for each, part in zip(chosen, made, strict=True):
        if not isinstance(part, Augmentation):
            raise ConfigError(
                f"augmentation {each.name!r} must return a fedskew Augmentation, not "
                f"{type(part).__name__}."
            )
    return made


def check_augmentations(chosen: Sequence[Named], data: str, shape: tuple[int, ...]) -> None:
    """Refuse samples that are no images, and images that cannot be changed so."""
    if not chosen:
        return
    if len(shape) != 3:
        raise ConfigError(
            f"train.augment changes images, but a sample of {data} has shape {list(shape)}: leave "
            "it out."
        )
    for part in augmentations(chosen):
        part.check(shape)


def _around_zero(drawn: Tensor, most: float) -> Tensor:
    """Numbers in 0..1 as -most..most, shaped to act on images."""
    return ((2.0 * drawn - 1.0) * most)[:, None, None, None]


@dataclass(frozen=True)
class Crop(Augmentation):
    """A window as large as the image, over the image with its edges drawn out by ``pad`` pixels."""

    pad: Annotated[int, Knob("pixels by which an image may move", ge=0, tries=(2, 4))] = 4
    draws = 2

    def __post_init__(self) -> None:
        check_fields(self)

    def check(self, shape: tuple[int, ...]) -> None:
        if self.pad >= min(shape[1:]):
            raise ConfigError(
                f"pad of augmentation 'crop' is {self.pad}, but the images have "
                f"{shape[1]}x{shape[2]} pixels: choose a smaller one."
            )

    def change(self, x: Tensor, drawn: Tensor) -> Tensor:
        shifts = (drawn * (2 * self.pad + 1)).to(torch.int64).clamp(max=2 * self.pad) - self.pad
        down, right = (
            (torch.arange(side, device=x.device) + shifts[:, i, None]).clamp(0, side - 1)
            for i, side in enumerate(x.shape[2:])
        )
        moved = x.gather(2, down[:, None, :, None].expand_as(x))
        return moved.gather(3, right[:, None, None, :].expand_as(x))


@dataclass(frozen=True)
class Flip(Augmentation):
    """The image or its mirror image."""

    p: Annotated[float, Knob("share of images that are mirrored", ge=0, le=1)] = 0.5
    draws = 1

    def __post_init__(self) -> None:
        check_fields(self)

    def change(self, x: Tensor, drawn: Tensor) -> Tensor:
        return torch.where((drawn < self.p)[:, :, None, None], x.flip(3), x)


@dataclass(frozen=True)
class Jitter(Augmentation):
    """The image in other light, within the darkest and brightest it holds."""

    strength: Annotated[
        float, Knob("the largest change of light, as a share", ge=0, le=1, tries=(0.1, 0.2, 0.4))
    ] = 0.2
    draws = 2

    def __post_init__(self) -> None:
        check_fields(self)

    def change(self, x: Tensor, drawn: Tensor) -> Tensor:
        low, high = (f(x, dim=(1, 2, 3), keepdim=True) for f in (torch.amin, torch.amax))
        brightness = _around_zero(drawn[:, 0], self.strength)
        lit = x + torch.where(brightness > 0, brightness * (high - x), brightness * (x - low))
        contrast = _around_zero(drawn[:, 1], self.strength)
        apart = lit + contrast * (lit - (low + high) / 2)
        return torch.minimum(torch.maximum(apart, low), high)


CROP, FLIP, JITTER = Crop(), Flip(), Jitter()


@_named("crop")
def crop(how: Crop = CROP) -> Crop:
    """Images moved up to some pixels up, down, left and right; their edges fill what appears."""
    return how


@_named("flip")
def flip(how: Flip = FLIP) -> Flip:
    """Images mirrored left to right: not for writing, nor where sides mean something."""
    return how


@_named("jitter")
def jitter(how: Jitter = JITTER) -> Jitter:
    """Images brighter or darker, with more or less contrast, as between scanners.

    Brightness moves all values by up to this share towards the brightest or the darkest of the
    image; contrast moves them by up to this share away from the middle between these two, or
    towards it. No value leaves the range of its image, so the scale of samples does not matter.
    """
    return how
