"""From samples as stored to samples as wanted: which classes, what images, which scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate

from fedskew.data.formats import Array
from fedskew.errors import ConfigError, DataError, unknown

NORMALISATIONS = ("standard", "unit", "signed", "client")
IMAGE_SETTINGS = ("side", "channels")
ROWS_AT_ONCE = 4096
_VALUES_AT_ONCE = 2**24
# How bright an eye finds red, green and blue (ITU-R BT.601): what makes stored images grey too.
_LUMA = (0.299, 0.587, 0.114)

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Preparation:
    """What to make of a dataset, checked before any file is read.

    ``normalise`` is "standard" (zero mean and unit deviation over the training rows of the clients
    that train, or the published figures where everybody uses them), "unit" (images in 0..1,
    features as stored) or "signed" (images in -1..1, as a decoder that ends in tanh gives them;
    features are refused, for no range of theirs is known) or "client" (zero mean and unit deviation
    over each client's own training rows, after all skews). ``classes`` keeps only these classes,
    renumbered in this order; a list among them makes several into one: ``[[0, 1, 2], [3, 4]]``.
    ``image`` is ``{"side": 32, "channels": 3}`` or one of the two: images are resized to a square
    (bilinear, smoothed where they shrink), grey is copied to three channels, and colour becomes
    grey by its luma (.299 red + .587 green + .114 blue).

    Images are converted first and scaled afterwards. Published figures are those of all classes
    and of the stored size: "standard" uses them for any choice of classes and channels, but takes
    the figures of resized images from the clients' own training rows.
    """

    normalise: str = "standard"
    classes: Sequence[int | Sequence[int]] | None = None
    image: Mapping[str, int] | None = None

    def __post_init__(self) -> None:
        if self.normalise not in NORMALISATIONS:
            raise unknown("normalise", self.normalise, NORMALISATIONS)
        if self.classes is not None:
            _check_classes(self.classes)
        if self.image is not None:
            _check_image(self.image)


def _check_classes(classes: Any) -> None:
    entries = classes if isinstance(classes, list | tuple) else [None]
    groups = [entry if isinstance(entry, list | tuple) else [entry] for entry in entries]
    named = [number for group in groups for number in group]
    if any(type(number) is not int for number in named):
        raise ConfigError(f"classes must be a list of class numbers like [1, 2], not {classes!r}.")
    if not groups or not all(groups):
        raise ConfigError("classes must name at least one class: leave it out to keep all.")
    twice = [number for number in named if named.count(number) > 1]
    if twice:
        raise ConfigError(f"class {twice[0]} stands twice in classes: name it once.")


def _check_image(image: Any) -> None:
    if not isinstance(image, Mapping) or not image:
        raise ConfigError(
            f"image must be settings like {{side = 32, channels = 3}} or one of them, not {image}."
        )
    for name in image:
        if name not in IMAGE_SETTINGS:
            raise unknown("setting of image", str(name), IMAGE_SETTINGS)
    side, channels = image.get("side", 1), image.get("channels", 1)
    if type(side) is not int or side < 1:
        raise ConfigError(f"side of image must be a whole number from 1 on, not {side!r}.")
    if type(channels) is not int or channels not in (1, 3):
        raise ConfigError(f"channels of image must be 1 (grey) or 3 (colour), not {channels!r}.")


def as_floats(origin: Path | str, x: Array, image: Mapping[str, int] | None = None) -> Floats:
    """Float32 with channels first; bytes of images become 0..1, all else keeps its values.

    With ``image`` a part at a time is converted into the one array that is returned.
    """
    stored = tuple(channels_first(origin, x).shape[1:])
    wanted = stored if image is None else _shape(origin, stored, image)
    if wanted == stored:
        return _unit(origin, x)
    converted = np.empty((len(x), *wanted), dtype=np.float32)
    rows = max(1, _VALUES_AT_ONCE // max(prod(stored), prod(wanted)))
    for start in range(0, len(x), rows):
        part = torch.from_numpy(_unit(origin, x[start : start + rows]))
        converted[start : start + rows] = convert(part, wanted).numpy()
    return converted


def as_sequences(origin: Path | str, x: Array, preparation: Preparation, tokens: bool) -> Array:
    """Token ids as they are, or signals [N, channels, time] in float32."""
    what = "token ids" if tokens else "signals"
    if preparation.image is not None:
        raise DataError(
            f"image needs images, but the samples of {origin} are {what}: leave it out."
        )
    if preparation.normalise == "signed" or (tokens and preparation.normalise == "client"):
        raise ConfigError(
            f"federation.normalise = {preparation.normalise!r} does not fit the {what} of {origin}"
            f"{', which are names and no amounts' if tokens else ''}: leave it out."
        )
    return x.astype(np.int64 if tokens else np.float32)


def _shape(
    origin: Path | str, stored: tuple[int, ...], image: Mapping[str, int]
) -> tuple[int, ...]:
    if len(stored) != 3:
        raise DataError(
            f"image needs images, but a sample of {origin} is {stored[0]} features: leave image "
            "out."
        )
    side = image.get("side")
    height, width = (side, side) if side is not None else stored[1:]
    return (image.get("channels", stored[0]), height, width)


def _unit(origin: Path | str, x: Array) -> Floats:
    laid_out = channels_first(origin, x)
    if x.dtype == np.uint8 and x.ndim > 2:
        return np.divide(laid_out, np.float32(255), dtype=np.float32, order="C")
    with np.errstate(over="ignore"):  # too large for float32: Dataset names the infinite sample
        return np.ascontiguousarray(laid_out, dtype=np.float32)


def channels_first(origin: Path | str, x: Array) -> Array:
    """A view as [N, channels, height, width]; features stay [N, features]."""
    if x.ndim == 2:
        return x
    if x.ndim == 3:
        return x[:, None]
    if x.ndim == 4 and x.shape[1] in (1, 3):
        return x
    if x.ndim == 4 and x.shape[3] in (1, 3):
        return x.transpose(0, 3, 1, 2)
    raise DataError(
        f"{origin}: samples of shape {list(x.shape[1:])} are neither features nor images of "
        "1 or 3 channels."
    )


def convert(images: Tensor, shape: Sequence[int]) -> Tensor:
    """Images [N, C, H, W] with other channels and another size, no value beyond an image's own.

    >>> black_and_white = torch.tensor([[[[0.0, 1.0]]]])
    >>> convert(black_and_white, (1, 1, 4)).tolist()
    [[[[0.0, 0.25, 0.75, 1.0]]]]
    """
    channels, *size = shape
    made = images
    if channels < made.shape[1]:
        made = torch.einsum("nchw,c->nhw", made, made.new_tensor(_LUMA))[:, None]
    if size != list(made.shape[2:]):
        made = interpolate(made, size, mode="bilinear", align_corners=False, antialias=True)
    # Both are averages, whose weights rounding lets add up to a little more than one.
    low, high = (
        extreme(images, dim=(1, 2, 3), keepdim=True) for extreme in (torch.amin, torch.amax)
    )
    return made.clamp(low, high).expand(-1, channels, -1, -1)


def scale(
    origin: Path | str, x: Floats, normalise: str, published: tuple[float, float] | None
) -> tuple[float, float]:
    """Normalise in place, as far as no figures of the data are needed: see ``Dataset``.

    What was subtracted, and what was divided by.
    """
    if normalise == "standard" and published:
        mean, deviation = published
        x -= mean
        x /= deviation
        return published
    if normalise == "signed":
        if x.ndim == 2:
            raise DataError(
                f"normalise='signed' needs images, but a sample of {origin} is {x.shape[1]} "
                "features: choose 'standard' or 'unit'."
            )
        low, high = float(x.min()), float(x.max())
        if low < 0 or high > 1:
            raise DataError(
                f"normalise='signed' needs images stored as bytes or in 0..1, but {origin} holds "
                f"{low:g} to {high:g}: choose 'standard' or 'unit'."
            )
        x *= 2
        x -= 1
        return 0.5, 0.5
    return 0.0, 1.0
