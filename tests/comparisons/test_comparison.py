"""Comparisons: who stands where, by which numbers, and what is told besides."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import ttest_rel

from fedskew.api import compare
from fedskew.comparisons.crossing import Given, label, parse_method
from fedskew.config import Config, Named, make_config
from fedskew.errors import ConfigError
from fedskew.runs.experiment import Run, make_federation
from fedskew.store import read_sealed, write_sealed
from fedskew.views.comparison import Comparison
from fedskew.views.leaderboard import Standing

CLIENTS, ROUNDS, PARAMETERS = 3, 2, 64 * 10 + 10
QUICK = make_config(
    {
        "model": "logistic",
        "train": {"rounds": ROUNDS},
        "federation": {"clients": CLIENTS, "unseen": 1},
        "evaluate": {"fine_tune_epochs": 1},
    }
)


@pytest.fixture(scope="module", autouse=True)
def _no_pictures() -> Iterator[None]:
    """Figures have tests of their own and take longer than these runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedskew.api.draw_run", lambda run, load: run.path)
        patch.setattr("fedskew.views.comparison.draw_comparison", lambda *given: None)
        yield


@pytest.fixture(scope="module")
def two_seeds(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    return compare(["fedavg", "scaffold"], QUICK, seeds=2, out=tmp_path_factory.mktemp("two"))


def changed(config: Config, **federation: Any) -> Config:
    section = config.federation.model_copy(update=federation)
    return config.model_copy(update={"federation": section})


def test_every_comparison_carries_local_and_central_unless_told_not_to(
    two_seeds: Comparison, tmp_path: Path
) -> None:
    methods = {row.method: row.reference for row in two_seeds.leaderboard}
    assert methods == {"fedavg": False, "scaffold": False, "local": True, "central": True}
    alone = compare(["local"], QUICK, out=tmp_path, references=False)
    assert [row.method for row in alone.leaderboard] == ["local"]


def test_scores_are_means_over_clients_then_over_seeds(two_seeds: Comparison) -> None:
    for row in two_seeds.leaderboard:
        means, worst = [], []
        for path in row.runs:
            run = Run(path)
            values = [
                r.value
                for r in run.rows()
                if r.round == run.result["selected_round"]
                and (r.model, r.on, r.adapted) == (row.model, "seen", "none")
                and (r.split, r.metric) == ("test", "accuracy")
            ]
            assert len(values) == CLIENTS - 1
            means.append(sum(values) / len(values))
            worst.append(min(values))
        assert len(means) == 2
        assert row.score.mean == pytest.approx(sum(means) / 2)
        assert row.score.std == pytest.approx(abs(means[0] - means[1]) / 2**0.5)
        # Student's t with one degree of freedom: 12.7062 at 97.5 %.
        assert row.score.half == pytest.approx(12.7062 * abs(means[0] - means[1]) / 2, rel=1e-5)
        assert row.worst.mean == pytest.approx(sum(worst) / 2)


def selected_means(row: Standing) -> list[float]:
    """The mean over clients at the selected round, of each seed."""
    wanted = {"at": "selected", "on": "seen", "split": "test", "metric": "accuracy"}
    wanted |= {"model": row.model, "adapted": "none"}
    return [
        score["mean"]
        for path in row.runs
        for score in Run(path).result["scores"]
        if wanted.items() <= score.items()
    ]


def leaderboard_of(comparison: Comparison) -> str:
    """The Markdown of the first table."""
    return comparison.to_markdown().partition("## Against")[0]


def test_gains_over_local_are_paired_by_seed(two_seeds: Comparison) -> None:
    rows = {row.method: row for row in two_seeds.leaderboard}
    alone = selected_means(rows["local"])
    for name in ("fedavg", "scaffold", "central"):
        found = ttest_rel(selected_means(rows[name]), alone).confidence_interval(0.95)
        gain = rows[name].gain
        assert gain is not None
        assert (gain.low, gain.high) == pytest.approx((found.low, found.high))
    assert rows["local"].gain is None
    gain = rows["fedavg"].gain
    assert gain is not None
    markdown = leaderboard_of(two_seeds).splitlines()
    column = next(line for line in markdown if line.startswith("| method")).split(" | ")
    at = column.index("gain over local")
    cells = {line.split()[1]: line.split(" | ")[at] for line in markdown if line.startswith("| ")}
    assert cells["fedavg"] == f"{gain.mean:+.3f} ± {gain.half:.3f}"
    assert cells["local"] == "–"
    table = {line["method"]: line for line in csv.DictReader(io.StringIO(two_seeds.to_csv()))}
    assert float(table["fedavg"]["gain_over_local"]) == gain.mean
    assert float(table["fedavg"]["gain_over_local_half"]) == gain.half
    assert table["local"]["gain_over_local"] == table["local"]["gain_over_local_half"] == ""
    against = rows["fedavg"].against
    assert against is not None
    counted = f"{against.worse} of {2 * (CLIENTS - 1)}"
    assert next(line for line in markdown if line.startswith("| fedavg")).split(" | ")[at + 1] == (
        counted
    )
    assert table["fedavg"]["gain_over_local_verdict"] == against.verdict
    assert table["fedavg"]["worse_off_clients"] == str(against.worse)
    assert table["local"]["paired_clients"] == ""


def test_without_local_there_is_no_gain_to_show(tmp_path: Path) -> None:
    only = compare(["fedavg"], QUICK, out=tmp_path, references=False)
    assert only.leaderboard[0].gain is None
    assert "gain over local" not in str(only).lower()
    assert only.remarks == (
        "Who is better off than alone is not known: compare without --no-references "
        "(references=False), or name the method that trains alone.",
    )
    assert [math.isnan(line.gain) for line in only.clients] == [True] * (CLIENTS - 1)


def test_every_client_of_every_method_and_seed_has_a_line(two_seeds: Comparison) -> None:
    lines = list(csv.DictReader(io.StringIO((two_seeds.path / "clients.csv").read_text())))
    assert len(lines) == len(two_seeds.clients) == 4 * 2 * (CLIENTS - 1)
    scores = {(c.method, c.seed, c.client): c.score for c in two_seeds.clients}
    for line, one in zip(lines, two_seeds.clients, strict=True):
        assert (line["method"], line["seed"], line["client"]) == (
            one.method, str(one.seed), one.client,
        )  # fmt: skip
        if one.method == "local":
            assert line["gain"] == ""
        else:
            alone = scores["local", one.seed, one.client]
            assert float(line["alone"]) == alone
            assert float(line["gain"]) == one.score - alone
            assert one.low < one.gain < one.high


def test_clients_that_stay_the_same_in_all_seeds_count_once(tmp_path: Path) -> None:
    """Another seed draws no other test samples then: the interval is wider than that of seeds."""
    fixed = changed(QUICK, seed=5)
    found = compare(["fedavg"], fixed, seeds=3, out=tmp_path)
    [row] = [row for row in found.leaderboard if row.method == "fedavg"]
    against = row.against
    assert against is not None
    assert len(against.clients) == CLIENTS - 1
    assert len(against.by_seed) == 3 * (CLIENTS - 1)
    alone = next(row for row in found.leaderboard if row.method == "local")
    of_seeds = ttest_rel(selected_means(row), selected_means(alone)).confidence_interval(0.95)
    assert against.gain.mean == pytest.approx((of_seeds.low + of_seeds.high) / 2)
    assert against.gain.half > 0.02
    assert "Worse off: the same clients in all seeds that score" in str(found)


def test_a_margin_makes_ties(tmp_path: Path) -> None:
    wide = compare(["fedavg"], QUICK, seeds=2, out=tmp_path, margin=50.0)
    assert "As good as training alone, within ±50.000: fedavg" in str(wide)
    with pytest.raises(ConfigError, match="margin must be a number of at least 0, not -1"):
        compare(["fedavg"], QUICK, out=tmp_path, margin=-1)


def test_the_best_stands_first(two_seeds: Comparison) -> None:
    scores = [row.score.mean for row in two_seeds.leaderboard]
    assert scores == sorted(scores, reverse=True)


def test_traffic_is_parameters_times_clients_times_rounds_both_ways(
    two_seeds: Comparison,
) -> None:
    sent = {row.method: row.megabytes for row in two_seeds.leaderboard}
    once = 4 * PARAMETERS * (CLIENTS - 1) * ROUNDS * 2 / 1e6
    assert sent == {
        "fedavg": pytest.approx(once),
        "scaffold": pytest.approx(2 * once),
        "local": 0.0,
        "central": None,
    }


def curve_of(run: Path, metric: str = "accuracy") -> dict[int, float]:
    """The mean test score of the global model over clients, read off the log."""
    values: dict[int, list[float]] = {}
    for line in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()):
        where = (line["model"], line["on"], line["adapted"], line["split"], line["metric"])
        if where == ("global", "seen", "none", "test", metric):
            values.setdefault(line["round"], []).append(line["value"])
    return {number: sum(found) / len(found) for number, found in values.items()}


