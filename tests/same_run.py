"""Whether two folders hold the same run."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from fedskew.runs.experiment import Run

TIMED = ("result.json", "checkpoint.json")
"""Files that also tell the time, how many digits it has, or its hash."""
OF_TIME = ("seconds", "timing.jsonl", "sha256")


def untimed(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in OF_TIME}


def assert_same_run(ours: Run, theirs: Run) -> None:
    """To the byte, but for the time; files that only one has are told by name."""

    def files(run: Run) -> dict[str, bytes]:
        paths = [p for p in run.path.rglob("*") if p.is_file() and not p.name.startswith(".")]
        return {str(p.relative_to(run.path)): p.read_bytes() for p in paths}

    one, other = files(ours), files(theirs)
    assert sorted(one) == sorted(other)
    for name in one:
        if name in ("timing.jsonl", *TIMED) or name.endswith((".png", ".npz")):
            continue
        assert one[name] == other[name], name
    for name in TIMED:
        mine, its = (json.loads(found[name], object_hook=untimed) for found in (one, other))
        assert json.dumps(mine, indent=1) == json.dumps(its, indent=1)
    for name in (n for n in one if n.endswith(".npz")):
        with np.load(ours.path / name) as mine, np.load(theirs.path / name) as its:
            for key in its.files:
                np.testing.assert_array_equal(mine[key], its[key])
