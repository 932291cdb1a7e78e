"""Keeping on real runs: what decides and what does not, what is refused, and what is served."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import Knobs, toy_federation, toy_task

import fedskew
from fedskew.cli import main
from fedskew.config import make_config
from fedskew.data.federation import Client, Federation
from fedskew.data.keeping import with_keeping
from fedskew.diagnosis.candidates import candidates, kept_by, rightness, score_of
from fedskew.errors import ConfigError, FedskewError, RunError
from fedskew.federate.predictions import load_answers, probabilities
from fedskew.problem import CLASSIFICATION, Problem
from fedskew.runs.experiment import Run
from fedskew.sites.study import study_config
from fedskew.views.terminal import run_summary


def clients_of(validation: int = 12, seed: int = 0) -> Federation:
    """Four clients of thirty training, some validation and twenty test rows."""
    federation = toy_federation((30 + validation + 10,) * 4, seed=seed)
    members = [
        Client(c.name, c.train[:30], c.train[30 : 30 + validation], np.concatenate([c.train[-10:],
               c.validation, c.test]))
        for c in federation.clients
    ]  # fmt: skip
    return federation.with_data(clients=tuple(members), unseen=())


SETTINGS: dict[str, Any] = {
    "model": "logistic",
    "train": {"rounds": 4, "lr": 0.3, "batch_size": 8},
    "evaluate": {"keep": "best", "fine_tune_epochs": 2},
}


def made(out: Path, federation: Federation | None = None, **changes: Any) -> Run:
    """A run on the toy clients; ``changes`` replace sections."""
    return fedskew.run(
        {**SETTINGS, **changes}, out=out, federation=federation or clients_of(), draw=False
    )


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that has kept; the one of clients alone stands beside it."""
    return made(tmp_path_factory.mktemp("runs"))


def beside(run: Run) -> Path:
    kept = run.results.kept
    assert kept is not None
    return (run.path / kept.beside).resolve()


def test_the_setting_makes_both_runs_and_says_who_keeps_what(both: Run) -> None:
    kept = both.results.kept
    assert kept is not None
    assert fedskew.load_run(beside(both)).config.method.name == "local"
    assert kept.chosen_by == "keeping"
    assert kept.candidates == [
        "federated", "fine-tuned 2", "alone + federated", "alone + fine-tuned 2",
    ]  # fmt: skip
    assert [(each.client, each.rows, each.test_rows) for each in kept.clients] == [
        (f"c{k}", 8, 20) for k in range(4)
    ]
    lines = run_summary(both)
    assert "kept by 4 clients: " in lines
    assert "decided by 8 validation samples that chose no round" in lines


def test_scores_are_those_of_the_answers_of_both_runs(both: Run) -> None:
    """Each number again from predictions.npz, by another way."""
    kept = both.results.kept
    assert kept is not None
    mine, alone = load_answers(both.path), load_answers(beside(both))
    for each in kept.clients:
        said = []
        for found, adapted in ((mine, "none"), (mine, "fine-tuned 2"), (alone, "none")):
            rows = (found["client"] == each.client) & (found["split"] == "test")
            rows &= found["adapted"] == adapted
            told = probabilities(found)
            assert told is not None
            said.append(told[rows])
            label = found["label"][rows]
        federated, tuned, own = said
        ways = {
            "alone": own, "federated": federated, "fine-tuned 2": tuned,
            "alone + federated": (own + federated) / 2, "alone + fine-tuned 2": (own + tuned) / 2,
        }  # fmt: skip
        right = {name: float((way.argmax(axis=1) == label).mean()) for name, way in ways.items()}
        assert (each.alone, each.federated) == (right["alone"], right["federated"])
        assert each.score == right[each.kept]
        assert each.best == max(right.values())


