"""Samples as programs hold them, one by one or in one array, as arrays to prepare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fedskew.data.formats import Array
from fedskew.data.images.one import in_bytes
from fedskew.data.prepare import as_floats, convert
from fedskew.errors import DataError


def as_stored(origin: str, x: Any) -> Array:
    """An array or tensor of samples; bytes stay bytes, all other numbers become float32."""
    if isinstance(x, Tensor):
        x = x.detach().cpu().numpy()
    if not hasattr(x, "__array__"):
        raise DataError(
            f"{origin}: samples must be an array, a tensor or a list, not {type(x).__name__}."
        )
    found = np.asarray(x)
    if found.dtype.kind not in "buif":
        what = "objects of Python" if found.dtype.kind == "O" else str(found.dtype)
        raise DataError(
            f"{origin}: samples are an array of {what}: make it one of numbers, all samples of one "
            "shape, or give a data frame."
        )
    if found.ndim < 2:
        raise DataError(
            f"{origin}: samples of shape {list(found.shape)} have no features: one row a sample, "
            "[samples, features] or images."
        )
    with np.errstate(over="ignore"):  # whoever checks the values names the sample
        return found if found.dtype == np.uint8 else found.astype(np.float32)


def stacked(origin: str, samples: Sequence[Any], image: Mapping[str, int] | None) -> Array:
    """A list of samples as one array: pictures, tensors, arrays or rows of numbers."""
    if not len(samples):
        raise DataError(f"{origin} has no samples: give it at least one, or leave it out.")
    made = [_one(origin, row, sample) for row, sample in enumerate(samples)]
    shapes = {each.shape for each in made}
    if len(shapes) > 1:
        made = _alike(origin, made, image)
    return as_stored(origin, np.stack(made))


def _one(origin: str, row: int, sample: Any) -> Array:
    if isinstance(sample, Image.Image):
        return np.asarray(in_bytes(f"sample {row} of {origin}", sample))
    if isinstance(sample, Tensor):
        return sample.detach().cpu().numpy()
    try:
        found = np.asarray(sample)
    except ValueError as error:
        raise DataError(f"{origin}: sample {row} is ragged: {error}.") from error
    if found.dtype.kind not in "buif":
        raise DataError(f"{origin}: sample {row} is {type(sample).__name__}, not numbers.")
    return found


def _alike(origin: str, made: Sequence[Array], image: Mapping[str, int] | None) -> list[Array]:
    """Images of one size and with the same channels, where it is said what size they should get."""
    first = made[0]
    odd = next(row for row, each in enumerate(made) if each.shape != first.shape)
    if any(each.ndim not in (2, 3) for each in made):
        raise DataError(
            f"{origin}: sample {odd} has shape {list(made[odd].shape)}, but sample 0 has "
            f"{list(first.shape)}: all samples must have one shape."
        )
    floats = [as_floats(origin, each[None]) for each in made]
    channels = (image or {}).get("channels") or max(each.shape[1] for each in floats)
    side = (image or {}).get("side")
    if side is None and len({each.shape[2:] for each in floats}) > 1:
        raise DataError(
            f"{origin}: image {odd} has {made[odd].shape[0]}x{made[odd].shape[1]} pixels, but "
            f"image 0 has {first.shape[0]}x{first.shape[1]}: resize them with "
            "image = {'side': 32}."
        )
    return [
        convert(torch.from_numpy(each), (channels, *((side, side) if side else each.shape[2:])))[
            0
        ].numpy()
        for each in floats
    ]
