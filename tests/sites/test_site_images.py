"""Sites whose cameras store images in their own ways: counted, and trained on together."""

from __future__ import annotations

from pathlib import Path

import pytest
from here import Here
from studies import assert_same

import fedskew
from fedskew.config import make_config
from fedskew.data.example_data import write_example
from fedskew.errors import FedskewError
from fedskew.sites.run import run_on_sites
from fedskew.sites.site import Site
from fedskew.sites.worker import Worker

CAMERAS = ("phone", "tablet", "webcam")


def test_each_site_reads_its_images_as_one_machine_would(tmp_path: Path) -> None:
    folder = write_example("photos", tmp_path / "photos")
    for camera in ("scanner", "xray"):
        (folder / camera).rename(tmp_path / camera)
    sites = {
        camera: Site.create(tmp_path / "sites" / camera, camera, folder / camera)
        for camera in CAMERAS
    }
    assert sites["webcam"].rows() == {"webcam": 359}
    here = Here({camera: Worker(site) for camera, site in sites.items()})
    given = {
        "model": {"name": "mlp", "hidden": [8]},
        "train": {"rounds": 2, "augment": [{"name": "crop", "pad": 1}]},
        "federation": {"image": {"side": 10}},
    }
    there = run_on_sites(make_config(given), here, tmp_path / "runs")
    section = {"dataset": str(folder), "partition": "owner", "clients": "all"}
    one = fedskew.run(
        {**given, "federation": {**given["federation"], **section}}, out=tmp_path / "one",
        draw=False,
    )  # fmt: skip
    assert_same(one, there)
    del given["federation"]
    with pytest.raises(FedskewError, match="webcam: its data cannot be used"):
        run_on_sites(make_config(given), here, tmp_path / "without")
