"""Watching new samples: which alarms there are, and how often there is one without a reason."""

from __future__ import annotations

import json
from pathlib import Path

import clinics
import numpy as np
import pytest
import torch
from scipy.stats import chi2_contingency

import fedskew
from fedskew.api import run
from fedskew.cli import main
from fedskew.data.federation import Client, Federation
from fedskew.data.profile import Counted, counted
from fedskew.data.tables.kinds import Column
from fedskew.deploy.export import export
from fedskew.deploy.monitor import monitor
from fedskew.deploy.two_samples import two_samples
from fedskew.errors import ConfigError, RunError
from fedskew.runs.experiment import Run


@pytest.fixture(scope="module")
def clinic(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("clinic")
    data = clinics.write(folder / "all.csv", clinics.rows(1500, seed=0))
    settings = clinics.settings(data)
    settings["federation"]["validation"] = 0.4
    return run(settings, out=folder / "runs", draw=False)


def test_p_values_are_those_of_scipy_where_every_bin_is_large() -> None:
    before, now = np.array([50, 70, 80]), np.array([30, 20, 25])
    expected = chi2_contingency(np.stack([before, now]), correction=False).pvalue
    assert two_samples(before, now) == pytest.approx(expected, rel=1e-12)


def test_bins_too_small_for_the_test_join_their_neighbours() -> None:
    """Of 20 new rows 20/220 of a bin are expected: bins of less than 55 in all are joined."""
    before, now = np.array([30, 30, 70, 70]), np.array([2, 3, 7, 8])
    joined = np.array([[60, 70, 70], [5, 7, 8]])
    expected = chi2_contingency(joined, correction=False).pvalue
    assert two_samples(before, now) == pytest.approx(expected, rel=1e-12)
    assert np.isnan(two_samples(np.array([200, 0]), np.array([20, 0])))


def test_there_is_rarely_an_alarm_where_nothing_changed(clinic: Run, tmp_path: Path) -> None:
    """At 5 %, two hundred draws raise 10 alarms on average; 18 or more with probability .01."""
    alarms = 0
    for seed in range(1, 201):
        new = clinics.write(tmp_path / "new.csv", clinics.rows(60, seed=seed))
        alarms += monitor(clinic, [new], alpha=0.05).code == 4
    assert alarms < 18


def test_a_change_is_noticed_and_named(clinic: Run, tmp_path: Path) -> None:
    noticed = 0
    for seed in range(1, 21):
        new = clinics.write(tmp_path / "new.csv", clinics.rows(100, seed=seed, older=10))
        found = monitor(clinic, [new])
        noticed += "age" in [each.name for each in found.changed]
    assert noticed >= 19


def test_words_that_were_never_seen_and_values_that_are_missing_count(
    clinic: Run, tmp_path: Path
) -> None:
    rows = clinics.rows(100, seed=1, wards="ABCZZ")
    for row in rows[:60]:
        row[clinics.HEADER.index("bp")] = ""
    found = monitor(clinic, [clinics.write(tmp_path / "new.csv", rows)])
    by_name = {each.name: each for each in found.changed}
    assert by_name["ward"].most[0] == "(another word)"
    assert by_name["bp"].most[0] == "(missing)"
    assert found.beyond >= sum(row[2] == "Z" for row in rows)


def test_answers_that_become_wrong_are_noticed_if_there_are_labels(
    clinic: Run, tmp_path: Path
) -> None:
    rows = clinics.rows(150, seed=1)
    rng = np.random.default_rng(0)
    for row in rows:
        row[-1] = str(rng.choice(["sick", "well"]))
    found = monitor(clinic, [clinics.write(tmp_path / "new.csv", rows)])
    assert [each.name for each in found.changed] == ["right answers"]
    unlabelled = clinics.write(tmp_path / "bare.csv", rows, clinics.HEADER[:-1])
    assert monitor(clinic, [unlabelled]).code == 0


def test_several_files_are_taken_together_and_few_rows_tell_nothing(
    clinic: Run, tmp_path: Path
) -> None:
    few = [clinics.write(tmp_path / f"{n}.csv", clinics.rows(12, seed=n, older=40)) for n in (1, 2)]
    assert monitor(clinic, few[:1]).code == 5
    assert "12 rows are too few" in monitor(clinic, few[:1]).verdict
    together = monitor(clinic, few)
    assert (together.rows, together.code) == (24, 4)


def test_what_training_clients_do_as_well_is_told_but_is_no_alarm(tmp_path: Path) -> None:
    """Three clients lie around -3, 0 and 3: new rows around 3 are one of them, around 9 nobody."""
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(at, 1, (200, 1)) for at in (-3, 0, 3)]).astype(np.float32)
    y = (rng.random(600) < 0.5).astype(np.int64)
    rows = np.arange(600).reshape(3, 200)
    clients = tuple(
        Client(f"c{n}", each[:150], each[150:175], each[175:]) for n, each in enumerate(rows)
    )
    federation = Federation("three", torch.from_numpy(x), torch.from_numpy(y), ("a", "b"), clients)
    done = run({"model": "logistic", "train": {"rounds": 1, "lr": 0.001}}, out=tmp_path,
               federation=federation, draw=False)  # fmt: skip
    alike, beyond = (monitor(done, [_file(tmp_path, rng.normal(at, 1, (100, 1)))]) for at in (3, 9))
    inputs = [each for each in alike.compared if each.kind == "input"]
    assert [each.differs for each in inputs] == [True]
    assert [each.changed for each in inputs] == [False]
    assert "no more than training clients do" in str(alike)
    assert "feature 0" in [each.name for each in beyond.changed]


