"""One object over a run folder: the numbers are the files', and each file is read once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import toy_federation
from made_up import results_of

from fedskew.api import run
from fedskew.errors import RunError
from fedskew.federate.metrics import Row
from fedskew.runs import results as module
from fedskew.runs.experiment import Run, load_run
from fedskew.runs.results import CONFIG, METRICS, RESULT, ROUNDS, TIMING, Results, _recorded
from fedskew.store import read_sealed

SETTINGS: dict[str, Any] = {
    "model": "logistic", "train": {"rounds": 3, "batch_size": 8},
    "federation": {"validation": 0.2}, "evaluate": {"fine_tune_epochs": 1},
}  # fmt: skip


def lines(path: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / name).read_text().splitlines()]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    out = tmp_path_factory.mktemp("results")
    return run(SETTINGS, out=out, federation=toy_federation(), draw=False)


class Killed(Exception):
    """What stops a run on its way."""


def stopped_after(rounds: int, out: Path) -> Path:
    def watch(progress: Any, *_: object) -> None:
        if progress.round == rounds:
            raise Killed

    with pytest.raises(Killed):
        run(SETTINGS, out=out, federation=toy_federation(), draw=False, watch=watch)
    (path,) = out.iterdir()
    return path


def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each file is read from now on."""
    times: Counter[str] = Counter()

    def counting(read: Callable[..., Any]) -> Callable[..., Any]:
        def counts(path: Path, *arguments: Any) -> Any:
            times[path.name] += 1
            return read(path, *arguments)

        return counts

    for name in ("read_rows", "read_lines", "read_sealed"):
        monkeypatch.setattr(module, name, counting(getattr(module, name)))
    return times


def test_the_numbers_are_those_of_the_files(finished: Run) -> None:
    found = finished.results
    assert [row.as_dict() for row in found.rows.rows()] == lines(finished.path, METRICS)
    assert [{**vars(record), "notes": list(record.notes)} for record in found.records] == lines(
        finished.path, ROUNDS
    )
    seconds = [line["seconds"] for line in lines(finished.path, TIMING)]
    assert found.seconds == pytest.approx(sum(seconds))
    assert found.summary == read_sealed(finished.path / RESULT)
    assert found.settings == read_sealed(finished.path / CONFIG)
    assert found.config.resolved() == found.settings["config"]
    assert finished.rows() == found.rows.rows()


def test_the_curves_are_the_means_that_the_summary_tells(finished: Run) -> None:
    result = finished.result
    told = {
        (s["on"], s["split"]): s["mean"]
        for s in result["scores"]
        if (s["at"], s["model"], s["metric"], s["adapted"])
        == ("last", "global", "accuracy", "none")
    }
    assert told.keys() >= {("seen", "test"), ("seen", "validation")}
    trained = finished.results.as_trained.where(model="global", metric="accuracy")
    for (on, split), mean in told.items():
        curve = trained.where(on=on, split=split).curve(np.mean)
        assert list(curve) == [1, 2, 3]
        assert curve[3] == mean


def test_as_trained_are_the_rows_of_the_main_stage_without_adaptation() -> None:
    row = Row("main", 1, "global", "seen", "ann", "none", "test", "accuracy", 0.4, 5)
    noise = [replace(row, stage="density"), replace(row, adapted="fine-tuned 1")]
    other = replace(row, split="validation", value=0.9)
    assert results_of([row, *noise, other]).as_trained.rows() == [row, other]


