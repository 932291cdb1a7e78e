"""A run tells when rounds could not be selected because clients' scores were missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import fedskew
from fedskew.comparisons.selection import chosen, curves_of
from fedskew.data.federation import Federation
from fedskew.federate.backends import Backend
from fedskew.federate.backends.local import LocalBackend
from fedskew.federate.tasks import Answer, Ask
from fedskew.runs.folder import RunFolder

SETTINGS = {
    "federation": {"samples": 300, "clients": 4},
    "model": {"name": "mlp", "hidden": [12]},
    "train": {"rounds": 4, "lr": 1e-6},
}


class Absent(LocalBackend):
    """The first client does not answer when it is asked for scores in rounds 3 and 4."""

    def exchange(self, asks: Sequence[Ask]) -> list[Answer]:
        first = min(member.name for member in self.roster.seen)
        return [
            replace(answer, scored=())
            if ask.client == first and ask.train is None and ask.save is None
            and any(task.round in (3, 4) and task.adapt is None and not task.samples
                    for task in ask.scores)
            else answer
            for ask, answer in zip(asks, super().exchange(asks), strict=True)
        ]  # fmt: skip


def absent(federation: Federation, folder: RunFolder) -> Backend:
    return Absent(federation, folder=folder.checkpoint.folder, results=folder.path)


def test_rounds_in_which_clients_were_missing_are_not_selected_and_the_run_says_so(
    tmp_path: Path,
) -> None:
    """Losses fall from round to round, so the last candidate is selected."""
    whole = fedskew.run(SETTINGS, out=tmp_path / "whole", draw=False)
    assert (whole.result["selected_round"], whole.result["warnings"]) == (4, [])
    done = fedskew.run(SETTINGS, out=tmp_path / "absent", draw=False, backend=absent)
    assert done.result["selected_round"] == chosen("validation", curves_of(done)) == 2
    assert done.result["warnings"] == [
        "in 2 of 4 scored rounds validation scores of some clients are missing: only rounds with "
        "those of 4 clients could be selected."
    ]
    counts = [score.clients for score in curves_of(done).validation.values()]
    assert counts == pytest.approx([4, 4, 3, 3])
