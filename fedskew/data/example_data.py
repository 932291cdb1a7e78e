"""Small real data, written the way people have them: tables that differ, photos, texts.

The measurements are real (from scikit-learn, or from the documentation of installed libraries). The
owners of tables and images are made up, and so is what is different about their files.
"""

from __future__ import annotations

import csv
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageChops

from fedskew.data.formats import Array
from fedskew.errors import DataError, unknown

CLIENT_SEED = 19


@dataclass(frozen=True)
class ExampleData:
    """A folder that can be written; ``text`` is its line in a list.

    ``config`` is the shipped example that learns from it.
    """

    name: str
    text: str
    write: Callable[[Path], None]
    config: str


def write_example(name: str, folder: Path) -> Path:
    """Write one of these examples into a folder that does not exist yet, or is empty."""
    if name not in EXAMPLE_DATA:
        raise unknown("example of data", name, EXAMPLE_DATA)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DataError(f"{folder} is there already, and not empty: name another folder.")
    folder.mkdir(parents=True, exist_ok=True)
    EXAMPLE_DATA[name].write(folder)
    return folder


def _hospitals(folder: Path) -> None:
    """Tumours of 569 patients at five hospitals, each with its own way to write a table."""
    from sklearn.datasets import load_breast_cancer

    found = load_breast_cancer()
    rng = np.random.default_rng(CLIENT_SEED)
    columns = ["patient", *(name.replace(" ", "_") for name in found.feature_names), "diagnosis"]
    words = np.array(["malignant", "benign"])
    parts = np.split(rng.permutation(len(found.target)), [190, 320, 430, 510])
    for name, rows in zip(("north", "south", "east", "west", "centre"), parts, strict=True):
        x = found.data[rows]
        if name == "north":
            # Its scanner is calibrated otherwise: everything is larger by a quarter.
            x = 1.25 * x
        cells = [[f"{value:.6g}" for value in row] for row in x]
        if name == "west":
            # One measurement in twenty was not taken.
            for i, k in np.argwhere(rng.random(x.shape) < 0.05):
                cells[i][k] = "NA"
        comma = name == "east"
        lines = [
            [f"{name[0].upper()}{1000 + i}", *(c.replace(".", ",") if comma else c for c in line),
             str(words[target])]
            for i, (line, target) in enumerate(zip(cells, found.target[rows], strict=True))
        ]  # fmt: skip
        with (folder / f"{name}.csv").open(
            "w", newline="", encoding="utf-8-sig" if name == "south" else "utf-8"
        ) as file:
            csv.writer(file, delimiter=";" if comma else ",").writerows([columns, *lines])


def _clinics(folder: Path) -> None:
    """Diabetes of 442 patients a year on, a number; clinics differ in the age of who comes."""
    from sklearn.datasets import load_diabetes

    found = load_diabetes(scaled=False)
    age = found.data[:, found.feature_names.index("age")]
    bounds = {"young": (0, 40), "middle": (40, 50), "older": (50, 60), "old": (60, 200)}
    for name, (least, most) in bounds.items():
        rows = np.flatnonzero((age >= least) & (age < most))
        with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow([*found.feature_names, "progression"])
            for row in rows:
                writer.writerow([*(f"{v:g}" for v in found.data[row]), f"{found.target[row]:g}"])


def _photos(folder: Path) -> None:
    """1,797 handwritten digits from five cameras, none of which stores pictures like another."""
    from sklearn.datasets import load_digits

    found = load_digits()
    rng = np.random.default_rng(CLIENT_SEED)
    cameras = {"scanner": _plain, "phone": _sideways, "tablet": _see_through, "xray": _deep,
               "webcam": _coloured}  # fmt: skip
    parts = np.array_split(rng.permutation(len(found.target)), len(cameras))
    for (camera, save), rows in zip(cameras.items(), parts, strict=True):
        for row in rows:
            place = folder / camera / str(found.target[row])
            place.mkdir(parents=True, exist_ok=True)
            side = int(rng.integers(16, 33)) if camera == "webcam" else 24
            grey = Image.fromarray(np.uint8(255 - found.images[row] * (255 / 16)))
            save(grey.resize((side, side), Image.Resampling.BICUBIC), place / f"{row:04}")
    # A copy that was cut off, as disks and downloads leave them.
    first = min((folder / "scanner").rglob("*.png"))
    first.with_name("cut.png").write_bytes(first.read_bytes()[:100])


