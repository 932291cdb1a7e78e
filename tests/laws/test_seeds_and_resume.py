"""Law 5: the same seed gives the same bits, another seed others, and resuming changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers import (
    ListJournal,
    OpenBackend,
    Run,
    assert_same_bits,
    every_method,
    make_holdings,
    method_holdings,
    model_for,
    run,
    scores_of,
    standard_run,
)

from fedskew.federate.metrics import Row
from fedskew.federate.progress import Progress, RoundRecord
from fedskew.federate.rounds import Rounds
from fedskew.federate.server import federate
from fedskew.methods import find
from fedskew.store import load_groups, save_groups

both_kinds = pytest.mark.parametrize("kind", ["mlp", "batch-norm"])


@every_method
@both_kinds
def test_the_same_seed_gives_the_same_bits(name: str, kind: str) -> None:
    first = standard_run(name, kind)
    again = run(method_holdings(name, kind))
    assert_same_bits(again.everything(), first.everything())
    assert again.journal.rows == first.journal.rows
    assert again.journal.records == first.journal.records


@every_method
def test_another_seed_gives_other_bits(name: str) -> None:
    first, other = standard_run(name), run(method_holdings(name, seed=1))
    ours, theirs = first.everything(), other.everything()
    assert ours.keys() == theirs.keys()
    assert any(not torch.equal(ours[n], theirs[n]) for n in ours)


class Killed(Exception):
    """The process ends here."""


class DiskJournal(ListJournal):
    """Keeps the last committed round in files, and is killed before it can commit another."""

    def __init__(self, folder: Path, killed_in: int | None = None) -> None:
        super().__init__()
        self._folder = folder
        self._killed_in = killed_in

    def resume(self, stage: str) -> Progress | None:
        return self.found

    found: Progress | None = None

    def commit(self, progress: Progress, rows: Sequence[Row], record: RoundRecord) -> None:
        if progress.round == self._killed_in:
            raise Killed
        super().commit(progress, rows, record)
        state = progress.state
        save_groups(self._folder / "state", {"shared": state.shared})
        save_groups(self._folder / "memory", state.memory)
        save_groups(self._folder / "for", state.personal)

    def reopened(self) -> DiskJournal:
        """What a new process finds: tensors from the files, the rest as it was written."""
        after = DiskJournal(self._folder)
        last = self.states[-1]
        state = replace(
            last.state,
            shared=load_groups(self._folder / "state").get("shared", {}),
            memory=load_groups(self._folder / "memory"),
            personal=load_groups(self._folder / "for"),
        )
        after.found = replace(last, state=state)
        return after


@every_method
@both_kinds
def test_a_killed_run_resumes_to_the_bits_of_an_uninterrupted_one(
    name: str, kind: str, tmp_path: Path
) -> None:
    """Killed after round 3 was trained but before it was committed: round 3 is done again."""
    journal = DiskJournal(tmp_path, killed_in=3)
    holdings = method_holdings(name, kind)
    with pytest.raises(Killed):
        federate(holdings.plan, OpenBackend(holdings, tmp_path), Rounds(3), journal)
    assert [record.round for record in journal.records] == [1, 2]

    # A new process compiles its steps anew.
    recipe = find(name).recipe()
    holdings = make_holdings(recipe, module=model_for(recipe, kind))
    resumed = Run(holdings, OpenBackend(holdings, tmp_path), journal.reopened())
    resumed.progress = federate(holdings.plan, resumed.backend, Rounds(3), resumed.journal)

    whole = standard_run(name, kind)
    assert [record.round for record in resumed.journal.records] == [3]
    assert_same_bits(resumed.everything(), whole.everything())
    assert resumed.progress.selected == whole.progress.selected
    last = scores_of(row for row in whole.journal.rows if row.round == 3)
    assert scores_of(resumed.journal.rows) == last
    assert resumed.journal.records[-1] == whole.journal.records[-1]