def test_deciding_again_after_the_fact_is_the_same_and_trains_nothing(
    both: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(both.path.parent, tmp_path / "runs")
    copied = folder / both.path.name
    (copied / "kept.json").unlink()
    monkeypatch.setattr("fedskew.engine.cohort.train", None)
    monkeypatch.setattr("fedskew.engine.evaluate.sample_values", None)
    assert fedskew.keep(copied) == both.results.kept, "found beside"
    assert fedskew.keep(copied, beside=folder / beside(both).name) == both.results.kept


def test_rows_that_keep_choose_no_round_and_tests_decide_nothing(both: Run, tmp_path: Path) -> None:
    """The leak: labels of rows to keep by, made wrong, may change what is kept and nothing else;
    those of test rows not even that."""
    federation = clients_of()
    kept_rows = np.concatenate([c.keeping for c in with_keeping(federation, 0).clients])
    test_rows = np.concatenate([c.test for c in federation.clients])
    for name, rows in (("keep", kept_rows), ("test", test_rows)):
        y = federation.y.clone()
        y[rows] = (y[rows] + 1) % 3
        other = made(tmp_path / name, federation.with_data(y=y))
        assert other.path.name != both.path.name, "other data, another run"
        for run, same in ((both, other), (Run(beside(both)), Run(beside(other)))):
            chose = [r for r in run.rows() if r.split == "validation"]
            assert [r for r in same.rows() if r.split == "validation"] == chose
            assert same.result["selected_round"] == run.result["selected_round"]
        ours, theirs = both.results.kept, other.results.kept
        assert ours is not None
        assert theirs is not None
        choice = [[(c.kept, c.gain, c.worse) for c in kept.clients] for kept in (ours, theirs)]
        assert (choice[0] == choice[1]) == (name == "test")


def test_rounds_are_chosen_by_the_rows_that_stay(both: Run) -> None:
    counts = {r.split: r.n for r in both.rows() if r.on == "seen"}
    assert (counts["validation"], counts["keeping"]) == (4, 8)
    assert {r.adapted for r in both.rows() if r.split == "keeping"} == {"fine-tuned 2"}


def test_without_the_setting_validation_rows_decide_and_that_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = {"evaluate": {"fine_tune_epochs": 2}}
    run = made(tmp_path, **changes)
    assert run.results.kept is None
    alone = made(tmp_path, method="local", **changes)
    assert main(["keep", str(run.path), "--beside", str(alone.path)]) == 0
    printed = capsys.readouterr().out
    assert "note: the rounds were chosen by these same samples" in printed
    kept = run.results.kept
    assert kept is not None
    assert kept.chosen_by == "validation"
    assert [each.rows for each in kept.clients] == [12] * 4


def test_more_rounds_forget_what_was_kept(both: Run, tmp_path: Path) -> None:
    folder = shutil.copytree(both.path.parent, tmp_path / "runs")
    longer = made(folder, train={**SETTINGS["train"], "rounds": 5}, method="fedavg")
    assert longer.path.name == both.path.name
    kept = longer.results.kept
    assert kept is not None
    assert fedskew.load_run(beside(longer)).result["rounds"] == 5


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"seed": 1}, "has seed = 1"),
        ({"train": {**SETTINGS["train"], "rounds": 3}}, "has train.rounds = 3"),
        ({"train": {**SETTINGS["train"], "lr": 0.1}}, "has train.lr = 0.1"),
        ({"evaluate": {}}, "has evaluate.keep = None"),
    ],
)
def test_a_run_alone_with_other_settings_is_refused(
    both: Run, tmp_path: Path, changes: Knobs, why: str
) -> None:
    other = made(tmp_path, method="local", **changes)
    with pytest.raises(RunError, match=why):
        fedskew.keep(both, beside=other)


def test_what_is_no_run_of_the_same_clients_alone_is_refused(both: Run, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="do not train alone"):
        fedskew.keep(both, beside=both)
    with pytest.raises(RunError, match="give the run of a method"):
        fedskew.keep(beside(both))
    other = made(tmp_path / "other", clients_of(seed=1), method="local")
    with pytest.raises(RunError, match="made with other data"):
        fedskew.keep(both, beside=other)
    lonely = shutil.copytree(both.path, tmp_path / "lonely" / both.path.name)
    before = (lonely / "kept.json").read_bytes()
    with pytest.raises(RunError, match=r"no finished run of the same clients alone .*--beside"):
        fedskew.keep(lonely)
    assert (lonely / "kept.json").read_bytes() == before


def test_one_client_or_no_validation_rows_are_refused_before_anybody_trains(
    tmp_path: Path,
) -> None:
    one = clients_of()
    one = one.with_data(clients=one.clients[:1])
    none = clients_of(validation=0)
    for federation, why in ((one, "one client"), (none, "federation.validation")):
        with pytest.raises(FedskewError, match=why):
            made(tmp_path / "runs", federation)
        assert not (tmp_path / "runs").exists()


def test_models_without_answers_and_sites_are_refused_before_anybody_trains(
    tmp_path: Path,
) -> None:
    with pytest.raises(ConfigError, match="gives none"):
        made(tmp_path / "runs", method="vae", model="beta-vae", evaluate={"keep": "best"})
    assert not (tmp_path / "runs").exists()
    with pytest.raises(ConfigError, match="answers of sites stay there"):
        study_config(make_config({"evaluate": {"keep": "best"}}))


def test_a_comparison_keeps_for_every_method(tmp_path: Path) -> None:
    fedskew.compare(["fedprox"], SETTINGS, out=tmp_path, federation=clients_of())
    kept = {path.name.partition("-")[0]: Run(path).results.kept for path in tmp_path.glob("runs/*")}
    assert kept["fedprox"] is not None
    assert (kept["local"], kept["central"]) == (None, None)


