"""Folders of images as datasets: owners, splits, what is said, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from fedskew.config import make_config
from fedskew.data.example_data import write_example
from fedskew.data.own import load_own
from fedskew.data.prepare import as_floats
from fedskew.errors import DataError
from fedskew.runs.experiment import make_federation
from fedskew.runs.identity import resolve


def write(path: Path, grey: int, size: int = 8) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(grey).integers(-9, 10, (size, size))
    Image.fromarray(np.uint8(grey + noise)).save(path)


def classes(folder: Path, each: int = 12) -> Path:
    for number in range(each):
        for place, name in enumerate(("cat", "dog")):
            write(folder / name / f"{number:02}.png", 50 + 50 * place + number)
    return folder


def test_folders_of_classes_have_no_owner_and_any_partition_deals_them(tmp_path: Path) -> None:
    data = load_own(classes(tmp_path))
    assert (data.owner, data.class_names) == (None, ("cat", "dog"))
    assert data.remarks.said == (
        f"the images of {tmp_path} lie in folders of classes, so nobody owns them: "
        "federation.partition deals them to clients",
    )
    settings = {"dataset": str(tmp_path), "partition": "iid", "clients": 3, "test": 0.25}
    made = make_federation(make_config({"federation": settings}))
    assert len(made.clients) == 3
    assert made.remarks == data.remarks
    with pytest.raises(DataError) as info:
        make_federation(make_config({"federation": {**settings, "partition": "owner"}}))
    assert str(info.value) == (
        "partition 'owner' needs a dataset that records the owner of each sample: set "
        "federation.partition to 'dirichlet', 'iid' or another (fedskew list partitions), or give "
        "clients files of their own, images in CLIENT/CLASS/ folders."
    )


def test_a_given_split_is_what_clients_are_tested_on(tmp_path: Path) -> None:
    classes(tmp_path / "train")
    classes(tmp_path / "test", 3)
    data = load_own(tmp_path)
    assert data.owner is None
    assert len(data.official_test) == 6
    assert f"{tmp_path} is sorted into training and test: clients train on 24 images" in " ".join(
        data.remarks.said
    )
    made = make_federation(
        make_config({"federation": {"dataset": str(tmp_path), "clients": 2, "partition": "iid"}})
    )
    assert sorted(np.concatenate([c.test for c in made.clients])) == sorted(data.official_test)


def test_what_was_left_out_is_said(tmp_path: Path) -> None:
    for owner in ("ann", "bob"):
        classes(tmp_path / owner)
    (tmp_path / "ann/cat/00.png").write_bytes(b"")
    (tmp_path / "ann/cat/Thumbs.db").write_bytes(b"")
    (tmp_path / "ann/cow").mkdir()
    data = load_own(tmp_path)
    assert len(data.y) == 47
    assert data.remarks.said == (
        f"left out 1 of the 48 image files in {tmp_path} (federation.options.skip): "
        "ann/cat/00.png cannot be read as an image",
        "folders without images: ann/cow",
        f"files of {tmp_path} that are no images: 1 (.db)",
    )
    assert data.remarks.skipped == ("ann/cat/00.png cannot be read as an image",)
    with pytest.raises(DataError, match=r"ann/cat/00\.png cannot be read as an image\.$"):
        load_own(tmp_path, skip=0.0)


def test_a_client_or_class_whose_images_are_all_broken_is_refused(tmp_path: Path) -> None:
    classes(tmp_path / "ann")
    write(tmp_path / "eve/cat/1.png", 99)
    (tmp_path / "eve/cat/1.png").write_bytes(b"")
    with pytest.raises(DataError, match="none of the images of client 'eve' can be read"):
        load_own(tmp_path)
    (tmp_path / "eve").rename(tmp_path / "ann/new")
    (tmp_path / "ann/new/cat/1.png").rename(tmp_path / "ann/new/1.png")
    (tmp_path / "ann/new/cat").rmdir()
    with pytest.raises(DataError, match="none of the images of class 'new' can be read"):
        load_own(tmp_path)


def test_the_default_share_is_not_written_into_the_settings_of_a_run(tmp_path: Path) -> None:
    classes(tmp_path)

    def options(given: dict[str, float]) -> dict[str, object]:
        section = {"dataset": str(tmp_path), "options": given}
        return resolve(make_config({"federation": section})).federation.options

    assert options({}) == options({"skip": 0.05}) == {"label": "label", "image_size": None}
    assert options({"skip": 0.0})["skip"] == 0.0


def test_cameras_that_store_pictures_in_their_own_ways_make_one_dataset(tmp_path: Path) -> None:
    """Against Pillow and numpy alone, image by image."""
    folder = write_example("photos", tmp_path / "photos")
    with pytest.raises(DataError, match=r"of different sizes: 24x24 \(\d+\), .* = \{side = 24\}"):
        load_own(folder)
    data = load_own(folder, normalise="unit", image={"side": 24, "channels": 1})
    assert data.owner_names == ("phone", "scanner", "tablet", "webcam", "xray")
    assert len(data.remarks.skipped) == 1
    assert "cut.png cannot be read" in data.remarks.skipped[0]
    paths = [p for p in sorted(folder.glob("*/*/*")) if p.stem != "cut"]
    assert len(data.x) == len(paths) == 1797
    for row in range(0, len(paths), 37):
        with Image.open(paths[row]) as image:
            upright = ImageOps.exif_transpose(image)
        values = np.asarray(upright, np.float64)
        if upright.mode == "RGBA":
            share = values[..., 3:] / 255
            values = share * values[..., :3] + (1 - share) * 255
        values = values / (65535 if upright.mode == "I;16" else 255)
        if values.ndim == 3:
            values = values @ [0.299, 0.587, 0.114]
        expected = as_floats("x", np.float32(values)[None], {"side": 24})[0]
        assert np.abs(data.x[row].numpy() - expected).max() < 0.005, paths[row]
