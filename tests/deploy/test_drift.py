"""A client whose images turn: it notices without labels, asks for few, and recovers."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.patches import Rectangle

from fedskew.api import run
from fedskew.data.skew import rotate
from fedskew.deploy.drift import _windows, drift
from fedskew.deploy.drift_report import CONTINUED, LOOP, NEVER, ONCE, STRATEGIES, DriftReport
from fedskew.deploy.drift_report import drift_figure as picture
from fedskew.engine import cohort
from fedskew.engine.training import Trained, Training, Work
from fedskew.errors import ConfigError, DataError, RunError
from fedskew.federate import adapting
from fedskew.federate.predictions import load_predictions
from fedskew.runs.experiment import Run, make_federation

SETTINGS: dict[str, Any] = {
    "model": {"name": "mlp", "hidden": [64]},
    "train": {"rounds": 10, "epochs": 2, "batch_size": 16},
    "federation": {"clients": 6, "unseen": 1, "partition": "iid", "validation": 0.2, "test": 0.3},
    "evaluate": {"every": 5, "fine_tune_epochs": 20, "fine_tune_lr": 0.05, "shots": [5]},
}
TURNS = (0, 30, 60, 90, 120)
SHOTS = 5


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(SETTINGS, out=tmp_path_factory.mktemp("runs"), draw=False)


@pytest.fixture(scope="module")
def turned(finished: Run, tmp_path_factory: pytest.TempPathFactory) -> tuple[DriftReport, Path]:
    out = tmp_path_factory.mktemp("drift")
    return drift(finished.path, out, angles=TURNS, shots=SHOTS), out


def test_a_client_that_turns_notices_asks_and_recovers(
    turned: tuple[DriftReport, Path],
) -> None:
    report, _ = turned
    loop, never, once = (report.of(name) for name in (LOOP, NEVER, ONCE))
    assert not loop[0].noticed
    assert all(moment.noticed and moment.labels for moment in loop[1:])
    assert all(moment.unsure > moment.expected for moment in loop[1:])
    assert np.mean([m.accuracy for m in loop[2:]]) > np.mean([m.accuracy for m in never[2:]]) + 0.3
    assert np.mean([m.accuracy for m in loop[2:]]) > np.mean([m.accuracy for m in once[2:]]) + 0.3
    assert np.mean([m.accuracy - m.before for m in loop[1:]]) > 0.1


def test_a_client_that_stays_as_it_is_asks_for_nothing(finished: Run) -> None:
    report = drift(finished.path, angles=[0] * 4, shots=SHOTS, window=25)
    assert report.labels(LOOP) == report.labels(CONTINUED) == 0
    first, *rest = report.of(LOOP)
    assert [moment.accuracy for moment in rest] == [m.accuracy for m in report.of(NEVER)][1:]
    assert first.samples == 25


def test_who_never_adapts_answers_with_the_runs_model(
    finished: Run, turned: tuple[DriftReport, Path]
) -> None:
    federation, model = make_federation(finished.config), finished.model()
    (unseen,) = federation.unseen
    images, labels = federation.x[unseen.test], federation.y[unseen.test]
    report, _ = turned
    for moment in report.of(NEVER):
        with torch.no_grad():
            answers = model(rotate(images, torch.full((len(images),), moment.angle)))
        sure = answers.softmax(dim=1).max(dim=1).values
        right = float((answers.argmax(dim=1) == labels).float().mean())
        assert moment.accuracy == moment.before == pytest.approx(right)
        assert moment.unsure == pytest.approx(float((sure < moment.threshold).float().mean()))
        assert (moment.labels, moment.samples) == (0, len(labels))


def test_the_threshold_reaches_the_accuracy_on_validation_samples_and_leaves_a_tenth_below(
    finished: Run,
) -> None:
    federation, model = make_federation(finished.config), finished.model()
    rows = np.concatenate([client.validation for client in federation.clients])
    with torch.no_grad():
        answers = model(federation.x[rows])
    sure = answers.softmax(dim=1).max(dim=1).values.numpy()
    right = (answers.argmax(dim=1) == federation.y[rows]).numpy()
    raised = {}
    for accuracy in (0.5, 0.99):
        reaching = [t for t in np.sort(sure) if right[sure >= t].mean() >= accuracy - 1e-9]
        expected = max(float(reaching[0]), float(np.quantile(sure, 0.1)))
        raised[accuracy] = bool(expected > reaching[0])
        first = drift(finished.path, angles=(0, 0), accuracy=accuracy).of(NEVER)[0]
        assert first.threshold == pytest.approx(expected, abs=1e-6)
    assert raised == {0.5: True, 0.99: False}


def test_the_expected_share_is_that_of_validation_samples_under_models_adapted_alike(
    finished: Run, turned: tuple[DriftReport, Path]
) -> None:
    found, (report, _) = load_predictions(finished.path), turned
    own = (found["split"] == "validation") & (found["adapted"] == "5-shot 20")
    sure, right = found["confidence"][own], found["correct"][own]
    reaching = [t for t in np.sort(sure) if right[sure >= t].mean() >= 0.95 - 1e-9]
    threshold = max(float(reaching[0]), float(np.quantile(sure, 0.1)))
    share = float((sure < threshold).mean())
    assert report.adaptation == "5-shot 20"
    assert [moment.expected for moment in report.moments] == [pytest.approx(share)] * 20
    adapted = [moment.threshold for moment in report.of(ONCE)[1:]]
    assert adapted == [pytest.approx(threshold, abs=1e-6)] * 4


def test_labels_are_counted_and_are_so_many_a_class(
    finished: Run, turned: tuple[DriftReport, Path]
) -> None:
    federation, (report, _) = make_federation(finished.config), turned
    (unseen,) = federation.unseen
    counts = np.bincount(federation.y.numpy()[unseen.train], minlength=10)
    each = int(np.minimum(counts, SHOTS).sum())
    assert report.labels(NEVER) == 0
    assert [moment.labels for moment in report.of(ONCE)] == [each, 0, 0, 0, 0]
    assert [moment.labels for moment in report.of(LOOP)] == [0] + [each] * 4
    assert report.labels(LOOP) == 4 * each


def test_no_sample_is_both_labelled_and_answered_and_no_label_beyond_the_shots_is_seen(
    finished: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = make_federation(finished.config)
    (unseen,) = federation.unseen
    seen: list[torch.Tensor] = []
    counts: list[list[int]] = []
    original = cohort.train

    def watched(works: Sequence[Work], training: Training) -> Sequence[Trained | Exception]:
        if len(works) == 1:
            rows = torch.from_numpy(works[0].rows)
            seen.append(training.x[rows])
            counts.append(torch.bincount(training.y[rows], minlength=10).tolist())
        return original(works, training)

    monkeypatch.setattr(adapting, "train", watched)
    report = drift(finished.path, angles=(90, 90), shots=2, window=20)
    assert len(seen) == sum(moment.labels > 0 for moment in report.moments)
    assert max(max(count) for count in counts) == 2
    asked = torch.cat(seen).flatten(1)
    every = rotate(federation.x[unseen.test], torch.full((len(unseen.test),), 90.0)).flatten(1)
    assert float(torch.cdist(asked, every).min()) > 0.1
    train = rotate(federation.x[unseen.train], torch.full((len(unseen.train),), 90.0)).flatten(1)
    assert float(torch.cdist(asked, train).min(dim=1).values.max()) < 0.1


def test_the_loop_forgets_where_it_has_been_and_the_contrast_does_not(finished: Run) -> None:
    reports = [drift(finished.path, angles=(a, 120), shots=SHOTS) for a in (60, 90)]
    for strategy in (LOOP, CONTINUED):
        assert all(report.of(strategy)[0].labels for report in reports)
    ours, contrast = (
        [(r.of(name)[1].labels, r.of(name)[1].accuracy) for r in reports]
        for name in (LOOP, CONTINUED)
    )
    assert ours[0][0] > 0
    assert ours[0] == ours[1]
    assert contrast[0] != contrast[1]


def test_the_same_seed_turns_the_same_way_and_another_draws_other_samples(finished: Run) -> None:
    first, again, other = (
        drift(finished.path, angles=(0, 45), shots=2, window=30, seed=seed) for seed in (0, 0, 1)
    )
    assert first == again
    assert first != other


def accuracy_of(done: Run, client: str) -> float:
    """The accuracy of a client's model on its test samples, as the run has it."""
    (found,) = (
        r.value
        for r in done.rows()
        if (r.client, r.model, r.split, r.metric, r.adapted)
        == (client, "personal", "test", "accuracy", "none")
        and r.round == done.result["selected_round"]
    )
    return found