def test_effective_rounds_end_where_the_best_other_method_ever_was(two_seeds: Comparison) -> None:
    rows = {row.method: row for row in two_seeds.leaderboard}
    for name, other, times in (("fedavg", "scaffold", 1), ("scaffold", "fedavg", 2)):
        rounds, missed = [], 0
        for mine, rival in zip(rows[name].runs, rows[other].runs, strict=True):
            curve, target = curve_of(mine), max(curve_of(rival).values())
            reached = [number for number, value in curve.items() if value >= target]
            own = max(curve, key=lambda number: curve[number])
            rounds.append(min(reached, default=own))
            missed += not reached
        effective = rows[name].effective
        assert effective is not None
        assert effective.rounds == sum(rounds) / 2
        assert effective.own_best == missed
        # Scaffold sends its variates along: twice the bytes for as many parameters.
        sent = times * 2 * 4 * PARAMETERS * effective.rounds
        assert effective.megabytes == pytest.approx(sent / 1e6)
        assert effective.parameters == 2 * PARAMETERS * effective.rounds
    assert rows["local"].effective is None
    assert rows["central"].effective is None


def test_effective_columns_stand_where_somebody_sends_something(
    two_seeds: Comparison, tmp_path: Path
) -> None:
    for text in (str(two_seeds), two_seeds.to_markdown()):
        assert "effective rounds" in text
        assert "effective MB: what a client sent and received by then." in text
    for line in leaderboard_of(two_seeds).splitlines():
        if line.startswith(("| local", "| central")):
            assert line.split("|")[-4:-2] == [" – ", " – "]
    table = list(csv.DictReader(io.StringIO(two_seeds.to_csv())))
    for cells, row in zip(table, two_seeds.leaderboard, strict=True):
        found = row.effective
        assert cells["effective_rounds"] == ("" if found is None else str(found.rounds))
        assert cells["own_best_seeds"] == ("" if found is None else str(found.own_best))
        assert cells["effective_megabytes"] == ("" if found is None else str(found.megabytes))
        assert cells["effective_parameters"] == ("" if found is None else str(found.parameters))
    alone = compare(["local"], QUICK, out=tmp_path, references=False)
    assert "effective" not in str(alone)


