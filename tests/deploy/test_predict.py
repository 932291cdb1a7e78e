"""Answers with their confidence: thresholds, risk and coverage, and predictions from folders."""

from __future__ import annotations

import csv
from pathlib import Path

import clinics
import numpy as np
import pytest
from quick_digits import Stored

import fedskew
from fedskew.api import run
from fedskew.deploy.threshold import validation_threshold
from fedskew.errors import ConfigError, DataError, RunError
from fedskew.federate.predictions import load_predictions
from fedskew.runs.experiment import Run, make_federation

# Few distinct confidences, so that ties are common.


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A quick federation with one client left out, whose clients have models of their own too."""
    settings = {
        "model": "logistic",
        "method": "ditto",
        "federation": {"clients": 4, "unseen": 1, "samples": 600},
        "train": {"rounds": 6, "lr": 0.5},
    }
    return run(settings, out=tmp_path_factory.mktemp("runs"), draw=False)


def test_predictions_are_those_the_run_scored(finished: Run, stored: Stored) -> None:
    """From pixels as stored to the very confidences in predictions.npz, by another way."""
    x, y = stored
    scored = load_predictions(finished.path)
    federation = make_federation(finished.config)
    for client in federation.clients:
        rows = client.validation
        found = fedskew.predict(finished, x[rows], y[rows], client=client.name, threshold=0.5)
        mine = (scored["client"] == client.name) & (scored["split"] == "validation")
        mine &= scored["adapted"] == "none"
        np.testing.assert_array_equal(found.label, scored["predicted"][mine])
        np.testing.assert_allclose(found.probability, scored["confidence"][mine], rtol=1e-5)


def test_a_chosen_threshold_holds_what_it_says_on_the_validation_samples(
    finished: Run, stored: Stored
) -> None:
    x, y = stored
    found = fedskew.predict(finished, x[:50], y[:50], accuracy=0.9)
    scored = load_predictions(finished.path)
    rows = (scored["split"] == "validation") & (scored["adapted"] == "none")
    kept = scored["confidence"][rows] >= found.threshold
    assert found.chosen is not None
    assert found.chosen.samples == rows.sum()
    assert found.chosen.coverage == pytest.approx(kept.mean())
    assert found.chosen.accuracy == pytest.approx(scored["correct"][rows][kept].mean())
    assert found.chosen.accuracy >= 0.9 or "only" in str(found.chosen)


def test_below_the_threshold_one_asks_and_the_scores_say_what_that_does(
    finished: Run, stored: Stored
) -> None:
    x, y = stored
    found = fedskew.predict(finished, x[:200], y[:200], threshold=0.6)
    sure = found.probability >= 0.6
    assert 0 < sure.sum() < 200
    np.testing.assert_array_equal(found.ask, ~sure)
    assert found.coverage == pytest.approx(sure.mean())
    assert found.accuracy == pytest.approx((found.label == y[:200]).mean())
    assert found.answered is not None
    assert found.answered.accuracy == pytest.approx((found.label == y[:200])[sure].mean())
    assert f"{sure.mean():.1%} answered, {(~sure).sum()} of 200 to ask" in str(found)


def test_the_csv_file_has_a_line_a_sample(finished: Run, stored: Stored, tmp_path: Path) -> None:
    x, y = stored
    found = fedskew.predict(finished, x[:30], y[:30], threshold=0.6)
    found.save(tmp_path / "answers.csv")
    with open(tmp_path / "answers.csv") as file:
        lines = list(csv.DictReader(file))
    assert [int(line["truth"]) for line in lines] == y[:30].tolist()
    assert [line["label"] for line in lines] == found.names
    asked = [line["answer"] == "ask for a label" for line in lines]
    assert asked == (found.probability < 0.6).tolist()


def test_samples_without_labels_are_answered_but_not_scored(
    finished: Run, stored: Stored, tmp_path: Path
) -> None:
    np.savez(tmp_path / "new.npz", x=stored[0][:5])
    found = fedskew.predict(finished, tmp_path / "new.npz", threshold=0.6)
    assert len(found.label) == 5
    assert found.accuracy is None
    assert "truth" not in str(found)
    assert "accuracy" not in str(found)


@pytest.mark.parametrize("threshold", [0.0, 1.0, -1.0, 2.0, float("nan")])
def test_a_threshold_outside_0_to_1_is_refused(finished: Run, threshold: float) -> None:
    with pytest.raises(ConfigError, match="threshold must lie between 0 and 1"):
        fedskew.predict(finished, np.zeros((1, 8, 8), np.float32), threshold=threshold)


def test_an_unknown_client_is_answered_with_the_nearest(finished: Run) -> None:
    known = make_federation(finished.config).clients[0].name
    with pytest.raises(ConfigError, match="did you mean 'client-00"):
        fedskew.predict(finished, np.zeros((1, 8, 8)), client=f"{known}0", threshold=0.5)


def test_too_few_validation_samples_ask_for_a_threshold(finished: Run) -> None:
    with pytest.raises(DataError, match="give the threshold itself"):
        validation_threshold(finished.path, accuracy=0.999)


def test_a_run_without_a_classifier_predicts_nothing(tmp_path: Path) -> None:
    settings = {
        "model": "beta-vae",
        "method": "vae",
        "federation": {"clients": 2, "samples": 100, "partition": "iid", "normalise": "unit"},
        "train": {"rounds": 1, "lr": 0.001},
    }
    done = run(settings, out=tmp_path, draw=False)
    with pytest.raises(RunError, match="has no classifier"):
        fedskew.predict(done, np.zeros((1, 8, 8)), threshold=0.5)


@pytest.fixture(scope="module")
def clinic(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run on a table whose columns have names, words and missing values."""
    folder = tmp_path_factory.mktemp("clinic")
    data = clinics.write(folder / "all.csv", clinics.rows(300, seed=0))
    return run(clinics.settings(data), out=folder / "runs", draw=False)


