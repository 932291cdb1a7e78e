"""Many images at once: alike at the end, whatever they were, and without the broken ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn.functional import interpolate

from fedskew.data.images.reading import Wish, read_images
from fedskew.data.prepare import as_floats
from fedskew.errors import DataError

RNG = np.random.default_rng(0)


def pixels(*shape: int) -> Any:
    return RNG.integers(0, 256, shape, dtype=np.uint8)


def stored(folder: Path, *images: Any) -> list[Path]:
    paths = [folder / f"{number}.png" for number in range(len(images))]
    for path, image in zip(paths, images, strict=True):
        Image.fromarray(image).save(path)
    return paths


def broken(folder: Path, paths: list[Path], *places: int) -> None:
    for place in places:
        paths[place].write_bytes(paths[place].read_bytes()[:60])


def test_images_alike_come_as_they_are_stored(tmp_path: Path) -> None:
    greys, colours = [pixels(4, 5) for _ in range(3)], [pixels(4, 5, 3) for _ in range(3)]
    for name, images in (("grey", greys), ("colour", colours)):
        (tmp_path / name).mkdir()
        found = read_images(tmp_path, stored(tmp_path / name, *images), Wish())
        assert found.x.dtype == np.uint8
        assert np.array_equal(found.x, np.stack(images))
        assert (found.said, found.skipped) == ((), ())


def test_images_of_different_sizes_are_named_with_a_side_that_fits(tmp_path: Path) -> None:
    paths = stored(tmp_path, *[pixels(40, 60) for _ in range(3)], pixels(33, 50), pixels(20, 10))
    with pytest.raises(DataError) as info:
        read_images(tmp_path, paths, Wish())
    assert str(info.value) == (
        f"{tmp_path} has images of different sizes: 60x40 (3), 10x20 (1), 50x33 (1): set "
        "federation.image = {side = 32} to resize them to a square while they are read."
    )
    paths += stored(tmp_path / ".", *[pixels(9 + i, 9) for i in range(5)])
    with pytest.raises(DataError, match=r"\d+ other sizes between 9x9 and"):
        read_images(tmp_path, paths, Wish())


def test_each_is_resized_as_a_whole_array_would_be(tmp_path: Path) -> None:
    """The same numbers as torch's own resizing, and the bits of converting all at once."""
    images = [pixels(12, 9, 3) for _ in range(4)]
    found = read_images(tmp_path, stored(tmp_path, *images), Wish(image={"side": 6}))
    batch = np.stack(images)
    assert np.array_equal(found.x, as_floats("x", batch, {"side": 6}))
    floats = torch.from_numpy(batch).permute(0, 3, 1, 2) / 255
    expected = interpolate(floats, (6, 6), mode="bilinear", antialias=True)
    assert np.abs(found.x - expected.numpy()).max() < 1e-6


def test_unlike_images_are_resized_to_one_square(tmp_path: Path) -> None:
    images = [pixels(12, 9), pixels(6, 6), pixels(3, 20)]
    found = read_images(tmp_path, stored(tmp_path, *images), Wish(image={"side": 6}))
    assert found.x.shape == (3, 1, 6, 6)
    assert np.array_equal(found.x[1, 0], np.float32(images[1]) / np.float32(255))


def test_grey_beside_colour_becomes_colour_and_is_told(tmp_path: Path) -> None:
    grey, colour = pixels(4, 4), pixels(4, 4, 3)
    found = read_images(tmp_path, stored(tmp_path, grey, colour), Wish())
    assert np.array_equal(found.x, np.stack([np.dstack([grey] * 3), colour]))
    assert found.said == (
        f"{tmp_path} has grey images beside coloured ones: all are read as coloured "
        "(federation.image = {channels = 1}: as grey)",
    )
    as_grey = read_images(tmp_path, stored(tmp_path, grey, colour), Wish(image={"channels": 1}))
    assert as_grey.said == ()
    assert np.abs(as_grey.x[0, 0] - grey / 255).max() < 1e-6
    luma = colour @ np.array([0.299, 0.587, 0.114]) / 255
    assert np.abs(as_grey.x[1, 0] - luma).max() < 1e-6


def test_a_share_of_files_may_be_unreadable(tmp_path: Path) -> None:
    images = [pixels(8, 8) for _ in range(10)]
    paths = stored(tmp_path, *images)
    broken(tmp_path, paths, 3)
    found = read_images(tmp_path, paths, Wish(skip=0.1))
    assert found.kept.tolist() == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert np.array_equal(found.x, np.stack([images[i] for i in found.kept]))
    assert found.skipped == ("3.png cannot be read as an image",)
    assert found.said == (
        f"left out 1 of the 10 image files in {tmp_path} (federation.options.skip): "
        "3.png cannot be read as an image",
    )
    broken(tmp_path, paths, 7)
    with pytest.raises(DataError) as info:
        read_images(tmp_path, paths, Wish(skip=0.1))
    assert str(info.value) == (
        f"2 of the 10 image files in {tmp_path} cannot be used, more than the share "
        "federation.options.skip = 0.1 allows: mend or remove them, or raise it (3.png cannot be "
        "read as an image; 7.png cannot be read as an image)."
    )


def test_misplaced_files_count_and_no_share_means_none(tmp_path: Path) -> None:
    paths = stored(tmp_path, *[pixels(8, 8) for _ in range(4)])
    found = read_images(tmp_path, paths[1:], Wish(skip=0.5), misplaced=paths[:1])
    assert found.skipped == ("0.png lies outside the folders of the others",)
    assert len(found.x) == 3
    broken(tmp_path, paths, 2)
    with pytest.raises(DataError, match=r"2\.png cannot be read as an image\.$"):
        read_images(tmp_path, paths, Wish())


def test_nothing_readable_is_refused_whatever_share_may_be_missing(tmp_path: Path) -> None:
    paths = stored(tmp_path, pixels(8, 8), pixels(8, 8))
    broken(tmp_path, paths, 0, 1)
    with pytest.raises(DataError, match=r"none of the 2 image files in .* can be read"):
        read_images(tmp_path, paths, Wish(skip=0.99))


def test_a_photo_is_decoded_in_less_detail_and_looks_the_same(tmp_path: Path) -> None:
    smooth = Image.fromarray(pixels(6, 8, 3)).resize((640, 480), Image.Resampling.BICUBIC)
    smooth.save(tmp_path / "a.jpg", quality=95)
    found = read_images(tmp_path, [tmp_path / "a.jpg"], Wish(image={"side": 16}))
    whole = as_floats("x", np.asarray(Image.open(tmp_path / "a.jpg"))[None], {"side": 16})
    assert np.abs(found.x - whole).max() < 0.02
