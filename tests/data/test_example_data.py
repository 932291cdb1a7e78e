"""The small real data that are written for a first try: real values, in files that differ."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits

from fedskew.data.example_data import EXAMPLE_DATA, SECTIONS, write_example
from fedskew.errors import ConfigError, DataError


def test_hospitals_hold_each_patient_once_under_what_their_files_do(tmp_path: Path) -> None:
    folder = write_example("hospitals", tmp_path / "hospitals")
    found: list[list[float]] = []
    for file in sorted(folder.glob("*.csv")):
        text = file.read_text(encoding="utf-8-sig")
        assert (file.read_bytes()[:3] == b"\xef\xbb\xbf") == (file.stem == "south")
        lines = list(csv.reader(text.splitlines(), delimiter=";" if file.stem == "east" else ","))
        assert lines[0][0] == "patient"
        assert lines[0][-1] == "diagnosis"
        missing = sum(cell == "NA" for line in lines for cell in line)
        assert (missing > 0) == (file.stem == "west")
        for line in lines[1:]:
            values = [float("nan") if c == "NA" else float(c.replace(",", ".")) for c in line[1:-1]]
            scale = 1.25 if file.stem == "north" else 1.0
            found.append([*(v / scale for v in values), float(line[-1] == "benign")])
    real = load_breast_cancer()
    expected = np.column_stack([real.data, real.target])
    ours = np.array(found)
    assert ours.shape == expected.shape
    nearest = []
    for row in ours:
        given = np.isfinite(row)
        unlike = np.abs(expected[:, given] / row[given].clip(1e-9) - 1) * (row[given] != 0)
        nearest.append(int(unlike.max(axis=1).argmin()))
        assert unlike.max(axis=1).min() < 1e-4
    assert sorted(nearest) == list(range(len(expected)))


def test_clinics_hold_all_patients_by_age(tmp_path: Path) -> None:
    folder = write_example("clinics", tmp_path / "clinics")
    rows = [
        [float(cell) for cell in line]
        for file in folder.glob("*.csv")
        for line in list(csv.reader(file.read_text().splitlines()))[1:]
    ]
    real = load_diabetes(scaled=False)
    expected = np.column_stack([real.data, real.target])
    assert np.allclose(sorted(rows), sorted(expected.tolist()), rtol=1e-5)


def test_cameras_store_the_same_writing_in_their_own_ways(tmp_path: Path) -> None:
    folder = write_example("photos", tmp_path / "photos")
    images = load_digits().images
    modes, unlike = {}, []
    for camera in sorted(folder.iterdir()):
        pictures = [p for p in sorted(camera.rglob("*.*")) if p.stem != "cut"]
        modes[camera.name] = Image.open(pictures[0]).mode
        for path in pictures[::40]:
            picture = ImageOps.exif_transpose(Image.open(path))
            if camera.name == "tablet":
                paper = Image.new("RGBA", picture.size, "white")
                picture = Image.alpha_composite(paper, picture)
            values = np.asarray(picture, np.float64)
            grey = values[..., :3].mean(axis=2) if values.ndim == 3 else values
            grey = grey / (65535 if camera.name == "xray" else 255)
            small = np.asarray(Image.fromarray(np.float32(grey)).resize((8, 8), 4))
            unlike.append(np.abs(small - (1 - images[int(path.stem)] / 16)).mean())
    assert modes == {
        "scanner": "L", "phone": "RGB", "tablet": "RGBA", "xray": "I;16", "webcam": "RGB",
    }  # fmt: skip
    assert max(unlike) < 0.1
    with pytest.raises(OSError, match=r"truncated|cannot identify|broken"):
        Image.open(next(folder.rglob("cut.png"))).load()


def test_manuals_are_paragraphs_that_occur_once(tmp_path: Path) -> None:
    folder = write_example("manuals", tmp_path / "manuals")
    texts = [path.read_text() for path in folder.rglob("*.txt")]
    assert len(texts) > 2000
    assert len(set(texts)) == len(texts)
    assert {path.name for path in folder.glob("*/*")} == {name.lower() for name in SECTIONS}
    absolute = (folder / "numpy" / "returns" / "000.txt").read_text()
    assert "absolute value" in absolute


@pytest.mark.parametrize("name", sorted(EXAMPLE_DATA))
def test_an_example_is_the_same_every_time(name: str, tmp_path: Path) -> None:
    one, other = (write_example(name, tmp_path / which) for which in ("one", "other"))
    files = sorted(path.relative_to(one) for path in one.rglob("*") if path.is_file())
    assert files == sorted(p.relative_to(other) for p in other.rglob("*") if p.is_file())
    assert all((one / file).read_bytes() == (other / file).read_bytes() for file in files)


def test_nothing_is_written_over_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("x\n")
    with pytest.raises(DataError, match="not empty"):
        write_example("clinics", tmp_path)
    with pytest.raises(ConfigError, match="clinics"):
        write_example("clinic", tmp_path / "new")