@pytest.mark.parametrize("method", ["ditto", "fedper"])
def test_a_seen_client_begins_with_the_model_it_owns_and_a_newcomer_with_what_it_is_sent(
    method: str, tmp_path: Path
) -> None:
    settings = {**SETTINGS, "method": method, "train": {**SETTINGS["train"], "rounds": 3}}
    done = run(settings, out=tmp_path, draw=False)
    federation = make_federation(done.config)
    seen, unseen = federation.clients[1].name, federation.unseen[0].name
    for client, expected in ((seen, seen), (None, unseen)):
        report = drift(done.path, client=client, angles=(0, 45), shots=2)
        assert report.client == expected
        assert report.of(NEVER)[0].accuracy == pytest.approx(accuracy_of(done, report.client))


def test_windows_hold_fresh_samples_until_there_are_none() -> None:
    rows = np.arange(100, 110)
    windows = list(_windows(rows, size=4, count=5, seed=0))
    assert [len(window) for window in windows] == [4] * 5
    assert all(len(set(window.tolist())) == 4 for window in windows)
    assert not set(windows[0].tolist()) & set(windows[1].tolist())
    left = set(rows.tolist()) - set(windows[0].tolist()) - set(windows[1].tolist())
    assert left <= set(windows[2].tolist())
    assert set().union(*(window.tolist() for window in windows)) == set(rows.tolist())