def test_columns_are_found_by_name_and_others_are_carried_along(
    clinic: Run, tmp_path: Path
) -> None:
    rows = clinics.rows(30, seed=1)
    usual, turned = (
        fedskew.predict(clinic, clinics.write(tmp_path / name, rows, columns), threshold=0.5)
        for name, columns in (("a.csv", clinics.HEADER), ("b.csv", clinics.HEADER[::-1]))
    )
    np.testing.assert_array_equal(usual.answers, turned.answers)
    assert usual.carried == {"patient": [row[0] for row in rows]}
    turned.save(tmp_path / "answers.csv")
    with open(tmp_path / "answers.csv") as file:
        assert [line["patient"] for line in csv.DictReader(file)] == [row[0] for row in rows]


def test_ids_name_the_rows_and_probabilities_add_up(clinic: Run, tmp_path: Path) -> None:
    rows = clinics.rows(30, seed=1)
    new = clinics.write(tmp_path / "new.csv", rows)
    found = fedskew.predict(clinic, new, threshold=0.5, id_column="patient", proba=True)
    found.save(tmp_path / "answers.parquet")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = parquet.read_table(tmp_path / "answers.parquet")
    found.save(tmp_path / "answers.csv")
    with open(tmp_path / "answers.csv") as file:
        lines = list(csv.DictReader(file))
    for row, line in zip(rows, lines, strict=True):
        assert line["patient"] == row[0]
        assert float(line["p(sick)"]) + float(line["p(well)"]) == pytest.approx(1, abs=1e-5)
        best = max(("sick", "well"), key=lambda name: float(line[f"p({name})"]))
        assert line["label"] == best
        assert line["truth"] == row[-1]
    assert table.column("patient").to_pylist() == [row[0] for row in rows]
    assert table.column_names == list(lines[0])


def test_rows_unlike_all_training_rows_are_marked_by_column(clinic: Run, tmp_path: Path) -> None:
    rows = clinics.rows(6, seed=1)
    age, ward = clinics.HEADER.index("age"), clinics.HEADER.index("ward")
    for row in rows:
        row[age] = "50"
    rows[1][age], rows[2][ward] = "250", "Z"
    rows[3][age], rows[3][ward] = "-5", "Q"
    found = fedskew.predict(clinic, clinics.write(tmp_path / "new.csv", rows), threshold=0.5)
    of_these = [tuple(n for n in row if n in ("age", "ward")) for row in found.unlike]
    assert of_these == [(), ("age",), ("ward",), ("age", "ward"), (), ()]


def test_a_data_frame_is_answered_like_its_file(clinic: Run, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    new = clinics.write(tmp_path / "new.csv", clinics.rows(20, seed=1))
    one, other = (fedskew.predict(clinic, x, threshold=0.5) for x in (new, pandas.read_csv(new)))
    np.testing.assert_array_equal(one.answers, other.answers)
    assert other.accuracy == one.accuracy


def test_labels_may_be_missing_in_some_rows(clinic: Run, tmp_path: Path) -> None:
    rows = clinics.rows(20, seed=1)
    for row in rows[:15]:
        row[-1] = ""
    found = fedskew.predict(clinic, clinics.write(tmp_path / "new.csv", rows), threshold=0.5)
    right = [n == row[-1] for n, row in zip(found.names[15:], rows[15:], strict=True)]
    assert found.accuracy == pytest.approx(np.mean(right))
    with pytest.raises(DataError, match="row 1 has no label, but adapting needs all"):
        fedskew.adapt(clinic, tmp_path / "new.csv")


@pytest.mark.parametrize(
    ("change", "arguments", "says"),
    [
        (("age,", "Age_,"), {}, "lacks column 'age': is it 'Age_'"),
        (("", ""), {"label": "outcom"}, "lacks column 'outcom': is it 'outcome'"),
        (("", ""), {"id_column": "age"}, "cannot be an id, for the run learned from it"),
        (("", ""), {"id_column": "nobody"}, "lacks column 'nobody'"),
    ],
)
def test_tables_that_do_not_fit_get_one_sentence(
    clinic: Run, tmp_path: Path, change: tuple[str, str], arguments: dict[str, str], says: str
) -> None:
    new = clinics.write(tmp_path / "new.csv", clinics.rows(3, seed=1))
    new.write_text(new.read_text().replace(*change, 1))
    with pytest.raises(DataError, match=says):
        fedskew.predict(clinic, new, threshold=0.5, **arguments)  # type: ignore[arg-type]
