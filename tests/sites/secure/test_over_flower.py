"""Real processes: the sum over Flower has the bits of the sum over links in this process."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from here import three_sites, write_clients
from processes import running
from safetensors.torch import load_file

from fedskew.config import make_config
from fedskew.sites.run import run_on_sites

pytestmark = pytest.mark.sites


def test_a_sum_over_real_processes_is_the_sum_of_this_one(tmp_path: Path) -> None:
    config = make_config(
        {
            "method": "fedavg",
            "model": "logistic",
            "train": {"rounds": 2, "lr": 0.05, "batch_size": 16},
            "secure": True,
        }
    )
    here = three_sites(tmp_path / "here", write_clients(tmp_path / "all"))
    one = run_on_sites(config, here, tmp_path / "one")
    with running(tmp_path / "lot") as lot, lot.link() as link:
        other = run_on_sites(config, link, tmp_path / "other")
    assert one.path.name == other.path.name
    mine, theirs = (
        load_file(done.path / "models" / "last" / "global.safetensors") for done in (one, other)
    )
    assert all(torch.equal(mine[key], theirs[key]) for key in mine)
    assert [r.participants for r in other.results.records] == [4, 4]
