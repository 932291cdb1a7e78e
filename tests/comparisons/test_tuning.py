"""Settings are chosen on validation data, by the metric's direction, and test data have no say."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedskew.api import compare
from fedskew.comparisons.runner import Runner
from fedskew.config import make_config
from fedskew.errors import ConfigError
from fedskew.runs.experiment import Run, make_federation
from fedskew.views.comparison import Comparison

QUICK: dict[str, Any] = {
    "model": "logistic",
    "train": {"rounds": 2},
    "federation": {"clients": 3, "samples": 300, "validation": 0.2},
}


@pytest.fixture(scope="module", autouse=True)
def _no_pictures() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedskew.api.draw_run", lambda run, load: run.path)
        patch.setattr("fedskew.views.comparison.draw_comparison", lambda *given: None)
        yield


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    out = tmp_path_factory.mktemp("tuned")
    tune = {"lr": [0.001, 0.3], "mu": [100.0, 0.1]}
    return compare(["fedavg", "fedprox"], QUICK, tune=tune, seeds=2, out=out)


def validation_mean(path: Path) -> float:
    """The mean over clients at the selected round, read off the log."""
    run = Run(path)
    values = [
        row.value
        for row in run.rows()
        if row.round == run.result["selected_round"]
        and (row.model, row.on, row.adapted) == (run.result["primary_model"], "seen", "none")
        and (row.split, row.metric) == ("validation", "accuracy")
    ]
    assert len(values) == 3
    return sum(values) / len(values)


def test_every_method_chooses_the_trial_with_the_best_validation_score(tuned: Comparison) -> None:
    tried = {each.method: len(each.trials) for each in tuned.tuned}
    assert tried == {"fedavg": 2, "fedprox": 4, "local": 2, "central": 2}
    for each in tuned.tuned:
        scores = [validation_mean(trial.run) for trial in each.trials if trial.run is not None]
        assert [trial.score for trial in each.trials] == pytest.approx(scores)
        assert each.chosen == scores.index(max(scores))
    fedprox = tuned.tuned[1]
    assert str(fedprox.setting) == "lr=0.3, mu=0.1"


def test_all_seeds_run_with_what_was_chosen(tuned: Comparison) -> None:
    chosen = {each.method: each.setting for each in tuned.tuned}
    for row in tuned.leaderboard:
        assert len(row.runs) == 2
        for path in row.runs:
            config = Run(path).config
            wanted = {name: value for _, name, value in chosen[row.method].changes}
            assert config.train.lr == wanted["lr"]
            assert config.method.knobs.get("mu") == wanted.get("mu")
    rows = {row.method: row for row in tuned.leaderboard}
    trial = tuned.tuned[0].trials[tuned.tuned[0].chosen or 0]
    assert trial.run == rows["fedavg"].runs[0], "the first seed's run is the trial itself"


def test_trials_are_written_and_shown(tuned: Comparison) -> None:
    lines = list(csv.DictReader((tuned.path / "tuning.csv").open()))
    header = ["method", "trial", "setting", "metric", "validation", "chosen", "run", "why"]
    assert list(lines[0]) == header
    assert len(lines) == 10
    chosen = [line["setting"] for line in lines if line["chosen"] == "True"]
    assert chosen == [str(each.setting) for each in tuned.tuned]
    for text in (str(tuned), tuned.to_markdown(), (tuned.path / "leaderboard.md").read_text()):
        assert "lr=0.3, mu=0.1" in text
        assert "lr=0.3 is the largest value tried, and chosen by fedavg, fedprox" in text
        assert "mu=0.1 is the smallest value tried, and chosen by fedprox" in text
        assert "Not all tried as many settings (fedavg 2, fedprox 4, local 2, central 2)" in text
        assert "Test data had no say." in text


def test_test_labels_that_are_nonsense_change_no_choice(tmp_path: Path) -> None:
    """Every label of a test sample becomes another class; scores change, and nothing else."""
    federation = make_federation(make_config(QUICK))
    y = federation.y.clone()
    for rows in (federation.central_test, *(client.test for client in federation.clients)):
        y[rows] = (federation.y[rows] + 1) % 10
    nonsense = replace(federation, y=y)
    found = [
        compare(
            ["fedavg", "ditto"], QUICK, federation=given, tune=True, trials=3, references=False,
            out=tmp_path / str(place),
        )
        for place, given in enumerate((federation, nonsense))
    ]  # fmt: skip
    told = [
        [(e.method, e.chosen, [(str(t.setting), t.score) for t in e.trials]) for e in each.tuned]
        for each in found
    ]
    assert told[0] == told[1]
    scores = [{row.method: row.score.mean for row in each.leaderboard} for each in found]
    assert scores[0] != scores[1]


def test_less_is_chosen_where_lower_is_better(tmp_path: Path) -> None:
    config = {**QUICK, "evaluate": {"metric": "log_loss"}}
    found = compare(["fedavg"], config, tune={"lr": [0.3, 0.001]}, references=False, out=tmp_path)
    [each] = found.tuned
    scores = [trial.score for trial in each.trials]
    assert not each.higher_is_better
    assert each.metric == "log_loss"
    assert each.chosen == 0
    assert scores[0] < scores[1]


def test_of_equal_scores_the_first_in_order_is_chosen(tmp_path: Path) -> None:
    """One local step of FedProx starts where it is pulled to: no strength changes a thing."""
    config = {**QUICK, "train": {"rounds": 1, "batch_size": 10**4}}
    tune = {"mu": [1.0, 0.1, 0.01]}
    found = compare(["fedprox"], config, tune=tune, references=False, out=tmp_path)
    [each] = found.tuned
    assert len({trial.score for trial in each.trials}) == 1
    assert each.chosen == 0


def test_a_trial_that_diverges_is_no_reason_to_leave_a_method_out(tmp_path: Path) -> None:
    config = {**QUICK, "model": "mlp"}
    found = compare(["fedavg"], config, tune={"lr": [1e30, 0.3]}, references=False, out=tmp_path)
    [each] = found.tuned
    assert str(each.setting) == "lr=0.3"
    assert each.trials[0].stopped
    assert each.trials[0].run is None
    assert [row.method for row in found.leaderboard] == ["fedavg"]
    assert not any("stopped" in remark for remark in found.remarks)
    assert "2, 1 without a score" in str(found)
    none = compare(["fedavg"], config, tune={"lr": [1e30]}, references=False, out=tmp_path)
    assert none.tuned[0].chosen is None
    assert Run(none.leaderboard[0].runs[0]).config.train.lr == make_config(config).train.lr
    assert "fedavg: no trial has a validation score, so it is as configured." in str(none)


def test_tuning_goes_on_where_it_stood_and_looks_the_same_with_several_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(**more: Any) -> Comparison:
        tune = {"lr": [0.1, 0.3, 1e30]}
        config = {**QUICK, "model": "mlp"}
        return compare(["fedavg"], config, tune=tune, references=False, **more)

    class Enough(Exception):
        pass

    whole = Runner.run_wanted

    def stopping(self: Runner, *given: Any, **more: Any) -> Run:
        if self.position == 2:
            raise Enough
        return whole(self, *given, **more)

    with monkeypatch.context() as patch:
        patch.setattr(Runner, "run_wanted", stopping)
        with pytest.raises(Enough):
            run(out=tmp_path / "one")
    done = {path: path.stat().st_mtime_ns for path in (tmp_path / "one").rglob("result.json")}
    assert len(done) == 2
    one = run(out=tmp_path / "one")
    assert {path: path.stat().st_mtime_ns for path in done} == done
    two = run(out=tmp_path / "two", jobs=2)
    assert [t.score for t in one.tuned[0].trials[:2]] == [t.score for t in two.tuned[0].trials[:2]]
    assert one.tuned[0].trials[2].stopped == two.tuned[0].trials[2].stopped != ""
    assert one.leaderboard[0].score == two.leaderboard[0].score


def test_without_validation_data_there_is_nothing_to_choose_by(tmp_path: Path) -> None:
    config = {**QUICK, "federation": {"clients": 3, "validation": 0.0}}
    with pytest.raises(ConfigError, match="tuning needs validation data"):
        compare(["fedavg"], config, tune={"lr": [0.1, 1.0]}, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_settings_that_cannot_work_are_refused_before_the_first_trial(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"scaffold cannot run: .* 'sgd', not 'adam'"):
        compare(["scaffold"], QUICK, tune={"optimiser": ["sgd", "adam"]}, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_pairs_of_objectives_and_aggregators_are_tuned_too(tmp_path: Path) -> None:
    config = {**QUICK, "train": {"rounds": 1, "batch_size": 8}}
    found = compare(
        (), config, objectives="irm", aggregators="fedavg", tune={"lam": [1.0, 10.0]},
        references=False, out=tmp_path,
    )  # fmt: skip
    [each] = found.tuned
    assert each.method == "irm × fedavg"
    assert len(each.trials) == 2
    [row] = found.leaderboard
    chosen = {name: value for _, name, value in each.setting.changes}
    assert Run(row.runs[0]).config.method.knobs["lam"] == chosen["lam"]
    assert found.matrix is not None
