"""The study of density-ratio estimators: its measures, its runs and its page."""

from __future__ import annotations

import json
import math
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import folder_of
from scipy import stats

# The study is no part of the package, so Python has to be told where it is.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks import ratios
from benchmarks.ratio_parts.draw import draw
from benchmarks.ratio_parts.measure import (
    MEASURES,
    Result,
    finished,
    of_client,
    over_clients,
    over_seeds,
)
from benchmarks.ratio_parts.plan import ESTIMATORS, Setting, cheapest_first, settings
from benchmarks.ratio_parts.tell import Facts, best, by_federation, identical, page, ranking
from fedskew import make_federation
from fedskew.data.federation import Federation
from fedskew.papers.machine import provenance
from fedskew.runs.findings import load_arrays
from fedskew.store import save_arrays

TINY = Setting("bernoulli", 2, 1.0, seeds=1, quick=True)


def told(trouble: int = 0, **truth: float) -> dict[str, Any]:
    """What a run's summary says of a client with two samples."""
    known = {"pearson": None, "spearman": None, "slope": None, "effective": 1.0, **truth}
    return {"n": 2, "effective": 1.6, "trouble": trouble, "truth": known}


def floats(*values: float) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.array(values, np.float32)


def test_the_error_of_weights_is_relative_to_that_of_equal_ones() -> None:
    # Ratios 2 and 6 are weights 0.5 and 1.5, off by 0.5 from equal ones.
    log_ratio = np.log(floats(2.0, 6.0))
    for weights, apart in ((floats(1.5, 0.5), 1.0), (floats(3.0, 9.0), 0.0), (floats(3, 5), 0.25)):
        found = of_client(told(), weights, log_ratio)
        assert found["apart"] == pytest.approx(apart, abs=1e-6)
        assert found["error"] == pytest.approx(apart / 0.5, abs=1e-6)


def test_equal_weights_correlate_with_nothing_and_are_no_better_than_none() -> None:
    found = of_client(told(trouble=3), floats(1, 1), np.log(floats(2.0, 6.0)))
    assert (found["pearson"], found["spearman"], found["equal"]) == (0.0, 0.0, 1.0)
    assert found["error"] == pytest.approx(1.0)
    assert math.isnan(found["slope"])


def test_clients_that_are_alike_have_nothing_to_correlate_with() -> None:
    found = of_client(told(slope=0.0, effective=2.0), floats(0.5, 1.5), floats(0, 0))
    assert all(math.isnan(found[name]) for name in ("pearson", "spearman", "slope", "error"))
    assert (found["apart"], found["effective"], found["true_effective"]) == (0.5, 0.8, 1.0)


def test_a_run_counts_by_the_means_of_its_clients_and_the_median_of_their_slopes(
    tmp_path: Path,
) -> None:
    slopes = {"a": 1.0, "b": 2.0, "c": 99.0}
    summary = {"sample_weights": {n: told(slope=s, pearson=s / 100) for n, s in slopes.items()}}
    arrays = {
        "client": np.repeat(list(slopes), 2),
        "weight": floats(0.5, 1.5, 1.0, 1.0, 1.5, 0.5),
        "truth": np.log(floats(1, 3, 1, 3, 1, 3)),
    }
    save_arrays(tmp_path / "sample_weights.npz", arrays)
    found = over_clients(summary, tmp_path)
    assert found["slope"] == 2.0
    assert found["pearson"] == pytest.approx(1.02 / 3)
    # The three are right, equal, and the wrong way round.
    assert found["error"] == pytest.approx((0 + 1 + 2) / 3)
    assert found["true_effective"] == 0.5


def test_every_federation_meets_every_estimator_and_the_cheap_ones_run_first() -> None:
    plan = settings()
    work = cheapest_first(plan)
    # Two laws in four dimensions: two shifts with two seeds and one without; two kinds of digits.
    assert len(work) == 2 * 4 * (2 * 2 + 1) + 2 * 2
    sizes = [setting.numbers for setting, _ in work]
    assert sizes == sorted(sizes)
    assert len({setting.folder for setting in plan}) == len(plan)


@pytest.mark.parametrize("setting", [Setting("gaussian", 20, 2.0), Setting("digits", 784, 3.0)])
def test_estimators_differ_in_nothing_but_their_name(setting: Setting) -> None:
    configs = [setting.config(estimator, seed=2).resolved() for estimator in ESTIMATORS]
    assert [config["method"].pop("estimator") for config in configs] == list(ESTIMATORS)
    assert all(config == configs[0] for config in configs)
    assert configs[0]["seed"] == 2


