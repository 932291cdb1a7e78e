"""One bit of one file flipped: an error that names the file, or the result as if it were whole.

FEDSKEW_FUZZ=long flips many bits of every file, the short form one bit of each.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import toy_federation

import fedskew
from fedskew.errors import RunError
from fedskew.federate.own_models import own_models
from fedskew.federate.predictions import load_predictions
from fedskew.runs.folder import RunFolder
from fedskew.runs.results import _recorded

FLIPS = 40 if os.environ.get("FEDSKEW_FUZZ") == "long" else 1
METHODS: dict[str, Any] = {
    "private state": {"method": "fedrep"},
    "stages": {"method": {"name": "feddisk", "density_rounds": 2, "local_epochs": 1}},
    "matrices": {"method": "fedshibu"},
    "variates": {"method": "scaffold"},
}
STOPPED_AFTER = 2


class Killed(Exception):
    """What stops a run on its way."""


def settings(name: str) -> dict[str, Any]:
    return {
        "model": {"name": "mlp", "hidden": [4]},
        "train": {"rounds": 4, "batch_size": 8, "clients_per_round": 3},
        "federation": {"validation": 0.2},
        **METHODS[name],
    }


def run(name: str, out: Path, watch: Any = None) -> fedskew.Run:
    return fedskew.run(
        settings(name), out=out, federation=toy_federation(), watch=watch, draw=False
    )


def stop(progress: Any, *_: object) -> None:
    if progress.stage == "main" and progress.round == STOPPED_AFTER:
        raise Killed


def files_in(folder: Path) -> list[Path]:
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return [path.relative_to(folder) for path in found if path.name != ".lock"]


def results(path: Path) -> dict[str, bytes]:
    """All numbers and models of a run, as they are on disk."""
    names = ["metrics.jsonl", "rounds.jsonl"]
    found = [*(path / name for name in names), *(path / "models").rglob("*.safetensors")]
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in found}


def told(path: Path) -> list[str]:
    """All that a finished run can be asked for."""
    _recorded.cache_clear()
    opened = fedskew.load_run(path)
    models: list[Path] = []
    for at in ("selected", "last"):
        folder = path / "models" / at
        shared: list[str | None] = [None] if (folder / "global.safetensors").exists() else []
        models += [
            opened.results.model_file(at, client) for client in (*shared, *own_models(folder))
        ]
    answers = load_predictions(path)
    return [
        repr(opened.config),
        repr(opened.result),
        repr(opened.rows()),
        repr(opened.results.records),
        repr(opened.results.seconds),
        *(model.read_bytes().hex() for model in models),
        *(repr(np.asarray(array).tolist()) for array in answers.values()),
        repr(RunFolder(path).selected("main")),
    ]


def flip(path: Path, dice: random.Random) -> None:
    content = bytearray(path.read_bytes())
    bit = dice.randrange(8 * len(content))
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def assert_harmless(whole: Path, tmp_path: Path, ask: Callable[[Path], object], seed: str) -> None:
    """Ask of copies of a folder in which one file has one bit that is not as it was written."""
    expected, named, harmless = None, 0, 0
    for file in files_in(whole):
        dice = random.Random(f"{seed} {file}")
        for number in range(FLIPS):
            copy = tmp_path / f"{number}" / whole.name
            shutil.rmtree(copy.parent, ignore_errors=True)
            shutil.copytree(whole, copy)
            if expected is None:
                expected = ask(copy)
                shutil.rmtree(copy.parent)
                shutil.copytree(whole, copy)
            flip(copy / file, dice)
            try:
                assert ask(copy) == expected, f"{file} was damaged and used"
                harmless += 1
            except RunError as error:
                assert str(file) in str(error)  # noqa: PT017
                named += 1
            shutil.rmtree(copy.parent)
    print(f"{seed}: {named + harmless} bits flipped, {named} named, {harmless} harmless")
    assert named


@pytest.mark.parametrize("name", METHODS)
def test_an_unfinished_run_never_goes_on_from_a_damaged_file(name: str, tmp_path: Path) -> None:
    with pytest.raises(Killed):
        run(name, tmp_path / "stopped", stop)
    (stopped,) = (tmp_path / "stopped").iterdir()
    assert {"config.json", "checkpoint.json", "metrics.jsonl"} <= {
        f.name for f in files_in(stopped)
    }

    def go_on(copy: Path) -> dict[str, bytes]:
        _recorded.cache_clear()
        return results(run(name, copy.parent).path)

    assert_harmless(stopped, tmp_path, go_on, name)


@pytest.mark.parametrize("name", METHODS)
def test_a_finished_run_never_tells_what_a_damaged_file_says(name: str, tmp_path: Path) -> None:
    done = run(name, tmp_path / "whole")
    assert_harmless(done.path, tmp_path, told, name)