def test_every_file_is_read_once_when_it_is_first_asked_for(
    finished: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = load_run(finished.path)
    _recorded.cache_clear()
    times = counted(monkeypatch)
    assert not times
    for _ in range(3):
        assert opened.result["rounds"] == 3
        assert opened.config.seed == opened.results.config.seed
    assert times == {RESULT: 1, CONFIG: 1}
    for _ in range(3):
        assert len(opened.results.records) == 3
        assert opened.results.seconds > 0
        assert len(opened.rows()) == len(opened.results.rows)
    assert times == dict.fromkeys((RESULT, CONFIG, METRICS, ROUNDS, TIMING), 1)


def test_a_run_that_has_just_ended_need_not_be_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = counted(monkeypatch)
    done = run(SETTINGS, out=tmp_path, federation=toy_federation(), draw=False)
    assert times == {METRICS: 1, ROUNDS: 1, TIMING: 1}
    assert {row.adapted for row in done.rows()} == {"none", "fine-tuned 1"}
    assert done.results.seconds == done.result["seconds"]
    assert times == {METRICS: 1, ROUNDS: 1, TIMING: 1, RESULT: 1}


def test_of_a_run_on_its_way_the_complete_rounds_count_and_nothing_half_written(
    tmp_path: Path,
) -> None:
    path = stopped_after(2, tmp_path)
    whole = load_run(path).rows()
    assert {row.round for row in whole} == {1, 2}
    for name in (METRICS, ROUNDS, TIMING):
        line = (path / name).read_bytes().splitlines(keepends=True)[-1]
        with open(path / name, "ab") as file:
            file.write(line.replace(b'"round": 2', b'"round": 3') + line[:20])
    found = load_run(path).results
    assert found.rows.rows() == whole
    assert [record.round for record in found.records] == [1, 2]
    assert found.seconds < 1000
    with pytest.raises(RunError, match="is not a finished run; repeat its command"):
        found.summary  # noqa: B018


def test_a_run_that_was_opened_on_its_way_tells_the_latest_numbers(tmp_path: Path) -> None:
    path = stopped_after(1, tmp_path)
    opened = load_run(path)
    assert [record.round for record in opened.results.records] == [1]
    with pytest.raises(RunError, match="not a finished run"):
        _ = opened.result
    done = run(SETTINGS, out=tmp_path, federation=toy_federation(), draw=False)
    assert [record.round for record in opened.results.records] == [1, 2, 3]
    assert opened.rows() == done.rows()
    assert opened.result == done.result


def test_a_run_whose_summary_was_written_anew_is_read_anew(tmp_path: Path) -> None:
    done = run(SETTINGS, out=tmp_path, federation=toy_federation(), draw=False)
    assert done.result["rounds"] == 3
    changed = {**done.result, "rounds": 4}
    (done.path / RESULT).write_text(json.dumps(changed))
    assert done.result["rounds"] == 4


def test_a_folder_in_which_no_round_is_complete_has_no_numbers(tmp_path: Path) -> None:
    (tmp_path / METRICS).write_text('{"stage": "main"')
    found = Results(tmp_path)
    assert (len(found.rows), found.records, found.seconds) == (0, (), 0.0)


def test_a_finished_run_with_a_damaged_line_says_which(tmp_path: Path) -> None:
    done = run(SETTINGS, out=tmp_path, federation=toy_federation(), draw=False)
    for name, ask in (
        (METRICS, lambda found: found.rows),
        (ROUNDS, lambda found: found.records),
        (TIMING, lambda found: found.seconds),
    ):
        first, _, *others = (done.path / name).read_bytes().splitlines(keepends=True)
        (done.path / name).write_bytes(first + b"{\n" + b"".join(others))
        with pytest.raises(RunError, match=rf"^line 2 of .*{name} is damaged"):
            ask(load_run(done.path).results)


def test_the_rows_of_all_stages_can_be_told_apart(tmp_path: Path) -> None:
    settings = {
        **SETTINGS, "model": "mlp", "method": {"name": "feddisk", "density_rounds": 2},
        "evaluate": {},
    }  # fmt: skip
    done = run(settings, out=tmp_path, federation=toy_federation(), draw=False)
    found = done.results
    stages = list(dict.fromkeys(record.stage for record in found.records))
    assert stages[-1] == "main"
    assert len(stages) > 1
    assert set(found.rows.names("stage")) <= set(stages)
    counts = Counter(line["stage"] for line in lines(done.path, METRICS))
    assert {s: len(found.rows.where(stage=s)) for s in stages} == {s: counts[s] for s in stages}
    assert set(found.as_trained.names("stage")) == {"main"}
