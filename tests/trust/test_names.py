"""Clients may be named as people name things; names are checked once and never become paths."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import fedskew
from fedskew import Client, DataError, Federation
from fedskew.federate.own_models import own_models
from fedskew.store import read_sealed, write_json

ODD = ("../../../../pwned", "/tmp/pwned", "ward/a", "..", "a b:c*?", "Jürgen 王", "x" * 200)
SETTINGS = {"method": "ditto", "model": "logistic", "train": {"rounds": 1}}


def federation(*names: str) -> Federation:
    rows = np.arange(6 * len(names))
    clients = tuple(
        Client(name, held[:4], test=held[4:])
        for name, held in zip(names, np.split(rows, len(names)), strict=True)
    )
    x = torch.from_numpy(np.random.default_rng(0).random((len(rows), 3), dtype=np.float32))
    return Federation("toy", x, torch.from_numpy(rows % 2), ("a", "b"), clients)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("", "without a name"),
        (" \t", "without a name"),
        ("a\0b", "holds a control character"),
        ("a\x1fb", "holds a control character"),
        ("a\nb", "holds a control character"),
        ("a\ud800b", "holds half a character"),
        ("a\u2028b", "holds a line break"),
        ("x" * 201, "has 201 characters: use at most 200"),
        ("pooled", "no client can be named 'pooled'"),
        ("central", "no client can be named 'central'"),
        ("ann", "has two clients named 'ann'"),
    ],
)
def test_names_that_would_break_files_or_tables_are_refused(name: str, says: str) -> None:
    with pytest.raises(DataError, match=says):
        federation("ann", name)


def test_any_other_name_works_and_no_file_leaves_the_run_folder(tmp_path: Path) -> None:
    out = tmp_path / "a" / "b" / "c" / "runs"
    done = fedskew.run(SETTINGS, out=out, federation=federation(*ODD), draw=False)
    assert {p.name for p in tmp_path.iterdir()} == {"a"}
    assert [p.name for p in out.iterdir()] == [done.path.name]
    files = own_models(done.path / "models" / "last")
    assert sorted(files) == sorted(ODD)
    assert sorted(p.name for p in files.values()) == [f"{i:06d}.safetensors" for i in range(7)]
    for client in ODD:
        weight = done.model(client).state_dict()["head.weight"]
        assert weight.shape == (2, 3)
    assert len({str(done.model(client).state_dict()) for client in ODD}) == len(ODD)


def test_a_run_with_odd_names_resumes_to_the_same_models(tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    def watch(*_: object) -> None:
        raise Stop

    long = {**SETTINGS, "train": {"rounds": 2}}
    whole = fedskew.run(long, out=tmp_path / "whole", federation=federation(*ODD), draw=False)
    with pytest.raises(Stop):
        fedskew.run(long, out=tmp_path / "cut", federation=federation(*ODD), watch=watch)
    cut = fedskew.run(long, out=tmp_path / "cut", federation=federation(*ODD), draw=False)
    for name, file in own_models(whole.path / "models" / "last").items():
        other = own_models(cut.path / "models" / "last")[name]
        assert file.read_bytes() == other.read_bytes()


def without_hashes(run: Path) -> None:
    """As runs of the first versions are, or those of somebody who edited them too."""
    write_json(run / "result.json", {**read_sealed(run / "result.json"), "hashes": {}})


def test_folders_with_files_named_by_client_still_open(tmp_path: Path) -> None:
    done = fedskew.run(SETTINGS, out=tmp_path, federation=federation("ann", "bob"), draw=False)
    before = done.model("bob").state_dict()
    folder = done.path / "models" / "selected" / "personal"
    for name, number in json.loads((folder / "names.json").read_text()).items():
        (folder / f"{number:06d}.safetensors").rename(folder / f"{name}.safetensors")
    (folder / "names.json").unlink()
    without_hashes(done.path)
    after = fedskew.load_run(done.path).model("bob").state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    with pytest.raises(fedskew.ConfigError, match="did you mean 'ann'"):
        done.model("an")


def test_a_table_of_names_cannot_point_elsewhere(tmp_path: Path) -> None:
    done = fedskew.run(SETTINGS, out=tmp_path, federation=federation("ann", "bob"), draw=False)
    table = done.path / "models" / "selected" / "personal" / "names.json"
    table.write_text(json.dumps({"ann": "../../last/global"}))
    with pytest.raises(fedskew.RunError, match=r"names\.json is damaged"):
        done.model("ann")
    without_hashes(done.path)
    with pytest.raises(fedskew.RunError, match="number of its file"):
        done.model("ann")
