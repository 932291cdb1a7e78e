"""Models that stay at a site, and are used there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from here import three_sites, write_clients
from studies import MLP, TRAIN, settings

import fedskew
from fedskew.config import make_config
from fedskew.errors import ConfigError, RunError
from fedskew.sites.run import run_on_sites
from fedskew.sites.serving import model_in_use


@pytest.mark.parametrize("method", ["fedavg", "ditto", "fedper"])
@pytest.mark.parametrize("normalise", ["standard", "unit"])
def test_a_site_predicts_as_the_one_machine_does(
    method: str, normalise: str, tmp_path: Path
) -> None:
    """The same table of new samples, by the site's folder alone and by a run that has all data."""
    files = write_clients(tmp_path / "all")
    section = {"normalise": normalise}
    given = {
        "method": method,
        "model": MLP,
        "train": {**TRAIN, "rounds": 12},
        "federation": section,
    }
    sites = three_sites(tmp_path / "sites", files)
    done = run_on_sites(make_config(given), sites, tmp_path / "runs")
    assert not done.result["notes"]
    home = {**section, "dataset": str(tmp_path / "all"), "partition": "owner", "clients": "all"}
    alone = fedskew.run(
        {**given, "federation": home, "executor": "threads"}, out=tmp_path / "one", draw=False
    )
    site = sites.workers["north"].site
    mine = fedskew.predict(model_in_use(site, "cleo"), files["cleo"], threshold=0.5)
    client = None if method == "fedavg" else "cleo"
    theirs = fedskew.predict(alone, files["cleo"], client=client, threshold=0.5)
    assert mine.names == theirs.names
    assert np.array_equal(mine.probability, theirs.probability)
    assert mine.accuracy == theirs.accuracy


def test_the_model_to_use_is_named(tmp_path: Path) -> None:
    files = write_clients(tmp_path / "all")
    sites = three_sites(tmp_path / "sites", files)
    site = sites.workers["north"].site
    with pytest.raises(RunError, match="has no models yet"):
        model_in_use(site)
    run_on_sites(make_config(settings("fedavg")), sites, tmp_path / "runs")
    with pytest.raises(RunError, match="has several clients: name one, like 'cleo'"):
        model_in_use(site)
    with pytest.raises(ConfigError, match="unknown client 'cle': did you mean 'cleo'"):
        model_in_use(site, "cle")
    assert model_in_use(sites.workers["ann"].site).is_dir()


def test_a_site_without_classes_to_tell_keeps_no_classifier(tmp_path: Path) -> None:
    sites = three_sites(tmp_path / "sites", write_clients(tmp_path / "all"))
    run_on_sites(make_config(settings("vae")), sites, tmp_path / "runs")
    with pytest.raises(RunError, match="has no models yet"):
        model_in_use(sites.workers["ann"].site)
