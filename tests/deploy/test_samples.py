"""A client's samples from its files: tables, arrays, folders of images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from quick_digits import Stored

import fedskew
from fedskew.api import run
from fedskew.deploy.preparation import preparation_of
from fedskew.deploy.samples import prepared, read_samples
from fedskew.errors import DataError
from fedskew.runs.experiment import Run


@pytest.fixture(scope="module")
def flat_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run on a table of features whose classes have names."""
    folder = tmp_path_factory.mktemp("table")
    rng = np.random.default_rng(0)
    lines = [f"{a:.6f},{b:.6f},{'cold' if a > b else 'warm'}" for a, b in rng.random((90, 2))]
    (folder / "all.csv").write_text("\n".join(["f,g,label", *lines]))
    federation = {"dataset": str(folder / "all.csv"), "clients": 3, "partition": "iid"}
    settings = {"model": "logistic", "federation": federation, "train": {"rounds": 1}}
    return run(settings, out=folder / "runs", draw=False)


def test_tables_images_and_arrays_hold_the_same_samples(flat_run: Run, tmp_path: Path) -> None:
    preparation = preparation_of(flat_run)
    (tmp_path / "new.csv").write_text("f,g,kind\n0.5,0.25,cold\n0.125,1,warm\n")
    np.savez(tmp_path / "named.npz", x=np.array([[0.5, 0.25], [0.125, 1]]), y=np.array([0, 1]),
             class_names=np.array(["cold", "warm"]))  # fmt: skip
    found = [
        prepared(read_samples(tmp_path / name, None, preparation, "kind"), preparation)
        for name in ("new.csv", "named.npz")
    ]
    assert preparation.class_names == ("cold", "warm")
    for samples in found:
        assert torch.equal(samples.x, found[0].x)
        assert samples.labels().tolist() == [0, 1]
    (tmp_path / "bare.csv").write_text("f,g\n0.5,0.25\n0.125,1\n")
    bare = prepared(read_samples(tmp_path / "bare.csv", None, preparation), preparation)
    assert torch.equal(bare.x, found[0].x)
    assert bare.y is None


def test_parquet_files_are_read_too(flat_run: Run, tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table({"f": [0.5, 0.125], "g": [0.25, 1.0], "label": ["warm", "warm"]})
    parquet.write_table(table, tmp_path / "new.parquet")
    preparation = preparation_of(flat_run)
    stored = read_samples(tmp_path / "new.parquet", None, preparation)
    samples = prepared(stored, preparation)
    assert samples.labels().tolist() == [1, 1]
    assert torch.equal(samples.x, preparation.samples(np.array([[0.5, 0.25], [0.125, 1.0]])))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("f,g,label\n1,2,hot\n", "label 'hot' of sample 0 is none of the run's classes"),
        ("f,label\n1,warm\n", "lacks column 'g': it has f"),
        ("f,G,label\n1,2,warm\n", "lacks column 'g'"),
        ("f,g\n1,x\n", "column 'g' holds 'x', which is not a number"),
        ("f,g,label\n", "no rows"),
    ],
)
def test_tables_that_do_not_fit(flat_run: Run, tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "new.csv").write_text(text)
    with pytest.raises(DataError, match=says):
        fedskew.predict(flat_run, tmp_path / "new.csv", threshold=0.5)


def test_folders_of_images_are_read_by_class_or_without(
    finished: Run, few: Stored, tmp_path: Path
) -> None:
    x, y = few
    for row, (image, label) in enumerate(zip(x, y, strict=True)):
        for place in (tmp_path / "labelled" / str(label), tmp_path / "bare"):
            place.mkdir(parents=True, exist_ok=True)
            pixels = np.round(image[0] * 255).astype(np.uint8)
            Image.fromarray(pixels).save(place / f"{row:02d}.png")
    preparation = preparation_of(finished)
    labelled = prepared(read_samples(tmp_path / "labelled", None, preparation), preparation)
    expected = preparation.samples(np.round(x[:, 0] * 255).astype(np.uint8))
    assert torch.equal(labelled.x, expected)
    assert labelled.labels().tolist() == y.tolist()
    bare = prepared(read_samples(tmp_path / "bare", None, preparation), preparation)
    assert torch.equal(bare.x, expected)
    assert bare.y is None
