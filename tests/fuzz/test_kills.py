"""Commands killed at random moments end, repeated, with the files of those that were never killed.

FEDSKEW_FUZZ=long kills 200 times, the short form ten times; ``killing`` does it.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

LONG = os.environ.get("FEDSKEW_FUZZ") == "long"
SMALL = ["--set", "model={name='mlp',hidden=[8]}", "--set", "federation.samples=300"]
DENSITY = "density_rounds=2,local_epochs=2"


def run(method: str, rounds: int, *more: str) -> list[str]:
    settings = [f"method={method}", f"train.rounds={rounds}", *more]
    return ["run", "digits", *SMALL, *(part for each in settings for part in ("--set", each))]


PATIENT = ("train.clients_per_round=6", "train.patience=5", "evaluate.fine_tune_epochs=1")
SHARED_STAGE = [f"feddisk:{DENSITY}", f"feddisk:{DENSITY},clip=5"]
SCENARIOS: dict[str, tuple[int, list[list[str]]]] = {
    "a run": (40, [run("scaffold", 12, *PATIENT)]),
    "a run with private state": (40, [run("fedrep", 8, "train.clients_per_round=6")]),
    "a run of several stages": (
        40,
        [run("{name='feddisk',density_rounds=3,local_epochs=2}", 4)],
    ),
    "a run that grows": (30, [run("fedshibu", rounds) for rounds in (2, 4, 7)]),
    "runs compared, of which one takes a stage over from another": (
        30,
        [
            [
                "compare",
                *SHARED_STAGE,
                "fedrep",
                "--no-references",
                *SMALL,
                "--set",
                "train.rounds=3",
            ]
        ],
    ),
    "a suite": (20, [["reproduce", "feddisk"]]),
}
"""How often each is killed in the long form, and its commands; the short form leaves out the suite
and kills each of the others twice."""
CLOCK = ("second", "sha256", "timing.jsonl")
OF_PLACE = ("run", "folder")


def untimed(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if not key.startswith(CLOCK)}


def content(path: Path) -> object:
    """What a file says, but for what a clock or the folder's place says."""
    if path.suffix == ".json":
        return json.loads(path.read_text(), object_hook=untimed)
    if path.name == "timing.jsonl":
        return [untimed(json.loads(line)) for line in path.read_text().splitlines()]
    if path.name in ("leaderboard.csv", "leaderboard.md"):
        separator = "," if path.suffix == ".csv" else "|"
        lines = list(csv.reader(path.read_text().splitlines(), delimiter=separator))
        head = next(line for line in lines if len(line) > 1)
        kept = [i for i, name in enumerate(head) if not any(w in name for w in (*CLOCK, *OF_PLACE))]
        return [[cell for i, cell in enumerate(line) if i in kept] for line in lines]
    if path.name.endswith("-smoke.md"):
        timed = ("| training and scoring", "| this command")
        return [line for line in path.read_text().splitlines() if not line.startswith(timed)]
    return path.read_bytes()


def contents(folder: Path) -> dict[str, object]:
    """Every file, those that nobody should have left behind included."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): content(path) for path in files}


@pytest.mark.parametrize("name", [name for name in SCENARIOS if LONG or name != "a suite"])
def test_killed_at_random_moments_it_ends_with_the_same_files(name: str, tmp_path: Path) -> None:
    often, commands = SCENARIOS[name]
    killing = Path(__file__).with_name("killing.py")
    wanted = often if LONG else 2
    done = subprocess.run(
        [sys.executable, str(killing), name, str(wanted), str(tmp_path), json.dumps(commands)],
        env={key: value for key, value in os.environ.items() if key != "FEDSKEW_DATA"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    print(f"{name}: {told['kills']} kills until {told['chains']} were done: {told['moments']}")
    assert told["kills"] >= wanted
    whole = contents(tmp_path / "whole")
    for number in range(1, told["chains"] + 1):
        killed = contents(tmp_path / f"killed-{number}")
        assert killed.keys() == whole.keys()
        assert [file for file in whole if killed[file] != whole[file]] == []