def truth_of(federation: Federation) -> np.ndarray[Any, np.dtype[np.float32]]:
    assert federation.log_ratio is not None
    rows = np.concatenate([client.train for client in federation.clients])
    return np.asarray(federation.log_ratio.numpy()[rows])


@pytest.mark.parametrize("law", ["gaussian", "bernoulli"])
def test_the_true_ratio_is_known_and_seeds_draw_other_data(law: str) -> None:
    of_seeds = [make_federation(Setting(law, 2, 1.0).config("literal", seed)) for seed in (0, 1)]
    assert [len(f.clients) for f in of_seeds] == [10, 10]
    # Of 500 rows 100 are for tests, and of the rest 60 for validation.
    assert {len(client.train) for client in of_seeds[0].clients} == {340}
    first, second = (truth_of(federation) for federation in of_seeds)
    assert np.isfinite(first).all()
    assert np.std(first) > 0.1
    assert not np.array_equal(first, second)
    alike = make_federation(Setting(law, 2, 0.0).config("literal", 0))
    assert not truth_of(alike).any()


@pytest.mark.real_data
def test_the_true_ratio_of_digits_is_known(data_dir: Path) -> None:
    federation = make_federation(Setting("digits", 784, 3.0).config("literal", 0), data_dir)
    assert len(federation.clients) == 10
    assert np.isfinite(truth_of(federation)).all()
    assert federation.x[0].numel() == 784


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A federation on which every estimator has run."""
    out = tmp_path_factory.mktemp("ratios")
    assert ratios.run_all(TINY, 0, out, "this code") == len(ESTIMATORS)
    return out


def test_the_first_estimator_trains_the_densities_and_the_others_take_them_over(
    runs: Path,
) -> None:
    spent = []
    for estimator in ESTIMATORS:
        path = folder_of(TINY.config(estimator, 0), runs / TINY.folder)
        lines = [json.loads(line) for line in (path / "timing.jsonl").read_text().splitlines()]
        spent.append(sum(line["seconds"] for line in lines if "density" in line["stage"]))
    assert spent[0] > 0
    assert spent[1:] == [0.0] * (len(ESTIMATORS) - 1)


def test_finished_runs_are_not_run_again(runs: Path) -> None:
    assert ratios.run_all(TINY, 0, runs, "other code") == 0
    assert {result.code for result in finished(TINY, 0, runs)} == {"this code"}


def test_what_a_run_measures_is_what_scipy_finds_in_its_weights(runs: Path) -> None:
    for result in finished(TINY, 0, runs):
        stored = load_arrays(result.path, "sample_weights")
        correlations, errors = [], []
        for name in np.unique(stored["client"]):
            own = stored["client"] == name
            ours, ratio = stored["weight"][own].astype(float), np.exp(stored["truth"][own])
            true = ratio / ratio.mean()
            correlations.append(stats.pearsonr(np.log(ours), np.log(true)).statistic)
            errors.append(np.abs(ours - true).sum() / np.abs(1 - true).sum())
        assert len(errors) == 3
        assert result.measures["pearson"] == pytest.approx(np.mean(correlations), rel=1e-4)
        assert result.measures["error"] == pytest.approx(np.mean(errors), rel=1e-4)


def test_a_federation_counts_only_when_all_estimators_are_finished(
    runs: Path, tmp_path: Path
) -> None:
    copied = Path(shutil.copytree(runs, tmp_path / "runs"))
    assert len(finished(TINY, 0, copied)) == len(ESTIMATORS)
    last = folder_of(TINY.config("literal", 0), copied / TINY.folder)
    (last / "result.json").unlink()
    assert finished(TINY, 0, copied) == []


def test_one_federation_that_fails_is_told_and_the_others_go_on(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ratios.THREADS:
        monkeypatch.setenv(name, "1")
    broken = replace(TINY, shift=-1.0)
    failed = list(ratios.run_missing([(broken, 0), (TINY, 0)], runs, 1, "code"))
    assert len(failed) == 1
    assert failed[0].endswith(
        "shift of dataset 'bernoulli-clients' must be a number of at least 0, not -1.0."
    )
    assert "2/2 bernoulli, 2 dimensions, shift 1, seed 0: finished before" in capfd.readouterr().out


def test_the_page_is_made_of_the_runs_there_are(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = [replace(TINY, seeds=2), replace(TINY, shift=0.0)]
    monkeypatch.setattr(ratios, "settings", lambda quick: plan)
    monkeypatch.setattr(ratios, "READING", tmp_path / "reading.md")
    (tmp_path / "reading.md").write_text("What it means.\n")
    ratios.main(["--finished", "--out", str(runs), "--pages", str(tmp_path)])
    text = (tmp_path / "density-ratio.md").read_text()
    assert "**4 of 12 runs are finished.**" in text
    assert "## In short\n\nWhat it means.\n" in text
    assert "Clients that are all alike" not in text
    assert "runs finished by other code | this code |" in text
    for name in ("correlation.png", "samples.png", "samples.csv", "runs.csv"):
        assert (tmp_path / "figures" / "density-ratio" / name).stat().st_size > 0
    stored = (tmp_path / "figures" / "density-ratio" / "runs.csv").read_text().splitlines()
    assert len(stored) == 1 + len(ESTIMATORS)


def made_up(setting: Setting, seed: int, **pearson: float) -> list[Result]:
    """One result an estimator, with errors of 1 less a tenth of the correlation."""
    values = {name: pearson.get(name.replace("-", "_"), 0.0) for name in ESTIMATORS}
    return [
        Result(
            setting, seed, name,
            {**dict.fromkeys(MEASURES, 0.5), "pearson": value, "error": 1 - value / 10},
            Path(), 60.0, provenance().code,
        )
        for name, value in values.items()
    ]  # fmt: skip


FEW, MANY = Setting("gaussian", 2, 1.0, seeds=2), Setting("gaussian", 200, 1.0, seeds=2)
RESULTS = [
    *made_up(FEW, 0, likelihood=0.9, sampled=0.7, cross_fitted=-0.2),
    *made_up(FEW, 1, likelihood=0.7, sampled=0.7, cross_fitted=0.4),
    *made_up(MANY, 0, likelihood=0.2, sampled=0.6, cross_fitted=-0.001, literal=0.04),
]


def test_cells_are_means_over_seeds_with_their_range_and_the_best_is_bold() -> None:
    lines = by_federation(RESULTS, "pearson").splitlines()
    # Written out by hand from the numbers above.
    assert lines[2] == (
        "| gaussian, 2 dimensions, shift 1 | **0.80 (0.70 to 0.90)** | 0.70 | "
        "0.10 (-0.20 to 0.40) | 0.00 |"
    )
    assert lines[3] == "| gaussian, 200 dimensions, shift 1 | 0.20 | **0.60** | 0.00 | 0.04 |"
    assert best(RESULTS, MANY, "error") == {"sampled"}
    assert "| true |" in by_federation(RESULTS, "effective").splitlines()[0]


def test_a_federation_counts_once_in_the_ranking_however_many_seeds_it_has() -> None:
    rows = [line.split(" | ") for line in ranking(RESULTS)[1].splitlines()[2:]]
    assert [row[0] for row in rows] == [
        "| `sampled`", "| `likelihood`", "| `cross-fitted`", "| `literal`",
    ]  # fmt: skip
    # (0.7 + 0.6) / 2, (0.8 + 0.2) / 2, (0.1 - 0.001) / 2 and 0.04 / 2.
    assert [row[1] for row in rows] == ["0.65", "0.50", "0.05", "0.02"]
    # Errors of 0.996 and 1.0001 are both shown as 1, which is no better than no weights.
    assert [row[6] for row in rows] == ["2 of 2", "2 of 2", "1 of 2", "0 of 2"]
    assert [row[4] for row in rows] == ["1 of 2", "1 of 2", "0 of 2", "0 of 2"]


def test_clients_that_are_alike_have_a_table_of_their_own() -> None:
    alike = [replace(r, setting=replace(FEW, shift=0.0, seeds=1)) for r in RESULTS[:4]]
    assert identical(alike)[1].splitlines()[2] == (
        "| gaussian, 2 dimensions | 0.50 (0.50) | 0.50 (0.50) | 0.50 (0.50) | 0.50 (0.50) |"
    )
    facts = Facts([*RESULTS, *alike], 16, [], "f", "command", provenance(), jobs=2)
    text = page(facts)
    assert "Means over the 2 federations" in text
    # Sixteen runs of a minute each; nobody knows how long the command took.
    assert "| all runs, one after the other | 16 min |" in text
    assert "this command" not in text


def test_a_seed_without_a_number_is_left_out_of_its_range() -> None:
    known, unknown = RESULTS[0], replace(RESULTS[1], measures={"slope": math.nan})
    spread = over_seeds([known, unknown], "slope")
    assert (spread.mean, spread.least, spread.most) == (0.5, 0.5, 0.5)
    assert math.isnan(over_seeds([unknown], "slope").mean)


def test_without_a_result_nothing_is_drawn(tmp_path: Path) -> None:
    assert draw([], tmp_path) == []
    assert [path.name for path in tmp_path.iterdir()] == ["runs.csv"]
