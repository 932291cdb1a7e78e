"""Runs on federations and models that a program hands over: named, resumed, read, used."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import toy_federation
from torch import nn

from fedskew import (
    ConfigError,
    Federation,
    compare,
    federation_from,
    load_run,
    make_config,
    predict,
    run,
)
from fedskew.data.fingerprint import fingerprint
from fedskew.data.prepare import as_floats
from fedskew.federate.progress import Progress

TRAIN = {"train": {"rounds": 4, "lr": 0.2}, "model": "logistic"}
RNG = np.random.default_rng(0)
PLACES = RNG.normal(3.0, 5.0, (120, 4))
LABELS = (PLACES[:, 0] > 3.0).astype(int)


def two(name: str = "two", **settings: Any) -> Federation:
    halves = {"ash": (PLACES[:60], LABELS[:60]), "birch": (PLACES[60:], LABELS[60:])}
    return federation_from(halves, name=name, **settings)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def test_the_config_of_a_run_says_that_its_data_were_handed_over(tmp_path: Path) -> None:
    federation = two()
    done = run(TRAIN, out=tmp_path, federation=federation, draw=False)
    recorded = json.loads((done.path / "config.json").read_text())
    assert recorded["data"] == fingerprint(federation)
    assert recorded["config"]["federation"]["dataset"] == "given-in-python"
    assert recorded["config"]["federation"]["options"] == {"name": "two"}
    assert recorded["config"]["federation"]["partition"] == {"name": "owner"}
    assert load_run(done.path).config == done.config


def test_data_decide_a_runs_name_and_what_they_are_called_does_not(tmp_path: Path) -> None:
    first = run(TRAIN, out=tmp_path, federation=two(), draw=False)
    again = run(TRAIN, out=tmp_path, federation=two(), draw=False)
    renamed = run(TRAIN, out=tmp_path, federation=two("pair"), draw=False)
    with pytest.warns(UserWarning, match="the data changed since"):
        other = run(TRAIN, out=tmp_path, federation=two(seed=1), draw=False)
    assert first.path == again.path == renamed.path != other.path


class Stop(Exception):
    pass


def test_a_run_on_handed_over_data_goes_on_where_it_stopped(tmp_path: Path) -> None:
    def stop(progress: Progress, *_: object) -> None:
        if progress.round == 2:
            raise Stop

    whole = run(TRAIN, out=tmp_path / "whole", federation=two(), draw=False)
    with pytest.raises(Stop):
        run(TRAIN, out=tmp_path / "part", federation=two(), draw=False, watch=stop)
    resumed = run(TRAIN, out=tmp_path / "part", federation=two(), draw=False)
    assert resumed.rows() == whole.rows()


def test_settings_that_say_how_to_make_a_federation_are_refused_beside_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"federation.clients says how .* 'two' is made already"):
        run({**TRAIN, "federation": {"clients": 3}}, out=tmp_path, federation=two())
    with pytest.raises(ConfigError, match="must be a fedskew Federation, not dict: make one of"):
        run(TRAIN, out=tmp_path, federation={"ash": 1})  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_a_federation_by_hand_may_be_one_that_its_config_describes(tmp_path: Path) -> None:
    described = {**TRAIN, "federation": {"dataset": "digits"}}
    kept = run(described, out=tmp_path, federation=toy_federation(), draw=False)
    assert kept.config.federation.dataset == "digits"
    told = run(TRAIN, out=tmp_path, federation=toy_federation(), draw=False)
    assert told.config.federation.dataset == "given-in-python"


def test_data_that_were_handed_over_cannot_be_made_from_a_config(tmp_path: Path) -> None:
    done = run(TRAIN, out=tmp_path, federation=two(), draw=False)
    with pytest.raises(ConfigError, match="the data of this run, 'two', were made by a program"):
        run(done.config.model_copy(update={"seed": 5}), out=tmp_path)


@pytest.mark.parametrize("normalise", ["standard", "unit", "client"])
def test_new_samples_are_prepared_as_those_of_the_run(tmp_path: Path, normalise: str) -> None:
    federation = two(normalise=normalise)
    done = run(TRAIN, out=tmp_path, federation=federation, draw=False)
    assert federation.stored is not None
    shift, spread = np.zeros(4), np.ones(4)
    if normalise != "unit":
        rows = np.concatenate([client.train for client in federation.clients])
        shift, spread = PLACES[rows].mean(axis=0), PLACES[rows].std(axis=0)
    x = torch.tensor((PLACES - shift) / spread, dtype=torch.float32)
    with torch.no_grad():
        expected = done.model()(x).argmax(dim=1).numpy()
    found = predict(done.path, PLACES, LABELS, threshold=0.5)
    assert (found.label == expected).all()
    assert found.accuracy is not None


def test_new_pictures_are_prepared_as_those_of_the_run(tmp_path: Path) -> None:
    pixels = RNG.integers(0, 256, (40, 8, 8, 3), dtype=np.uint8)
    held = {"ash": (pixels, ["light", "dark"] * 20)}
    federation = federation_from(held, normalise="signed", image={"side": 4, "channels": 1})
    done = run(TRAIN, out=tmp_path, federation=federation, draw=False)
    floats = as_floats("pixels", pixels, {"side": 4, "channels": 1})
    with torch.no_grad():
        expected = done.model()(torch.from_numpy(floats * 2 - 1)).argmax(dim=1).tolist()
    assert predict(done.path, pixels, threshold=0.5).label.tolist() == expected


def test_a_comparison_is_on_the_federation_that_is_handed_over(tmp_path: Path) -> None:
    federation = two()
    config = {"train": {"rounds": 2}}
    module = net()
    found = compare(
        ["fedavg", "fedrep"], config, out=tmp_path, federation=federation, model=module, seeds=2
    )
    assert {row.method for row in found.leaderboard} == {"fedavg", "fedrep", "local", "central"}
    alone = run(config, out=tmp_path / "runs", federation=federation, model=module, draw=False)
    assert len(list((tmp_path / "runs").glob("*/result.json"))) == 8
    assert alone.config.seed == 0
    assert (alone.path / "preparation.json").is_file()
    with pytest.raises(ConfigError, match="is an object of this process, but jobs and workers are"):
        compare(["fedavg"], config, out=tmp_path, federation=federation, model=module, jobs=2)
    with pytest.raises(ConfigError, match="cannot be left out of a federation that was handed"):
        compare(
            objectives=["irm"], aggregators=["fedavg"], leave_out=1, config=config, out=tmp_path,
            federation=federation, model=module,
        )  # fmt: skip


def test_jobs_share_a_federation_that_is_handed_over(tmp_path: Path) -> None:
    several = compare(["fedavg"], TRAIN, out=tmp_path / "jobs", federation=two(), jobs=2)
    one = compare(["fedavg"], TRAIN, out=tmp_path / "one", federation=two())
    scores = [(row.method, row.score.mean) for row in one.leaderboard]
    assert [(row.method, row.score.mean) for row in several.leaderboard] == scores


def test_training_starts_from_the_weights_of_a_module(tmp_path: Path) -> None:
    module = net()
    still = {"train": {"rounds": 1, "lr": 1e-30}}
    done = run(still, out=tmp_path, federation=two(), model=module, draw=False)
    trained = done.model()
    assert list(trained.state_dict()) == [
        "body.0.weight",
        "body.0.bias",
        "head.weight",
        "head.bias",
    ]
    x = torch.randn(5, 4)
    with torch.no_grad():
        torch.testing.assert_close(trained(x), module(x))
        own = trained.own()  # type: ignore[operator]
        assert own.state_dict().keys() == module.state_dict().keys()
        torch.testing.assert_close(own(x), module(x))


def test_another_process_needs_the_module_again(tmp_path: Path) -> None:
    done = run(TRAIN, out=tmp_path, federation=two(), model=net(), draw=False)
    script = f"""
import numpy as np, fedskew
from torch import nn
x = np.ones((3, 4))
try:
    fedskew.predict({str(done.path)!r}, x, threshold=0.5)
except fedskew.ConfigError as error:
    assert "hand it over again" in str(error), error
module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
print(fedskew.predict(fedskew.load_run({str(done.path)!r}, model=module), x, threshold=0.5).names)
"""
    told = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=True
    )
    assert told.stdout.strip() == str(predict(done, np.ones((3, 4)), threshold=0.5).names)


def test_a_config_with_a_name_takes_a_model_beside_it(tmp_path: Path) -> None:
    config = make_config({"train": {"rounds": 1}, "model": "mlp"})
    done = run(config, out=tmp_path, federation=two(), model="logistic", draw=False)
    assert done.config.model.name == "logistic"
