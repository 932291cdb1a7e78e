"""A finished run's folder is all that a machine without its data needs."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import clinics
import numpy as np
import pytest
from PIL import Image

import fedskew
from fedskew.api import run

ALL = """
import contextlib, io, json, sys
from fedskew.cli import main
told = []
for arguments in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(arguments)
    told.append([code, out.getvalue(), err.getvalue()])
print(json.dumps(told))
"""
Told = tuple[int, str, str]


def elsewhere(folder: Path, *commands: tuple[str, ...]) -> list[Told]:
    """Commands in another process, in this folder, with no datasets to be found: exit code,
    output and errors of each.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FEDSKEW")}
    done = subprocess.run(
        [sys.executable, "-c", ALL, json.dumps(commands)],
        cwd=folder, env={**kept, "PYTHONPATH": str(Path(fedskew.__file__).parents[1])},
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [(code, out, err) for code, out, err in json.loads(done.stdout.splitlines()[-1])]


def moved(done: fedskew.Run, data: Path, to: Path) -> Path:
    """The folder of a run in an empty place; its data are gone."""
    shutil.copytree(done.path, to / "run")
    shutil.rmtree(done.path)
    if data.is_dir():
        shutil.rmtree(data)
    else:
        data.unlink()
    return to


def check_all(place: Path, new: str, known: list[str]) -> None:
    """Every command that a deployed model is used by works there; answers are ``known``."""
    sure = ("--threshold", "0.5")
    used = elsewhere(
        place,
        ("predict", "run", new, *sure, "--out", "answers.csv"),
        ("show", "run"),
        ("adapt", "run", new, "--out", "mine", "--epochs", "1"),
        ("predict", "mine", new, *sure),
        ("export", "run", "--format", "torch", "--out", "exported"),
        ("export", "run", "--out", "exported"),
        ("predict", "exported", new, *sure),
    )
    assert [code for code, _, _ in used] == [0] * 7, used
    with open(place / "answers.csv") as file:
        lines = list(csv.DictReader(file))
    assert [line["label"] for line in lines] == known
    models = ("run", "mine", "exported")
    for code, out, err in elsewhere(place, *(("monitor", m, new, "--json") for m in models)):
        assert code in (0, 4, 5), err
        assert json.loads(out)["rows"] == len(known)


def test_a_table_with_words_and_missing_values(tmp_path: Path) -> None:
    data = clinics.write(tmp_path / "all.csv", clinics.rows(500, seed=0))
    new = clinics.rows(60, seed=1)
    here = clinics.write(tmp_path / "here.csv", new)
    done = run(clinics.settings(data), out=tmp_path / "runs", draw=False)
    known = fedskew.predict(done, here, threshold=0.5)
    assert known.accuracy is not None
    assert known.accuracy > 0.7
    other = tmp_path / "other"
    other.mkdir()
    clinics.write(other / "new.csv", new, clinics.HEADER[::-1])
    check_all(moved(done, data, other), "new.csv", known.names)


def test_numbers_are_answered_in_the_units_of_the_target(tmp_path: Path) -> None:
    """y = 100 + 10·a - 5·b, told to a few units by a linear model."""
    rng = np.random.default_rng(0)

    def table(path: Path, count: int) -> Path:
        a, b = rng.normal(size=(2, count))
        y = 100 + 10 * a - 5 * b + rng.normal(0, 0.1, count)
        lines = [f"{i:.5f},{j:.5f},{k:.4f}" for i, j, k in zip(a, b, y, strict=True)]
        path.write_text("\n".join(["a,b,price", *lines]) + "\n")
        return path

    data, new = table(tmp_path / "all.csv", 300), table(tmp_path / "new.csv", 50)
    settings = {
        "model": "logistic",
        "federation": {"dataset": str(data), "label": "price", "clients": 3, "partition": "iid"},
        "train": {"rounds": 10, "lr": 0.1},
    }
    done = run(settings, out=tmp_path / "runs", draw=False)
    known = fedskew.predict(done, new)
    assert known.errors is not None
    assert known.errors[0] < 1.0
    assert 90 < float(np.mean(known.answers)) < 110
    place = tmp_path / "other"
    place.mkdir()
    shutil.copy(new, place / "new.csv")
    moved(done, data, place)
    used = elsewhere(
        place,
        ("predict", "run", "new.csv", "--out", "answers.csv"),
        ("adapt", "run", "new.csv", "--out", "mine", "--epochs", "2"),
        ("export", "run", "--format", "torch", "--out", "exported"),
        ("export", "run", "--out", "exported"),
        ("predict", "exported", "new.csv"),
        ("monitor", "run", "new.csv"),
        ("monitor", "mine", "new.csv"),
        ("predict", "run", "new.csv", "--proba"),
    )
    assert [code for code, _, _ in used] == [0] * 7 + [2], used
    assert "(RMSE)" in used[0][1]
    assert "answers with numbers" in used[-1][2]
    with open(place / "answers.csv") as file:
        values = [float(line["value"]) for line in csv.DictReader(file)]
    np.testing.assert_allclose(values, known.answers, rtol=1e-5)


@pytest.fixture(params=["npz", "images"])
def digits(request: pytest.FixtureRequest, tmp_path: Path, stored: Any) -> tuple[Path, Path]:
    """A file or folder to train on, and one of new samples, in the same shape and scale."""
    x, y = stored
    pixels = np.round(x[:, 0] * 255).astype(np.uint8)
    if request.param == "npz":
        np.savez(tmp_path / "all.npz", x=pixels[:600], y=y[:600])
        np.savez(tmp_path / "new.npz", x=pixels[600:640], y=y[600:640])
        return tmp_path / "all.npz", tmp_path / "new.npz"
    for place, rows in (("all/one", range(300)), ("all/two", range(300, 600)),
                        ("new", range(600, 640))):  # fmt: skip
        for row in rows:
            folder = tmp_path / place / str(y[row])
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels[row]).save(folder / f"{row}.png")
    return tmp_path / "all", tmp_path / "new"


def test_arrays_and_folders_of_images(digits: tuple[Path, Path], tmp_path: Path) -> None:
    data, new = digits
    federation: dict[str, Any] = {"dataset": str(data)}
    if data.is_dir():
        federation |= {"partition": "owner", "clients": "all"}
    else:
        federation |= {"clients": 3, "partition": "iid"}
    settings = {
        "model": {"name": "mlp", "hidden": [12]}, "federation": federation,
        "train": {"rounds": 4, "epochs": 3, "lr": 0.2},
    }  # fmt: skip
    done = run(settings, out=tmp_path / "runs", draw=False)
    known = fedskew.predict(done, new, threshold=0.5)
    assert known.accuracy is not None
    assert known.accuracy > 0.5
    if new.is_dir():
        assert known.ids[0].endswith(".png")
    place = tmp_path / "other"
    place.mkdir()
    new = new.rename(place / new.name)
    check_all(moved(done, data, place), new.name, known.names)


def test_what_a_run_writes_of_its_inputs_is_sealed(tmp_path: Path) -> None:
    """A preparation that somebody edited would answer wrongly and say nothing."""
    data = clinics.write(tmp_path / "all.csv", clinics.rows(300, seed=0))
    done = run(clinics.settings(data, rounds=1), out=tmp_path / "runs", draw=False)
    new = clinics.write(tmp_path / "new.csv", clinics.rows(5, seed=1))
    path = done.path / "preparation.json"
    path.write_text(path.read_text().replace('"sick"', '"fine"'))
    with pytest.raises(fedskew.RunError, match=r"preparation\.json is damaged"):
        fedskew.predict(done.path, new, threshold=0.5)
