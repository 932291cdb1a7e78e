"""A method whose clients all fail on the way does not take the others with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedskew.api import compare
from fedskew.errors import RunStopped, clients_may_fail

QUICK = {
    "model": "logistic",
    "train": {"rounds": 3},
    "federation": {"clients": 3, "partition": "iid", "samples": 300},
}
BREAKS = "fedavg:server_lr=1e37"
"""Round 1 leaves weights so large that no client's loss is finite in round 2."""


def test_a_run_that_stops_is_left_out_with_its_reason(tmp_path: Path) -> None:
    with clients_may_fail():
        found = compare(["fedavg", BREAKS], QUICK, seeds=2, out=tmp_path, tell=print)
    assert {row.method for row in found.leaderboard} == {"fedavg", "local", "central"}
    told = [remark for remark in found.remarks if "stopped and is left out" in remark]
    assert len(told) == 2
    assert "every client failed in round 2" in told[0]
    assert (tmp_path / "leaderboard.md").read_text().count("stopped and is left out") == 2


def test_where_nothing_finishes_the_comparison_stops_too(tmp_path: Path) -> None:
    with clients_may_fail(), pytest.raises(RunStopped, match="no method finished with every seed"):
        compare([BREAKS], QUICK, out=tmp_path, references=False, tell=print)
