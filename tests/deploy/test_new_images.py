"""New image files are read as those were that a run was trained on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import fedskew
from fedskew.data.example_data import write_example
from fedskew.deploy.preparation import preparation_of
from fedskew.deploy.samples import prepared, read_samples
from fedskew.errors import DataError
from fedskew.runs.experiment import Run, make_federation


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two cameras whose pictures differ in size, mode and orientation."""
    whole = write_example("photos", tmp_path_factory.mktemp("data") / "photos")
    for camera in ("scanner", "xray", "tablet"):
        for path in sorted((whole / camera).rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        (whole / camera).rmdir()
    return whole


@pytest.fixture(scope="module", params=[{"side": 12}, {"side": 12, "channels": 1}])
def trained(
    request: pytest.FixtureRequest, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Run:
    settings = {
        "federation": {"dataset": str(folder), "partition": "owner", "image": request.param},
        "train": {"rounds": 1}, "model": {"name": "mlp", "hidden": [8]},
    }  # fmt: skip
    settings["federation"]["clients"] = "all"
    return fedskew.run(settings, out=tmp_path_factory.mktemp("runs"), draw=False)


def test_the_runs_own_files_give_its_own_samples(trained: Run, folder: Path) -> None:
    preparation = preparation_of(trained)
    new = prepared(read_samples(folder, None, preparation), preparation)
    own = make_federation(trained.config)
    assert torch.allclose(new.x, own.x, atol=1e-5)
    assert new.labels().tolist() == own.y.tolist()


def test_a_grey_image_is_read_in_the_channels_of_the_run(trained: Run, tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 256, (20, 30), dtype=np.uint8)
    Image.fromarray(values).save(tmp_path / "a.png")
    Image.fromarray(np.dstack([values] * 3)).save(tmp_path / "b.bmp")
    preparation = preparation_of(trained)
    new = prepared(read_samples(tmp_path, None, preparation), preparation)
    assert tuple(new.x.shape[1:]) == preparation.shape
    assert torch.allclose(new.x[0], new.x[1], atol=1e-5)


def test_a_broken_new_file_is_named_and_none_is_left_out(trained: Run, tmp_path: Path) -> None:
    for name in "abc":
        Image.new("L", (12, 12), 9).save(tmp_path / f"{name}.png")
    (tmp_path / "b.png").write_bytes(b"")
    with pytest.raises(DataError, match=r"b\.png cannot be read as an image\.$"):
        read_samples(tmp_path, None, preparation_of(trained))
