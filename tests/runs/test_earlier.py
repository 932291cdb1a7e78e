"""Run folders and what they were made of: when a run is reused, begun anew, or refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedskew
from fedskew.cli import main
from fedskew.data.datasets import load
from fedskew.data.fingerprint import fingerprint
from fedskew.deploy.preparation import preparation_of
from fedskew.runs import identity as identity_module
from fedskew.runs.experiment import make_federation
from fedskew.runs.identity import resolve
from fedskew.store import read_sealed, write_sealed

QUICK: dict[str, Any] = {"model": "logistic", "train": {"rounds": 1}}


@pytest.fixture
def finished(tmp_path: Path) -> fedskew.Run:
    return fedskew.run(QUICK, out=tmp_path / "runs", draw=False)


def recorded(run: fedskew.Run) -> dict[str, Any]:
    return read_sealed(run.path / "config.json")


def without_inputs(run: fedskew.Run) -> None:
    """Earlier versions left it to the data to tell how samples are prepared."""
    result = read_sealed(run.path / "result.json")
    for name in ("preparation.json", "profile.json"):
        (run.path / name).unlink()
        del result["hashes"][name]
    write_sealed(run.path / "result.json", result)


def as_old(run: fedskew.Run) -> fedskew.Run:
    """The folder as it was before run folders had a format version."""
    from fedskew.data.fingerprint import sampled_fingerprint

    known = recorded(run)
    data = sampled_fingerprint(make_federation(run.config, version=0))
    config = known["config"]
    del config["federation"]["environments"]
    config["model"] = {"name": config["model"]["name"]}
    config["federation"]["partition"] = {"name": "dirichlet", "alpha": 0.3}
    (run.path / "config.json").write_text(json.dumps({"config": config, "data": data}))
    without_inputs(run)
    return fedskew.Run(run.path.rename(run.path.parent / "fedavg-0123456789ab"))


def test_a_run_folder_says_what_decided_its_numbers(finished: fedskew.Run) -> None:
    known = recorded(finished)
    assert known.keys() == {"format", "fedskew", "identity", "config", "code", "data"}
    assert known["format"] == identity_module.FORMAT
    assert known["fedskew"] == fedskew.__version__
    assert known["data"] == fingerprint(make_federation(finished.config))
    assert known["config"] == finished.config.resolved()
    assert finished.path.name == f"fedavg-{known['identity'][:12]}"
    assert resolve(finished.config) == finished.config


def test_folders_of_the_old_format_open_and_predict(
    finished: fedskew.Run, capsys: pytest.CaptureFixture[str]
) -> None:
    scores = finished.result["scores"]
    old = as_old(finished)
    assert fedskew.load_run(old.path).result["scores"] == scores
    assert main(["show", str(old.path)]) == 0
    x = np.zeros((3, 1, 8, 8), np.float32)
    assert len(fedskew.predict(old.path, x).probability) == 3
    adapted = fedskew.adapt(old.path, x, [0, 1, 2])
    assert adapted.about["run"] == old.path.name


def test_folders_of_the_first_version_take_samples_scaled_by_all_digits(
    finished: fedskew.Run,
) -> None:
    """The mean of all 1,797 digits is .30526; their version counted every row."""
    known = recorded(finished)
    data = fingerprint(make_federation(finished.config, version=1))
    (finished.path / "config.json").write_text(json.dumps({**known, "format": 1, "data": data}))
    without_inputs(finished)
    first = fedskew.Run(finished.path)
    digits = load("digits", normalise="unit").x.double()
    preparation = preparation_of(first)
    assert preparation.shift == pytest.approx([float(digits.mean())], rel=1e-6)
    assert preparation.spread == pytest.approx([float(digits.std(correction=0))], rel=1e-6)


@pytest.mark.parametrize(
    ("section", "data"),
    [
        ({}, "258916fc533f584995a1"),
        ({"unseen": 2, "samples": 400, "skew": ["rotation"]}, "12f5110e85e3fe25b7e3"),
        ({"image": {"side": 12, "channels": 3}}, "60c4a3648ca783503786"),
    ],
)
def test_federations_of_the_first_version_are_made_to_the_bit(
    section: dict[str, Any], data: str
) -> None:
    """The hashes were recorded with the code of that version."""
    config = fedskew.make_config({"federation": section})
    assert fingerprint(make_federation(config, version=1))[:20] == data
    assert fingerprint(make_federation(config))[:20] != data


def test_old_folders_are_held_to_the_data_they_were_made_with(finished: fedskew.Run) -> None:
    old = as_old(finished)
    known = json.loads((old.path / "config.json").read_text())
    (old.path / "config.json").write_text(json.dumps({**known, "data": "0" * 16}))
    with pytest.raises(fedskew.RunError, match="made with other data"):
        fedskew.predict(old.path, np.zeros((1, 1, 8, 8), np.float32))


def test_a_finished_run_of_the_old_format_is_not_reused(finished: fedskew.Run) -> None:
    old = as_old(finished)
    with pytest.warns(UserWarning, match=f"since {old.path.name}; running again"):
        again = fedskew.run(QUICK, out=old.path.parent, draw=False)
    assert again.path != old.path


def test_an_unfinished_run_of_the_old_format_is_refused(
    finished: fedskew.Run, capsys: pytest.CaptureFixture[str]
) -> None:
    old = as_old(finished)
    (old.path / "result.json").unlink()
    config = old.path.parent.parent / "quick.toml"
    config.write_text('model = "logistic"\n[train]\nrounds = 1\n')
    before = sorted(path.name for path in old.path.parent.iterdir())
    assert main(["run", str(config), "--out", str(old.path.parent)]) == 2
    (sentence,) = capsys.readouterr().err.splitlines()
    assert "unfinished run of an older format" in sentence
    assert main(["show", str(old.path)]) == 0
    assert "of an older format and cannot be resumed" in capsys.readouterr().out
    assert str(old.path) in sentence
    assert sorted(path.name for path in old.path.parent.iterdir()) == before
    # Another run is none of its business.
    fedskew.run({**QUICK, "seed": 1}, out=old.path.parent, draw=False)


def test_another_run_under_a_runs_name_is_refused(finished: fedskew.Run) -> None:
    known = recorded(finished)
    (finished.path / "config.json").write_text(json.dumps({**known, "identity": "0" * 64}))
    with pytest.raises(fedskew.RunError, match="another run than its name says"):
        fedskew.run(QUICK, out=finished.path.parent, draw=False)


def test_a_run_that_is_new_begins_without_a_word(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    for seed in (0, 1):
        fedskew.run({**QUICK, "seed": seed}, out=tmp_path, draw=False)
    assert not [warning for warning in recwarn if warning.category is UserWarning]


def write_csv(path: Path, last: str = "0.5") -> None:
    rng = np.random.default_rng(0)
    rows = [f"{a:.4f},{b:.4f},{i % 2}" for i, (a, b) in enumerate(rng.normal(size=(80, 2)))]
    rows[-1] = f"0.1,{last},1"
    path.write_text("\n".join(["first,second,label", *rows]) + "\n")


def test_a_finished_run_is_not_reused_when_one_number_of_the_data_changes(tmp_path: Path) -> None:
    data, out = tmp_path / "own.csv", tmp_path / "runs"
    write_csv(data)
    settings = {
        **QUICK,
        "federation": {"dataset": str(data), "partition": "iid", "clients": 2, "test": 0.5},
    }
    first = fedskew.run(settings, out=out, draw=False)
    assert fedskew.run(settings, out=out, draw=False) == first
    write_csv(data, last="0.5001")
    with pytest.warns(UserWarning, match=rf"^the data changed since {first.path.name}; running"):
        second = fedskew.run(settings, out=out, draw=False)
    assert second.path != first.path
    write_csv(data)
    assert fedskew.run(settings, out=out, draw=False) == first
