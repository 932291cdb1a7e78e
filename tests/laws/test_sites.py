"""Law 4 for sites: every registered method works there with the numbers of one machine, or is
refused before the first round with the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers import every_method
from here import three_sites, write_clients
from studies import CASES, TRAIN, assert_same

import fedskew
from fedskew.config import make_config
from fedskew.errors import ConfigError
from fedskew.methods import find
from fedskew.models.registry import MODELS
from fedskew.sites.run import run_on_sites

SMALL: dict[str, dict[str, Any]] = {
    "mlp": {"hidden": [8]}, "beta-vae": {"hidden": [8]}, "dense-civae": {},
    "gaussian-made": {"hidden": [8]},
}  # fmt: skip


def model_for(method: str) -> dict[str, Any]:
    """The first small model that has the parts a method calls."""
    needs = set(find(method).recipe().objective.needs)
    name = next(name for name in SMALL if needs <= set(MODELS[name].parts))
    return {"name": name, **SMALL[name]}


@every_method
def test_every_method_works_on_sites_or_is_refused_with_the_reason(
    name: str, tmp_path: Path
) -> None:
    if name in CASES:
        pytest.skip("run with more settings in tests/sites/test_worker.py")
    recipe = find(name).recipe()
    given = {"method": name, "model": model_for(name), "train": {**TRAIN, "rounds": 2}}
    files = write_clients(tmp_path / "all")
    sites = three_sites(tmp_path / "sites", files)
    if recipe.pools and recipe.invents is None:
        with pytest.raises(ConfigError, match="all data in one place"):
            run_on_sites(make_config(given), sites, tmp_path / "runs")
        return
    there = run_on_sites(make_config(given), sites, tmp_path / "runs")
    section = {"dataset": str(tmp_path / "all"), "partition": "owner", "clients": "all"}
    here = fedskew.run(
        {**given, "federation": section, "executor": "threads"}, out=tmp_path / "one", draw=False
    )
    assert_same(here, there)
    assert not any(record.failures for record in there.results.records)