def test_the_command_refuses_in_one_sentence(
    both: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["keep", str(tmp_path)]) == 2
    assert "is not a run folder" in capsys.readouterr().err
    assert main(["keep", str(both.path), "--beside", str(both.path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_damaged_file_is_an_error_and_no_other_result(both: Run, tmp_path: Path) -> None:
    folder = shutil.copytree(both.path, tmp_path / both.path.name)
    found = json.loads((folder / "kept.json").read_text())
    found["clients"][0]["kept"] = "alone"
    found["clients"][0]["gain"] = 1.0
    (folder / "kept.json").write_text(json.dumps(found))
    with pytest.raises(RunError, match="damaged"):
        _ = Run(folder).results.kept


WAYS = ["alone", "federated", "fine-tuned 2", "alone + federated", "alone + fine-tuned 2"]


@pytest.mark.parametrize("way", WAYS)
def test_predict_serves_what_a_client_keeps(both: Run, tmp_path: Path, way: str) -> None:
    """From its test rows to the very answers that decided, by the models that were saved."""
    from fedskew.runs.kept import write_kept

    folder = shutil.copytree(both.path.parent, tmp_path / "runs")
    run = Run(folder / both.path.name)
    kept = run.results.kept
    assert kept is not None
    named = [c.model_copy(update={"kept": way}) for c in kept.clients]
    write_kept(run.path, kept.model_copy(update={"clients": named}))
    federation = clients_of()
    rows = federation.clients[2].test
    found = fedskew.predict(
        run, federation.x[rows].numpy(), federation.y[rows].numpy(), client="c2", accuracy=0.5
    )
    judged = candidates(run.path, folder / beside(both).name, CLASSIFICATION, "keeping")
    right = judged[2].test[way]
    assert found.accuracy == pytest.approx(right.mean())
    assert found.answers.sum(axis=1) == pytest.approx(np.ones(20))
    assert f"c2 keeps {way}" in str(found)


def test_a_run_that_clients_keep_models_of_must_stay(both: Run, tmp_path: Path) -> None:
    folder = shutil.copytree(both.path.parent, tmp_path / "runs")
    shutil.rmtree(folder / beside(both).name)
    federation = clients_of()
    x = federation.x[federation.clients[0].test].numpy()
    with pytest.raises(RunError, match="Bring that folder back"):
        fedskew.predict(folder / both.path.name, x, client="c0")


@pytest.mark.parametrize("kind", ["regression", "multi-label"])
def test_numbers_and_several_labels_are_kept_by_their_own_scores(kind: str, tmp_path: Path) -> None:
    federation = toy_task(kind, (60, 60, 60))
    members = [replace(c, train=c.train[:40], validation=c.train[40:]) for c in federation.clients]
    run = made(tmp_path, federation.with_data(clients=tuple(members), unseen=()))
    kept = run.results.kept
    assert kept is not None
    rows = [r for r in run.rows() if r.split == "test" and r.on == "seen"]
    selected = [r for r in rows if r.round == run.result["selected_round"]]
    known = {
        r.client: r.value
        for r in selected
        if r.metric == kept.metric and r.model == "global" and r.adapted == "none"
    }
    assert kept.metric == {"regression": "rmse", "multi-label": "label_accuracy"}[kind]
    for each in kept.clients:
        assert each.federated == pytest.approx(known[each.client], rel=1e-3)
        assert fedskew.predict(
            run, federation.x[:5].numpy(), client=each.client, threshold=None
        ).kept


def test_a_sample_scores_half_by_being_right_and_half_by_its_brier_score() -> None:
    said = np.array([[0.7, 0.3], [0.4, 0.6]])
    label = np.array([0, 0])
    assert rightness(said, label, CLASSIFICATION).tolist() == [1.0, 0.0]
    brier = np.array([0.3**2 + 0.3**2, 0.6**2 + 0.6**2]) / 2
    assert kept_by(said, label, CLASSIFICATION) == pytest.approx(
        (np.array([1.0, 0.0]) + 1 - brier) / 2
    )
    labels, yes = np.array([[1, 0]]), np.array([[0.8, 0.6]])
    several = Problem("multi-label")
    assert rightness(yes, labels, several).tolist() == [0.5]
    assert kept_by(yes, labels, several) == pytest.approx((0.5 + 1 - (0.04 + 0.36) / 2) / 2)
    number = Problem("regression")
    off = kept_by(np.array([3.0, 4.0]), np.array([1.0, 4.0]), number)
    assert off.tolist() == [-4.0, 0.0]
    assert score_of(off, number) == pytest.approx(2**0.5)