def test_the_report_is_printed_saved_and_drawn(turned: tuple[DriftReport, Path]) -> None:
    report, out = turned
    with open(out / "drift.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == len(TURNS) * len(STRATEGIES)
    for line, moment in zip(lines, report.moments, strict=True):
        assert (line["strategy"], float(line["angle"])) == (moment.strategy, moment.angle)
        assert float(line["accuracy"]) == moment.accuracy
        assert int(line["labels"]) == moment.labels
    assert (out / "drift.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    printed = str(report).splitlines()
    means = next(line for line in printed if line.strip().startswith("mean")).split()[1:]
    assert means == [f"{report.accuracy(name):.3f}" for name in STRATEGIES]
    labels = next(line for line in printed if line.strip().startswith("labels")).split()[1:]
    assert [int(each) for each in labels] == [report.labels(name) for name in STRATEGIES]
    top, bottom = picture(report.table(), "toy").axes
    curves = [np.asarray(line.get_ydata()).tolist() for line in top.get_lines()]
    assert curves == [[m.accuracy for m in report.of(name)] for name in STRATEGIES]
    heights = [bar.get_bbox().height for bar in bottom.patches if isinstance(bar, Rectangle)]
    assert heights == [moment.unsure for moment in report.of(LOOP)]


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"client": "nobody"}, "unknown client 'nobody'"),
        ({"angles": [10]}, "at least two numbers of degrees"),
        ({"angles": [0, float("nan")]}, "at least two numbers of degrees"),
        ({"shots": 0}, "shots must be 1 to"),
        ({"shots": 1000}, "the most that client"),
        ({"window": 0}, "window must be 1 to"),
        ({"window": 10_000}, "window must be 1 to"),
        ({"threshold": 1.0}, "threshold must lie between 0 and 1"),
        ({"accuracy": 0.0}, "accuracy must lie between 0 and 1"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(
    finished: Run, wrong: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        drift(finished.path, **wrong)


def test_a_run_without_unseen_clients_wants_a_name_and_one_without_a_classifier_is_refused(
    tmp_path: Path,
) -> None:
    quick = {**SETTINGS, "train": {"rounds": 1}}
    all_seen = {**SETTINGS["federation"], "unseen": 0}
    done = run({**quick, "federation": all_seen}, out=tmp_path, draw=False)
    with pytest.raises(ConfigError, match="no unseen client: name the client"):
        drift(done.path)
    generative = {
        **quick, "model": {"name": "beta-vae", "hidden": [8]}, "method": "vae", "evaluate": {},
        "federation": {**SETTINGS["federation"], "normalise": "unit"},
    }  # fmt: skip
    with pytest.raises(RunError, match="has no classifier"):
        drift(run(generative, out=tmp_path, draw=False).path)


def test_samples_that_are_no_images_cannot_turn(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lines = [",".join([*(f"{v:.3f}" for v in rng.normal(size=4)), str(i % 2)]) for i in range(200)]
    path = tmp_path / "features.csv"
    path.write_text("\n".join(["a,b,c,d,label", *lines]))
    settings = {
        **SETTINGS, "train": {"rounds": 1},
        "federation": {**SETTINGS["federation"], "dataset": str(path)},
    }  # fmt: skip
    done = run(settings, out=tmp_path / "runs", draw=False)
    with pytest.raises(DataError, match="drift turns images"):
        drift(done.path)


def test_a_run_without_validation_samples_cannot_tell_how_sure_is_sure(tmp_path: Path) -> None:
    federation = {**SETTINGS["federation"], "validation": 0.0}
    settings = {**SETTINGS, "train": {"rounds": 1}, "federation": federation}
    done = run(settings, out=tmp_path, draw=False)
    with pytest.raises(DataError, match="no validation samples"):
        drift(done.path)