def _plain(picture: Image.Image, path: Path) -> None:
    picture.save(path.with_suffix(".png"))


def _sideways(picture: Image.Image, path: Path) -> None:
    """Stored on its side, with the note that says how to turn it."""
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = picture.convert("RGB").transpose(Image.Transpose.ROTATE_90)
    turned.save(path.with_suffix(".jpg"), exif=exif, quality=90)


def _see_through(picture: Image.Image, path: Path) -> None:
    """Ink on nothing: the strokes are opaque, the paper is not there."""
    ink = Image.new("RGBA", picture.size, (0, 0, 0, 0))
    ink.putalpha(ImageChops.invert(picture))
    ink.save(path.with_suffix(".png"))


def _deep(picture: Image.Image, path: Path) -> None:
    deep: Array = np.asarray(picture).astype(np.uint16) * 257
    Image.fromarray(deep).save(path.with_suffix(".png"))


def _coloured(picture: Image.Image, path: Path) -> None:
    picture.convert("RGB").save(path.with_suffix(".bmp"))


LIBRARIES = (
    "numpy", "scipy.linalg", "scipy.ndimage", "scipy.optimize", "scipy.signal", "scipy.special",
    "scipy.stats", "sklearn.ensemble", "sklearn.linear_model", "sklearn.metrics",
    "sklearn.preprocessing", "matplotlib.figure",
)  # fmt: skip
SECTIONS = ("Notes", "Parameters", "References", "Returns")
_HEADING = re.compile(r"^(\w[\w ]+)\n-{3,}\s*$", re.MULTILINE)
MOST, SHORTEST = 80, 40
"""Texts of a class at a client, and letters of a text."""


def _manuals(folder: Path) -> None:
    """Paragraphs of the manuals of numerical libraries: what does a paragraph tell?"""
    told: set[str] = set()
    for library in LIBRARIES:
        count = dict.fromkeys(SECTIONS, 0)
        for heading, text in _sections(library):
            if heading not in count or count[heading] >= MOST or text in told:
                continue
            told.add(text)
            place = folder / library / heading.lower()
            place.mkdir(parents=True, exist_ok=True)
            (place / f"{count[heading]:03}.txt").write_text(f"{text}\n", encoding="utf-8")
            count[heading] += 1


def _sections(library: str) -> Iterator[tuple[str, str]]:
    """The headings and texts in the documentation of everything public in a library."""
    module = importlib.import_module(library)
    for name in sorted(n for n in dir(module) if not n.startswith("_")):
        thing = getattr(module, name)
        inner = inspect.getmembers(thing, callable) if inspect.isclass(thing) else []
        things = [thing, *(member for key, member in inner if not key.startswith("_"))]
        for each in things if callable(thing) else ():
            manual = inspect.getdoc(each) or ""
            _, *parts = _HEADING.split(manual)
            for heading, text in zip(parts[::2], map(str.strip, parts[1::2]), strict=True):
                if len(text) >= SHORTEST:
                    yield heading, text


EXAMPLE_DATA = {
    each.name: each
    for each in (
        ExampleData(
            "hospitals",
            "tables: tumours at five hospitals (classification)",
            _hospitals,
            "five-hospitals",
        ),
        ExampleData(
            "clinics", "tables: diabetes at four clinics (regression)", _clinics, "four-clinics"
        ),
        ExampleData("photos", "images: digits from five unlike cameras", _photos, "five-cameras"),
        ExampleData(
            "manuals", "texts: paragraphs of twelve libraries' manuals", _manuals, "twelve-manuals"
        ),
    )
}
