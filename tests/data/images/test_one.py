"""One image file, however it is stored, as the pixels that a viewer shows."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedskew.data.images.one import Look, look, read_image
from fedskew.errors import DataError

GREYS = np.array([[0, 50, 100], [150, 200, 250]], dtype=np.uint8)
COLOURS = np.random.default_rng(0).integers(0, 256, (4, 6, 3), dtype=np.uint8)


def exif(orientation: int) -> Image.Exif:
    made = Image.Exif()
    made[0x0112] = orientation
    return made


UPRIGHT = {
    1: lambda x: x, 2: np.fliplr, 3: lambda x: np.rot90(x, 2), 4: np.flipud,
    5: lambda x: np.swapaxes(x, 0, 1), 6: lambda x: np.rot90(x, -1),
    7: lambda x: np.rot90(np.swapaxes(x, 0, 1), 2), 8: np.rot90,
}  # fmt: skip
"""What each of EXIF's orientations asks a viewer to do (Exif 2.3, tag 0x0112)."""


@pytest.mark.parametrize("orientation", sorted(UPRIGHT))
def test_an_image_is_turned_as_its_note_says(tmp_path: Path, orientation: int) -> None:
    path = tmp_path / "a.png"
    Image.fromarray(COLOURS).save(path, exif=exif(orientation))
    expected = UPRIGHT[orientation](COLOURS)
    assert np.array_equal(read_image(path), expected)
    assert look(path) == Look(*expected.shape[:2], grey=False)


def test_a_photo_on_its_side_is_told_upright_before_it_is_decoded(tmp_path: Path) -> None:
    Image.new("RGB", (30, 20)).save(tmp_path / "a.jpg", exif=exif(6))
    assert look(tmp_path / "a.jpg") == Look(height=30, width=20, grey=False)
    assert read_image(tmp_path / "a.jpg").shape == (30, 20, 3)


def test_sixteen_bit_x_rays_are_scaled_not_clipped(tmp_path: Path) -> None:
    values = np.array([[0, 257 * 100], [257 * 200, 65535]], dtype=np.uint16)
    for name in ("a.png", "a.tif"):
        Image.fromarray(values).save(tmp_path / name)
        assert read_image(tmp_path / name, grey=True).tolist() == [[0, 100], [200, 255]]
        assert read_image(tmp_path / name)[1, 0].tolist() == 200
        assert look(tmp_path / name).grey


def test_more_than_sixteen_bits_or_fractions_are_refused(tmp_path: Path) -> None:
    Image.fromarray(np.array([[0, 70_000]], dtype=np.int32)).save(tmp_path / "deep.tif")
    with pytest.raises(DataError, match=r"deep\.tif holds more than 16 bits"):
        read_image(tmp_path / "deep.tif")
    Image.fromarray(np.array([[0.0, 0.5]], dtype=np.float32)).save(tmp_path / "part.tif")
    with pytest.raises(DataError, match=r"part\.tif holds fractions"):
        read_image(tmp_path / "part.tif")


def test_what_is_transparent_shows_white_paper(tmp_path: Path) -> None:
    """By hand: a share a/255 of the ink and the rest of 255."""
    ink = np.zeros((1, 3, 4), dtype=np.uint8)
    ink[0, :, 0] = 100
    ink[0, :, 3] = (0, 51, 255)
    Image.fromarray(ink).save(tmp_path / "a.png")
    expected = [[[255, 255, 255], [224, 204, 204], [100, 0, 0]]]
    assert read_image(tmp_path / "a.png").tolist() == expected


def test_grey_with_transparency_stays_grey(tmp_path: Path) -> None:
    pair = np.stack([GREYS, np.full_like(GREYS, 255)], axis=2)
    pair[0, 0, 1] = 0
    Image.fromarray(pair, "LA").save(tmp_path / "a.png")
    assert look(tmp_path / "a.png").grey
    assert read_image(tmp_path / "a.png").tolist() == [[255, 50, 100], [150, 200, 250]]