def test_a_method_without_rivals_counts_the_rounds_to_its_own_best(tmp_path: Path) -> None:
    only = compare(["fedavg"], QUICK, out=tmp_path, references=False)
    [row] = only.leaderboard
    curve = curve_of(row.runs[0])
    best = max(curve, key=lambda number: curve[number])
    assert row.effective is not None
    assert (row.effective.rounds, row.effective.own_best) == (best, 1)
    assert f" {best} †" in str(only)


def test_personal_models_have_no_central_score(two_seeds: Comparison) -> None:
    for row in two_seeds.leaderboard:
        assert row.model == ("personal" if row.method == "local" else "global")
        assert (row.central is None) == (row.method == "local")
        assert row.adapted is not None
        assert row.unseen is not None


def test_the_split_follows_the_seed_unless_the_config_fixes_it(
    two_seeds: Comparison, tmp_path: Path
) -> None:
    def splits(comparison: Comparison) -> set[str]:
        runs = comparison.leaderboard[0].runs
        return {json.loads((path / "config.json").read_text())["data"] for path in runs}

    assert len(splits(two_seeds)) == 2
    fixed = compare(["local"], changed(QUICK, seed=5), seeds=2, out=tmp_path, references=False)
    assert len(splits(fixed)) == 1


def test_tables_hold_the_leaderboard(two_seeds: Comparison) -> None:
    written = (two_seeds.path / "leaderboard.csv").read_text()
    assert written == two_seeds.to_csv()
    lines = list(csv.DictReader(io.StringIO(written)))
    assert [line["method"] for line in lines] == [row.method for row in two_seeds.leaderboard]
    for line, row in zip(lines, two_seeds.leaderboard, strict=True):
        assert float(line["mean"]) == row.score.mean
        assert float(line["mean_std"]) == row.score.std
        assert line["runs"].split() == [path.name for path in row.runs]
    markdown = (two_seeds.path / "leaderboard.md").read_text()
    assert markdown == two_seeds.to_markdown()
    assert "± half the 95 % t-interval over 2 seeds" in markdown
    best = two_seeds.leaderboard[0]
    row_text = next(line for line in markdown.splitlines() if line.startswith(f"| {best.method}"))
    assert f"{best.score.mean:.3f} ± {best.score.half:.3f}" in row_text


def test_the_text_table_is_aligned(two_seeds: Comparison) -> None:
    lines = str(two_seeds).splitlines()[: 2 + len(two_seeds.leaderboard)]
    assert len({len(line) for line in lines}) == 1


def test_nothing_is_run_twice_and_data_are_loaded_once_a_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads = []

    def counted(config: Config, data_dir: Path | None = None) -> Any:
        loads.append(config.seed)
        return make_federation(config, data_dir)

    monkeypatch.setattr("fedskew.comparisons.runner.make_federation", counted)
    first = compare(["fedavg"], QUICK, seeds=1, out=tmp_path)
    assert loads == [0]
    results = [path / "result.json" for row in first.leaderboard for path in row.runs]
    stamps = [path.stat().st_mtime_ns for path in results]
    again = compare(["fedavg"], QUICK, seeds=1, out=tmp_path)
    # Once more, to see whether they are the same data still.
    assert loads == [0, 0]
    assert [path.stat().st_mtime_ns for path in results] == stamps
    assert again.leaderboard == first.leaderboard


