"""Lines of outcomes: what is written is what is read, and a page made of lines is the same page."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from recorder import Recorder
from toy_claims import TOY

from fedskew.errors import DataError, RunError
from fedskew.papers.grid import cells
from fedskew.papers.ledger import Ledger, settings_hash
from fedskew.papers.suite import Reproduced, find_suite, reproduce


@dataclass(frozen=True)
class Whole:
    """The toy suite, run once with a file of outcomes."""

    suite: Path
    out: Path
    outcomes: Path
    done: Reproduced


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    folder = tmp_path_factory.mktemp("whole")
    (folder / "toy.toml").write_text(TOY)
    outcomes = folder / "kept" / "toy.jsonl"
    done = reproduce(str(folder / "toy.toml"), out=folder / "out", outcomes=outcomes)
    return Whole(folder / "toy.toml", folder / "out", outcomes, done)


def numbers(page: str) -> str:
    """A page but for how it was made and the models' own pictures."""
    return page.partition("## Made with")[0]


def test_every_finished_run_has_one_line(whole: Whole) -> None:
    lines = [json.loads(text) for text in whole.outcomes.read_text().splitlines()]
    found = [(line["setting"], line["arm"], line["seed"], line["rounds"]) for line in lines]
    assert sorted(found) == sorted(
        ("skewed", arm, seed, 3 if arm == "prox" else 2)
        for arm in ("avg", "prox", "slow")
        for seed in (0, 1)
    )
    assert {(line["suite"], line["scale"]) for line in lines} == {("toy", "smoke")}
    assert all(line["seconds"] > 0 for line in lines)
    assert all(line["outcome"]["summary"]["made_on"][0]["instructions"] for line in lines)


def test_finished_runs_get_no_second_line(whole: Whole) -> None:
    before = whole.outcomes.read_bytes()
    reproduce(str(whole.suite), out=whole.out, outcomes=whole.outcomes)
    assert whole.outcomes.read_bytes() == before


def test_a_page_made_of_lines_is_the_one_made_of_folders(whole: Whole, tmp_path: Path) -> None:
    seen = Recorder()
    done = reproduce(str(whole.suite), out=tmp_path, outcomes=whole.outcomes, watch=seen)
    assert seen.runs == []
    assert not (tmp_path / "runs").exists()
    page, first = done.page.read_text(), whole.done.page.read_text()
    assert numbers(page) == numbers(first)
    assert "| of these known by their lines alone | 6 |" in page
    assert [v.text for v in done.verdicts] == [v.text for v in whole.done.verdicts]
    for path in (whole.out / "figures" / "toy-smoke").glob("*.csv"):
        assert (tmp_path / "figures" / "toy-smoke" / path.name).read_text() == path.read_text()


def test_finished_folders_get_their_lines_later(whole: Whole, tmp_path: Path) -> None:
    again = tmp_path / "again.jsonl"
    seen = Recorder()
    reproduce(str(whole.suite), out=whole.out, outcomes=again, watch=seen)
    assert {run.repeated for run in seen.runs} == {True}
    assert sorted(again.read_text().splitlines()) == sorted(whole.outcomes.read_text().splitlines())


@pytest.mark.parametrize(
    ("old", "new", "runs"),
    # Two runs of an arm that has a rate, or rounds, of its own are what they were.
    [
        ("lr = 0.1", "lr = 0.2", 4),
        ("rounds = 2", "rounds = 1", 4),
        ("clients = 4", "clients = 5", 6),
    ],
)
def test_a_line_of_other_settings_is_no_line(
    old: str, new: str, runs: int, whole: Whole, tmp_path: Path
) -> None:
    (tmp_path / "toy.toml").write_text(TOY.replace(old, new, 1))
    outcomes = tmp_path / "toy.jsonl"
    outcomes.write_bytes(whole.outcomes.read_bytes())
    seen = Recorder()
    reproduce(str(tmp_path / "toy.toml"), out=tmp_path, outcomes=outcomes, watch=seen)
    assert len(seen.runs) == runs
    assert len(outcomes.read_text().splitlines()) == 6 + runs


def test_where_the_data_are_not_lines_are_known_by_their_settings(
    tmp_path: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = TOY.replace("clients = 4", 'dataset = "mnist"\nsamples = 200\nclients = 4')
    (tmp_path / "toy.toml").write_text(text)
    suite, outcomes = str(tmp_path / "toy.toml"), tmp_path / "toy.jsonl"
    first = reproduce(suite, out=tmp_path / "a", data_dir=data_dir, outcomes=outcomes)
    monkeypatch.delenv("FEDSKEW_DATA")
    monkeypatch.chdir(tmp_path)
    done = reproduce(suite, out=tmp_path / "b", outcomes=outcomes)
    assert numbers(done.page.read_text()) == numbers(first.page.read_text())
    outcomes.write_text("".join(outcomes.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(DataError, match="mnist"):
        reproduce(suite, out=tmp_path / "c", outcomes=outcomes)


def test_a_line_comes_back_as_it_was_written(whole: Whole, tmp_path: Path) -> None:
    line = Ledger.read(whole.outcomes).lines[0]
    odd = line.outcome.model_copy(
        update={"aurc": math.nan, "in_domain": {1: math.inf, 2: 0.1 + 0.2}}
    )
    Ledger(tmp_path / "a.jsonl").add(line.model_copy(update={"outcome": odd}))
    (found,) = Ledger.read(tmp_path / "a.jsonl").lines
    assert math.isnan(found.outcome.aurc)
    assert found.outcome.in_domain == {1: math.inf, 2: 0.1 + 0.2}
    assert found.outcome.curves == line.outcome.curves
    assert found.outcome.scores == line.outcome.scores


def test_a_line_is_known_by_identity_and_rounds(whole: Whole) -> None:
    ledger = Ledger.read(whole.outcomes)
    line = ledger.lines[0]
    assert ledger.of_run(line.identity, line.rounds) == line
    assert ledger.of_run(line.identity, line.rounds + 1) is None
    assert ledger.of_run("0" * 64, line.rounds) is None


def test_settings_are_hashed_without_rounds_and_data(whole: Whole) -> None:
    avg, prox, *_ = (cell.config for cell in cells(find_suite(str(whole.suite)), "smoke"))
    longer = avg.model_copy(update={"train": avg.train.model_copy(update={"rounds": 9})})
    assert settings_hash(longer) == settings_hash(avg) != settings_hash(prox)


@pytest.mark.parametrize("damage", ["{", "[]", '{"suite": "toy"}'])
def test_a_damaged_line_is_named(damage: str, whole: Whole, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f"{whole.outcomes.read_text().splitlines()[0]}\n{damage}\n")
    with pytest.raises(RunError, match=f"^line 2 of {re.escape(str(path))} is no outcome of a run"):
        Ledger.read(path)