def test_a_palette_is_looked_up_and_its_transparent_entry_is_white(tmp_path: Path) -> None:
    image = Image.fromarray(np.array([[0, 1, 2]], dtype=np.uint8), "P")
    image.putpalette([10, 20, 30, 40, 50, 60, 70, 80, 90])
    image.save(tmp_path / "a.png")
    expected = [[[10, 20, 30], [40, 50, 60], [70, 80, 90]]]
    assert read_image(tmp_path / "a.png").tolist() == expected
    image.save(tmp_path / "b.png", transparency=1)
    assert read_image(tmp_path / "b.png")[0, 1].tolist() == [255, 255, 255]


def test_printing_colours_become_light(tmp_path: Path) -> None:
    """No ink is white, all black ink is black."""
    inks = np.zeros((8, 16, 4), dtype=np.uint8)
    inks[:, 8:, 3] = 255
    Image.fromarray(inks, "CMYK").save(tmp_path / "a.tif")
    found = read_image(tmp_path / "a.tif")
    assert (found[:, :8].min(), found[:, 8:].max()) == (255, 0)


@pytest.mark.parametrize("kind", ["gif", "webp", "png"])
def test_of_an_animation_the_first_picture_counts(tmp_path: Path, kind: str) -> None:
    first, second = (Image.new("RGB", (8, 8), colour) for colour in ((255, 0, 0), (0, 0, 255)))
    path = tmp_path / f"a.{kind}"
    lossless = {"lossless": True} if kind == "webp" else {}
    first.save(path, save_all=True, append_images=[second], **lossless)
    assert read_image(path).reshape(-1, 3).tolist() == [[255, 0, 0]] * 64


def test_black_and_white_is_grey_and_colour_may_be_asked_for(tmp_path: Path) -> None:
    Image.fromarray(GREYS > 100).save(tmp_path / "a.png")
    assert read_image(tmp_path / "a.png").tolist() == [[0, 0, 0], [255, 255, 255]]
    Image.fromarray(GREYS).save(tmp_path / "b.png")
    assert np.array_equal(read_image(tmp_path / "b.png", grey=False), np.dstack([GREYS] * 3))
    Image.fromarray(COLOURS).save(tmp_path / "c.png")
    luma = COLOURS @ np.array([0.299, 0.587, 0.114])
    assert np.abs(read_image(tmp_path / "c.png", grey=True) - luma).max() <= 0.51


def test_a_jpeg_is_decoded_no_smaller_than_it_is_needed(tmp_path: Path) -> None:
    Image.fromarray(COLOURS).resize((400, 300)).save(tmp_path / "a.jpg")
    height, width, _ = read_image(tmp_path / "a.jpg", least=40).shape
    assert 40 <= min(height, width) < 80
    assert read_image(tmp_path / "a.jpg", least=400).shape == (300, 400, 3)


def test_a_truncated_image_is_refused(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "a.png")
    content = (tmp_path / "a.png").read_bytes()
    (tmp_path / "a.png").write_bytes(content[:900])
    with pytest.raises(DataError, match=r"a\.png cannot be read as an image"):
        read_image(tmp_path / "a.png")


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    content = io.BytesIO()
    Image.new("L", (8, 8)).save(content, "png")
    whole = bytearray(content.getvalue())
    whole[16:24] = struct.pack(">II", 9000, 9000)
    whole[29:33] = struct.pack(">I", zlib.crc32(bytes(whole[12:29])))
    (tmp_path / "a.png").write_bytes(whole)
    for read in (look, read_image):
        with pytest.raises(DataError, match=r"a\.png has 9000x9000 pixels"):
            read(tmp_path / "a.png")


def test_a_picture_that_a_program_would_have_to_draw_is_no_image(tmp_path: Path) -> None:
    """Pillow hands PostScript to Ghostscript, whatever the file is called."""
    (tmp_path / "a.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n")
    with pytest.raises(DataError, match=r"a\.png cannot be read as an image"):
        read_image(tmp_path / "a.png")
    (tmp_path / "a.heic").write_bytes(b"ftypheic")
    with pytest.raises(DataError, match=r"a\.heic is an image of a kind that is not read"):
        read_image(tmp_path / "a.heic")