def _file(folder: Path, x: np.ndarray) -> Path:  # type: ignore[type-arg]
    np.savez(folder / "new.npz", x=x.astype(np.float32))
    return folder / "new.npz"


def test_an_exported_folder_is_watched_like_its_run(clinic: Run, tmp_path: Path) -> None:
    new = clinics.write(tmp_path / "new.csv", clinics.rows(100, seed=1, older=10))
    export(clinic, tmp_path / "out", int8=False)
    of_run, of_export = (monitor(model, [new]) for model in (clinic, tmp_path / "out"))
    assert of_run.compared == of_export.compared
    assert of_run.code == 4


def test_exit_codes_are_for_schedulers(
    clinic: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    same = clinics.write(tmp_path / "same.csv", clinics.rows(100, seed=3))
    older = clinics.write(tmp_path / "older.csv", clinics.rows(100, seed=3, older=15))
    few = clinics.write(tmp_path / "few.csv", clinics.rows(5, seed=3))
    folder = str(clinic.path)
    assert main(["monitor", folder, str(same)]) == 0
    assert "verdict:  nothing found" in capsys.readouterr().out
    assert main(["monitor", folder, str(older), "--json", "--out", str(tmp_path / "r.json")]) == 4
    told = json.loads(capsys.readouterr().out)
    assert told == json.loads((tmp_path / "r.json").read_text())
    assert told["code"] == 4
    assert main(["monitor", folder, str(few)]) == 5
    assert main(["monitor", folder, str(tmp_path / "nobody.csv")]) == 2
    with pytest.raises(ConfigError, match="alpha must lie between 0 and 1"):
        monitor(clinic, [same], alpha=0.0)
    with pytest.raises(RunError, match="name at least one file"):
        monitor(clinic, [])


def test_counts_keep_no_row_and_edges_are_no_values() -> None:
    """Of 1,000 numbers with six digits no edge, low or high is one of them."""
    values = np.round(np.random.default_rng(0).normal(50, 12, 1000), 6)
    found = counted(Column("age", "number", values), [np.arange(500), np.arange(500, 1000)])
    assert sum(found.counts) == 1000
    assert found.counts[-1] == 0
    assert not set(found.edges) & set(values.tolist())
    assert found.low is not None
    assert found.high is not None
    assert found.low < values.min()
    assert found.high > values.max()
    assert max(found.counts[:-1]) < 120
    assert found.apart < 0.05


def test_a_rare_value_of_few_has_a_bin_of_its_own() -> None:
    values = np.array([1.0] * 97 + [0.0] * 3)
    found = counted(Column("right", "boolean", values), [np.arange(100)])
    assert found == Counted("right", (3, 97, 0), edges=(0.0,), low=0.0, high=1.0)


def test_a_run_that_kept_no_account_says_so(clinic: Run, tmp_path: Path) -> None:
    import shutil

    old = tmp_path / "old"
    shutil.copytree(clinic.path, old)
    (old / "profile.json").unlink()
    config = json.loads((old / "config.json").read_text())
    moved_data = json.loads(
        json.dumps(config).replace(config["config"]["federation"]["dataset"], "gone.csv")
    )
    del moved_data["sealed"], moved_data["sha256"]
    (old / "config.json").write_text(json.dumps(moved_data))
    new = clinics.write(tmp_path / "new.csv", clinics.rows(50, seed=1))
    with pytest.raises(RunError, match="kept no account of its training rows"):
        monitor(fedskew.load_run(old), [new])
