"""Texts at real sites: ids by hashing are the same everywhere without anybody's words."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from here import Here
from safetensors.torch import load_file
from studies import assert_same_scores

import fedskew
from fedskew.config import make_config
from fedskew.errors import RunError
from fedskew.sites.run import run_on_sites
from fedskew.sites.site import Site
from fedskew.sites.worker import Worker

STUDY = {
    "model": {"name": "gru", "units": 6},
    "train": {"rounds": 2, "lr": 0.1, "batch_size": 8},
}


def write_texts(folder: Path, client: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for kind, words in (("ill", "fever cough pain"), ("well", "sleeps eats walks")):
        place = folder / client / kind
        place.mkdir(parents=True)
        for number in range(15):
            chosen = rng.choice(words.split(), rng.integers(1, 4))
            (place / f"{number}.txt").write_text(f"{client} {' '.join(chosen)}", encoding="utf-8")


def site_with(folder: Path, name: str, data: str) -> Worker:
    (folder / "site.toml").write_text(f'name = "{name}"\n[data]\npath = "{data}"\n')
    return Worker(Site.open(folder))


def test_a_study_of_texts_on_sites_has_the_bits_of_one_machine(tmp_path: Path) -> None:
    workers = {}
    for number, client in enumerate(("ann", "bob")):
        write_texts(tmp_path / "all", client, number)
        write_texts(tmp_path / f"site{number}" / "data", client, number)
        workers[f"s{number}"] = site_with(tmp_path / f"site{number}", f"s{number}", "data")
    three = run_on_sites(make_config(STUDY), Here(workers), tmp_path / "runs")
    at_home = {"dataset": str(tmp_path / "all"), "partition": "owner", "clients": "all"}
    alone = {**STUDY, "federation": at_home, "executor": "threads"}
    one = fedskew.run(alone, out=tmp_path / "one", draw=False)
    theirs = load_file(three.path / "models" / "last" / "global.safetensors")
    for name, tensor in load_file(one.path / "models" / "last" / "global.safetensors").items():
        assert torch.equal(theirs[name], tensor), name
    assert_same_scores(one, three)
    assert three.result["model"]["knobs"]["vocabulary"] == 4096


def test_sites_must_agree_on_their_vocabulary(tmp_path: Path) -> None:
    workers = {}
    for number, size in enumerate((9, 12)):
        folder = tmp_path / f"site{number}"
        folder.mkdir()
        x = np.random.default_rng(number).integers(1, 9, (20, 5))
        np.savez(folder / "ids.npz", x=x, y=np.arange(20) % 2, vocabulary=size)
        workers[f"s{number}"] = site_with(folder, f"s{number}", "ids.npz")
    with pytest.raises(RunError, match="a vocabulary of 12 token ids, those of s0 of 9"):
        run_on_sites(make_config(STUDY), Here(workers), tmp_path / "runs")
