"""Files that are whole or absent, sealed, and swept up after whoever was killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedskew.errors import RunError
from fedskew.store import read_arrays, read_sealed, save_arrays, sweep, write_json, write_sealed


def ended_process() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_what_killed_processes_left_is_swept_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    left = [f".a.json.{ended_process()}.part", f"deep/.b.csv.{os.getpid()}.part"]
    kept = [f".a.json.{os.getppid()}.part", ".lock", "a.json.1.part", ".of.nobody.part", "a.json"]
    for name in (*left, *kept):
        (tmp_path / name).touch()
    sweep(tmp_path)
    found = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")}
    assert found == {"deep", *kept}


def test_a_sweep_of_one_folder_leaves_those_inside_it_alone(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    name = f".a.{os.getpid()}.part"
    (tmp_path / name).touch()
    (tmp_path / "deep" / name).touch()
    sweep(tmp_path, "")
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.part")] == [
        f"deep/{name}"
    ]


@pytest.mark.parametrize(
    ("written", "edited"),
    [('"lr": 0.5', '"lr": 0.25'), ('"sealed"', '"seamed"'), ('"sha256":', '"sha257":'),
     ('"name": "ann"', '"name": "Ann"'), ('"sha256"', '"md5"')],
)  # fmt: skip
def test_a_sealed_file_that_was_edited_is_refused_by_name(
    tmp_path: Path, written: str, edited: str
) -> None:
    path = tmp_path / "config.json"
    write_sealed(path, {"lr": 0.5, "name": "ann"})
    assert read_sealed(path) == {"lr": 0.5, "name": "ann"}
    assert written in path.read_text()
    path.write_text(path.read_text().replace(written, edited))
    with pytest.raises(RunError, match=r"config\.json was edited or damaged since it was written"):
        read_sealed(path)


def test_another_order_of_entries_is_no_edit_and_old_files_have_no_seal(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    write_sealed(path, {"b": 1, "a": [1, 2]})
    path.write_text(json.dumps(dict(reversed(json.loads(path.read_text()).items()))))
    assert read_sealed(path) == {"b": 1, "a": [1, 2]}
    write_json(path, {"b": 2})
    assert read_sealed(path) == {"b": 2}
    path.write_text("[]")
    with pytest.raises(RunError, match="holds list, not an object"):
        read_sealed(path)


def test_arrays_that_were_damaged_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "found.npz"
    save_arrays(path, {"x": np.arange(50)})
    assert read_arrays(path)["x"].tolist() == list(range(50))
    content = bytearray(path.read_bytes())
    content[60] ^= 1
    path.write_bytes(content)
    with pytest.raises(RunError, match=r"could not read .*found\.npz, it is damaged"):
        read_arrays(path)
