"""Many image files as one array: alike in size and channels, without those that cannot be read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedskew.data.formats import Array
from fedskew.data.images.one import Look, NoImage, look, read_image
from fedskew.data.prepare import as_floats
from fedskew.engine.workers import in_workers
from fedskew.errors import DataError

SKIP = 0.05
"""The share of unreadable image files that is skipped, unless a user says another."""
MOST_NAMED = 3
SIDES = (64, 48, 32, 28, 24, 16)
"""What is proposed as a side: small enough to train on, not beyond what the images show."""
FINER = 2
"""JPEG files are decoded to at least this many times the side that is wanted."""

Pixels = NDArray[np.uint8] | NDArray[np.float32]


@dataclass(frozen=True)
class Wish:
    """How images are to come out: see ``read_images``."""

    size: int | None = None
    grey: bool | None = None
    image: Mapping[str, int] | None = None
    skip: float = 0.0

    @property
    def side(self) -> int | None:
        return (self.image or {}).get("side")

    @property
    def resizes(self) -> bool:
        return self.size is not None or self.side is not None

    @property
    def least(self) -> int | None:
        """The side below which nothing of a file is needed."""
        return None if self.size is not None or self.side is None else FINER * self.side


@dataclass(frozen=True)
class Read:
    """Images as they were wished for, which of the files they are, and what there is to say."""

    x: Array
    kept: NDArray[np.int64]
    said: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()


def read_images(
    origin: Path, paths: Sequence[Path], wish: Wish, misplaced: Sequence[Path] = ()
) -> Read:
    """The images of these files, each converted as it is read, so that no two are held as stored.

    Without a wish for another size or other channels they are uint8 [N, H, W] or [N, H, W, 3], and
    must be of one size; with ``image`` they are float32 [N, C, H, W] in 0..1, as
    :func:`~fedskew.data.prepare.as_floats` makes them. Grey ones beside coloured ones become
    coloured, unless ``grey`` or the channels of ``image`` say what all are.

    Up to a share ``skip`` of the files may be unreadable; ``misplaced`` ones count as such.
    """
    whole = len(paths) + len(misplaced)
    bad = dict.fromkeys(misplaced, "lies outside the folders of the others")
    looks: dict[Path, Look] = {}
    for path, found in zip(paths, in_workers(_looked, paths), strict=True):
        if isinstance(found, NoImage):
            bad[path] = found.reason
        else:
            looks[path] = found
    _check_share(origin, bad, whole, wish.skip)
    good = np.array([i for i, path in enumerate(paths) if path in looks], dtype=np.int64)
    sizes = Counter((each.height, each.width) for each in looks.values())
    if len(sizes) > 1 and not wish.resizes:
        raise _sizes_differ(origin, sizes)
    colours = {each.grey for each in looks.values()}
    x, failed = _decoded(origin, [paths[i] for i in good], wish, next(iter(sizes)), colours)
    bad |= {paths[good[i]]: reason for i, reason in failed.items()}
    _check_share(origin, bad, whole, wish.skip)
    said = []
    if len(colours) > 1 and wish.grey is None and "channels" not in (wish.image or {}):
        said.append(
            f"{origin} has grey images beside coloured ones: all are read as coloured "
            "(federation.image = {channels = 1}: as grey)"
        )
    if failed:
        left = np.ones(len(good), bool)
        left[list(failed)] = False
        x, good = x[left], good[left]
    if bad:
        said.append(_skipping(origin, bad, whole))
    return Read(
        x,
        good,
        tuple(said),
        tuple(f"{path.relative_to(origin)} {bad[path]}" for path in sorted(bad)),
    )


def _looked(path: Path) -> Look | NoImage:
    try:
        return look(path)
    except DataError as error:
        return _as_bad(path, error)


def _as_bad(path: Path, error: DataError) -> NoImage:
    return error if isinstance(error, NoImage) else NoImage(path, "is no plain file")


def _decoded(
    origin: Path,
    paths: Sequence[Path],
    wish: Wish,
    size: tuple[int, int],
    colours: set[bool],
) -> tuple[Pixels, dict[int, str]]:
    """The pixels of files that were looked at, and which of them could not be read after all."""
    image = wish.image or {}
    grey = wish.grey
    if grey is None and "channels" not in image:
        grey = colours == {True}
    channels = image.get("channels", 1 if grey else 3)
    height, width = (wish.size, wish.size) if wish.size is not None else size
    if wish.side is not None:
        height = width = wish.side
    shape: tuple[int, ...] = (len(paths), channels, height, width)
    if not wish.image:
        shape = (len(paths), height, width) if channels == 1 else (len(paths), height, width, 3)
    x: Any = np.empty(shape, dtype=np.float32 if wish.image else np.uint8)

    def fill(number: int) -> str | None:
        path = paths[number]
        try:
            pixels = read_image(path, wish.size, grey, wish.least)
        except DataError as error:
            return _as_bad(path, error).reason
        if not wish.resizes and pixels.shape[:2] != size:
            raise _sizes_differ(origin, Counter([size, pixels.shape[:2]]))
        x[number] = as_floats(path, pixels[None], wish.image)[0] if wish.image else pixels
        return None

    reasons = in_workers(fill, range(len(paths)))
    return x, {number: reason for number, reason in enumerate(reasons) if reason is not None}


def _named(origin: Path, bad: Mapping[Path, str]) -> str:
    first = sorted(bad)[:MOST_NAMED]
    more = f"; and {len(bad) - len(first)} more" if len(bad) > len(first) else ""
    return "; ".join(f"{path.relative_to(origin)} {bad[path]}" for path in first) + more


def _check_share(origin: Path, bad: Mapping[Path, str], whole: int, skip: float) -> None:
    if len(bad) <= skip * whole and len(bad) < whole:
        return
    if not skip:
        path = min(bad)
        raise NoImage(path, bad[path])
    allowed = f"the share federation.options.skip = {skip:g} allows"
    raise DataError(
        f"{len(bad)} of the {whole} image files in {origin} cannot be used, more than {allowed}: "
        f"mend or remove them, or raise it ({_named(origin, bad)})."
        if len(bad) < whole
        else f"none of the {whole} image files in {origin} can be read: bring others "
        f"({_named(origin, bad)})."
    )


def _skipping(origin: Path, bad: Mapping[Path, str], whole: int) -> str:
    return (
        f"left out {len(bad)} of the {whole} image files in {origin} (federation.options.skip): "
        f"{_named(origin, bad)}"
    )


def _sizes_differ(origin: Path, sizes: Mapping[tuple[int, int], int]) -> DataError:
    """Which sizes there are, and a side that would suit them."""
    often = sorted(sizes, key=lambda size: (-sizes[size], size))
    named = [f"{width}x{height} ({sizes[height, width]})" for height, width in often[:MOST_NAMED]]
    if len(often) > MOST_NAMED:
        low, high = min(often, key=min), max(often, key=max)
        named.append(
            f"{len(often) - MOST_NAMED} other sizes between {low[1]}x{low[0]} and "
            f"{high[1]}x{high[0]}"
        )
    return DataError(
        f"{origin} has images of different sizes: {', '.join(named)}: set federation.image = "
        f"{{side = {_proposed(sizes)}}} to resize them to a square while they are read."
    )


def _proposed(sizes: Mapping[tuple[int, int], int]) -> int:
    """A usual side, not above the shorter side of most images."""
    shorter = np.repeat([min(size) for size in sizes], list(sizes.values()))
    middle = int(np.median(shorter))
    return next((side for side in SIDES if side <= middle), max(1, middle))