def test_a_user_is_told_when_training_alone_is_best(tmp_path: Path) -> None:
    """With one class a client, whoever trains alone cannot be wrong."""
    config = changed(QUICK, partition=Named(name="one-class"), clients=10, unseen=0)
    for seeds, told in (
        (1, "One seed does not tell gains over training alone from chance: run more (--seeds 5)."),
        (3, "No method is shown to be better than training alone."),
    ):
        comparison = compare(["fedavg"], config, seeds=seeds, out=tmp_path)
        assert comparison.leaderboard[0].method == "local"
        assert comparison.remarks[0] == told
        for text in (str(comparison), comparison.to_markdown()):
            assert told in text
    assert comparison.remarks[1].startswith("Worse than training alone: fedavg -0.")


def edit_result(run: Path, **changes: Any) -> None:
    result = read_sealed(run / "result.json")
    write_sealed(run / "result.json", {**result, **changes})


def test_dropped_updates_and_other_main_metrics_are_dealt_with(tmp_path: Path) -> None:
    first = compare(["fedavg"], QUICK, out=tmp_path, references=False)
    (run,) = first.leaderboard[0].runs
    edit_result(run, failures=3, primary_metric="loss", higher_is_better=False)
    compared = compare(["fedavg", "local"], QUICK, out=tmp_path, references=False)
    assert compared.metric == "accuracy"
    assert compared.higher_is_better
    assert any("fedavg: 3 client updates were unusable" in r for r in compared.remarks)
    by_loss = compare(["fedavg"], QUICK, out=tmp_path, references=False)
    assert by_loss.metric == "loss"
    assert by_loss.leaderboard[0].score != first.leaderboard[0].score


def test_methods_are_read_with_their_settings_and_named_by_what_differs() -> None:
    method = parse_method("fedprox:mu=0.5,weights=uniform")
    assert (method.name, method.knobs) == ("fedprox", {"mu": 0.5, "weights": "uniform"})
    assert label(method) == "fedprox (mu=0.5, weights=uniform)"
    assert parse_method("own:parts=[1,2],deep=true").knobs == {"parts": [1, 2], "deep": True}
    assert label(parse_method("fedprox:mu=0.01")) == "fedprox"


@pytest.mark.parametrize(
    ("methods", "complaint"),
    [
        ([], "at least one method"),
        (["fedavg", "fedprx"], "did you mean 'fedprox'"),
        (["fedavg", "fedprox:muu=1"], "did you mean 'mu'"),
        (["fedprox:"], "after the colon"),
    ],
)
def test_a_wrong_method_stops_the_comparison_before_anything_runs(
    methods: list[str], complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        compare(methods, QUICK, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_settings_no_method_can_work_with_are_refused_before_anything_runs(tmp_path: Path) -> None:
    adam = make_config({**QUICK.resolved(), "train": {"rounds": 1, "optimiser": "adam"}})
    with pytest.raises(ConfigError, match=r"^scaffold cannot run: .* 'sgd', not 'adam'"):
        compare(["fedavg", "scaffold"], adam, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_method_given_twice_runs_once(tmp_path: Path) -> None:
    given: list[Given] = ["local", "local", {"name": "local"}]
    comparison = compare(given, QUICK, out=tmp_path, references=False)
    assert len(comparison.leaderboard) == 1


def test_the_references_of_a_generative_method_minimise_what_it_does(tmp_path: Path) -> None:
    tiny = make_config(
        {"model": {"name": "beta-vae", "hidden": [4]}, "train": {"rounds": 1, "optimiser": "adam"}}
    )
    table = compare(["vae:beta=0.5,kl=mean"], tiny, out=tmp_path)
    assert table.metric == "loss"
    rows = {row.method: row for row in table.leaderboard}
    assert {name: row.reference for name, row in rows.items()} == {
        "vae (beta=0.5, kl=mean)": False,
        "vae (base=local, beta=0.5, kl=mean)": True,
        "vae (base=central, beta=0.5, kl=mean)": True,
    }
    assert rows["vae (base=central, beta=0.5, kl=mean)"].megabytes is None
    effective = rows["vae (beta=0.5, kl=mean)"].effective
    assert effective is not None
    assert effective.rounds == 1
    best = min(rows.values(), key=lambda row: row.score.mean)
    assert table.leaderboard[0] is best
    # A loss is better the smaller it is, and so the gain is what it is less than alone.
    alone = rows["vae (base=local, beta=0.5, kl=mean)"]
    gain = rows["vae (beta=0.5, kl=mean)"].gain
    assert gain is not None
    assert gain.mean == alone.score.mean - rows["vae (beta=0.5, kl=mean)"].score.mean
