"""One image file as pixels: upright, on white, a byte for a value, whatever it was stored as."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from fedskew.data.bounded import PIXELS, check_regular
from fedskew.errors import DataError

Pixels = NDArray[np.uint8]

IMAGE_SUFFIXES = frozenset(
    {".png", ".jpg", ".jpeg", ".ppm", ".pgm", ".pbm", ".bmp", ".gif", ".tif", ".tiff", ".webp"}
)
OTHER_IMAGES = frozenset({".svg", ".heic", ".heif", ".avif", ".jp2", ".dcm", ".eps", ".psd"})
"""Images nobody would want to be left out without a word."""
FORMATS = ("PNG", "JPEG", "PPM", "BMP", "GIF", "TIFF", "WEBP")
"""What a file may hold, whatever its name says; of some others Pillow would start a program."""
GREY_MODES = frozenset({"1", "L", "LA", "La"})
ORIENTATION = 0x0112
ON_ITS_SIDE = (5, 6, 7, 8)
"""EXIF's orientations that exchange height and width."""
_SIXTEEN_BITS = 2**16 - 1


class NoImage(DataError):
    """A file that gives no pixels; ``reason`` goes on after its name."""

    def __init__(self, origin: Path | str, reason: str) -> None:
        super().__init__(f"{origin} {reason}.")
        self.reason = reason


@dataclass(frozen=True)
class Look:
    """What a file's head says: the size of the upright image, and whether it has no colour."""

    height: int
    width: int
    grey: bool


def look(path: Path) -> Look:
    """What a file says that it holds, before its pixels are read."""
    try:
        with _opened(path) as image:
            # Of a PNG file the note may stand behind the pixels, and asking would read them.
            noted = image.format != "PNG" or "exif" in image.info
            turned = noted and image.getexif().get(ORIENTATION) in ON_ITS_SIDE
            height, width = image.size if turned else image.size[::-1]
            return Look(height, width, _is_grey(image))
    except Exception as error:  # a damaged image can fail in any way at all
        raise _no_image(path, error) from error


def read_image(
    path: Path, size: int | None = None, grey: bool | None = None, least: int | None = None
) -> Pixels:
    """An image as uint8 [H, W] or [H, W, 3]; grey None keeps grey images grey.

    It is turned as its EXIF note says, and what is transparent shows white paper. Sixteen bits
    become eight (65,535 becomes 255); of an animation the first picture counts. ``size`` resizes to
    a square. A JPEG far larger than ``least`` may be decoded in less detail, still of this side.
    """
    try:
        with _opened(path) as image:
            if least is not None:
                image.draft(image.mode, (least, least))
            picture = in_bytes(path, image, grey)
    except Exception as error:  # a damaged image can fail in any way at all
        raise _no_image(path, error) from error
    if size is not None and picture.size != (size, size):
        picture = picture.resize((size, size), Image.Resampling.BILINEAR)
    return np.asarray(picture)


def _opened(path: Path) -> Image.Image:
    check_regular(path)
    if path.suffix.lower() in OTHER_IMAGES:
        raise NoImage(path, "is an image of a kind that is not read: make it a PNG file")
    image = Image.open(path, formats=_formats())
    if image.width * image.height > PIXELS:
        raise NoImage(path, f"has {image.width}x{image.height} pixels: make it smaller")
    return image


@cache
def _formats() -> tuple[str, ...]:
    """Those that this Pillow was built with."""
    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)


def _no_image(path: Path, error: Exception) -> DataError:
    return error if isinstance(error, DataError) else NoImage(path, "cannot be read as an image")


def _is_grey(image: Image.Image) -> bool:
    return image.mode in GREY_MODES or image.mode.startswith("I")


def in_bytes(origin: Path | str, image: Image.Image, grey: bool | None = None) -> Image.Image:
    """An open image, upright and in mode L or RGB; grey None keeps grey images grey."""
    image = ImageOps.exif_transpose(image)
    grey = _is_grey(image) if grey is None else grey
    picture: Any = image
    if image.mode == "F":
        raise NoImage(
            origin,
            "holds fractions, whose black and white nobody knows: make it one of 8 or 16 bits",
        )
    if image.mode.startswith("I"):
        # X-rays: converting directly would clip everything above 255 to white.
        values = np.asarray(image)
        if values.min() < 0 or values.max() > _SIXTEEN_BITS:
            raise NoImage(origin, "holds more than 16 bits a pixel: make it one of 8 or 16 bits")
        picture = Image.fromarray((values // 257).astype(np.uint8))
    elif image.has_transparency_data:
        picture = Image.new("RGBA", image.size, "white")
        picture.alpha_composite(image.convert("RGBA"))
        picture = picture.convert("RGB")
    wanted = "L" if grey else "RGB"
    made: Image.Image = picture.copy() if picture.mode == wanted else picture.convert(wanted)
    return made
