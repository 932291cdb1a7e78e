"""Objectives crossed with aggregators: how they are named, what is run, what the tables say."""

from __future__ import annotations

import csv
import io
import json
import statistics
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from recorder import Recorder

from fedskew.api import compare
from fedskew.comparisons.crossing import (
    known_aggregators,
    known_objectives,
    label,
    pairs,
    parse_method,
    split_names,
)
from fedskew.comparisons.selection import RULES
from fedskew.config import Config, Named, make_config
from fedskew.errors import ConfigError
from fedskew.runs.experiment import Run
from fedskew.views.comparison import Comparison
from fedskew.views.domains import (
    CENTRAL_TEST,
    UNSEEN,
    Matrix,
)

QUICK = make_config(
    {
        "model": "logistic",
        "train": {"rounds": 3},
        "federation": {"clients": 4, "unseen": 1, "partition": "iid", "samples": 400},
    }
)
HELD_OUT = QUICK.model_copy(
    update={
        "federation": QUICK.federation.model_copy(
            update={
                "environments": Named(name="random", count=3),
                "held_out_environment": "last",
            }
        )
    }
)
"""The same, where every rule has something to go by."""
OBJECTIVES, COLUMNS = ("erm", "vrex (lam=1.0)"), ("fedavg", "scaffold")


@pytest.fixture(scope="module", autouse=True)
def _no_pictures() -> Iterator[None]:
    """Figures take longer than these runs; the heat maps have tests of their own below."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedskew.api.draw_run", lambda run, load: run.path)
        patch.setattr("fedskew.views.comparison.draw_comparison", lambda *given: None)
        yield


def crossed(
    out: Path, watch: Recorder | None = None, config: Config = QUICK, **changes: Any
) -> Comparison:
    given: dict[str, Any] = {
        "objectives": "erm, vrex:lam=1.0", "aggregators": ["fedavg", "scaffold"],
        "leave_out": 2, "seeds": 2, "out": out, "references": False, "watch": watch,
    }  # fmt: skip
    return compare([], config, **{**given, **changes})


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    return crossed(tmp_path_factory.mktemp("crossed"), config=HELD_OUT)


def matrix_of(comparison: Comparison) -> Matrix:
    assert comparison.matrix is not None
    return comparison.matrix


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("erm,irm,vrex", ["erm", "irm", "vrex"]),
        (" erm  irm,\tvrex,", ["erm", "irm", "vrex"]),
        ("irm:lam=10,anneal=5,ib-erm:lam=1 mmd", ["irm:lam=10,anneal=5", "ib-erm:lam=1", "mmd"]),
        ("my_rules:median,fedavg", ["my_rules:median", "fedavg"]),
        ("own:parts=[1, 2],deep=true fedavg", ["own:parts=[1, 2],deep=true", "fedavg"]),
        ("", []),
    ],
)
def test_lists_of_names_may_use_commas_or_spaces(text: str, names: list[str]) -> None:
    assert split_names(text) == names


def test_every_objective_meets_every_aggregator_with_the_settings_of_both() -> None:
    found = pairs(["erm", "irm:lam=10.0"], "fedavg, fedprox:mu=0.1")
    assert [(p.method.name, p.method.knobs) for p in found] == [
        ("erm", {"base": "fedavg"}),
        ("erm", {"base": {"name": "fedprox", "mu": 0.1}}),
        ("irm", {"lam": 10.0, "base": "fedavg"}),
        ("irm", {"lam": 10.0, "base": {"name": "fedprox", "mu": 0.1}}),
    ]
    assert [label(p.method) for p in found] == [
        "erm × fedavg",
        "erm × fedprox (mu=0.1)",
        "irm (lam=10.0) × fedavg",
        "irm (lam=10.0) × fedprox (mu=0.1)",
    ]
    as_mappings = pairs([{"name": "irm", "lam": 10.0}], [{"name": "fedprox", "mu": 0.1}])
    assert as_mappings == found[3:]


def test_all_is_every_objective_and_the_five_aggregators() -> None:
    objectives = {
        "erm", "irm", "vrex", "mldg", "ib-erm", "ib-irm", "mmd", "coral", "groupdro", "and-mask",
        "sand-mask",
    }  # fmt: skip
    assert set(known_objectives()) == objectives
    found = {(p.objective.name, p.aggregator.name) for p in pairs("all", "all")}
    assert found == set(product(objectives, known_aggregators()))
    assert known_aggregators() == ("fedavg", "fedprox", "scaffold", "fednova", "fedgma")


def test_without_aggregators_it_is_the_mean_and_nothing_is_there_twice() -> None:
    assert [label(p.method) for p in pairs(["erm", "erm"], ())] == ["erm × fedavg"]
    twice = pairs("erm", ["fedprox", "fedprox:mu=0.01"])
    assert [label(p.method) for p in twice] == ["erm × fedprox"]
    assert pairs((), ()) == []


def test_an_objective_is_labelled_with_its_base_wherever_it_is_named() -> None:
    assert label(parse_method("irm")) == "irm × fedavg"
    assert label(Named(name="irm", base="scaffold", environments=False)) == (
        "irm (environments=False) × scaffold"
    )
    assert label(parse_method("feddisco:base=fedprox")) == "feddisco (base=fedprox)"


@pytest.mark.parametrize(
    ("objectives", "aggregators", "complaint"),
    [
        ("erm, irmm", "fedavg", "unknown objective 'irmm': did you mean 'irm'?"),
        ("fedprox", "fedavg", "unknown objective 'fedprox'"),
        ("erm", "fedgna", "unknown aggregator 'fedgna': did you mean 'fedgma'?"),
        ("erm", "vae", "erm × vae cannot run: base = 'vae' has an objective of its own"),
        ("erm", "irm", "erm × irm cannot run: base = 'irm' has an objective of its own"),
        ("erm", "central", "pools everybody's data"),
        ("irm:lamm=1", "fedavg", "did you mean 'lam'"),
        ("irm", "fedprox:muu=1", "did you mean 'mu'"),
        ("irm:base=fedavg", "scaffold", "the aggregators are its bases"),
        ("", "fedavg", "names no objective"),
        ((), "fedavg", "aggregators need objectives"),
        ("sand-mask:tau=1.0", "fedavg", "tau"),
    ],
)
def test_a_pair_that_cannot_work_stops_everything_before_anything_runs(
    objectives: Any, aggregators: str, complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as told:
        crossed(tmp_path / "out", objectives=objectives, aggregators=aggregators)
    assert complaint in str(told.value)
    assert not (tmp_path / "out").exists()


def test_what_only_the_settings_rule_out_is_refused_before_the_first_run(tmp_path: Path) -> None:
    adam = QUICK.model_copy(
        update={"train": QUICK.train.model_copy(update={"optimiser": "adam", "lr": 0.001})}
    )
    watch = Recorder()
    with pytest.raises(ConfigError, match=r"^erm × scaffold cannot run: .* 'sgd', not 'adam'"):
        compare([], adam, objectives="erm", aggregators="fedavg scaffold", out=tmp_path / "out",
                watch=watch)  # fmt: skip
    assert watch.runs == []
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"leave_out": 9}, "a number from 0 to 3"),
        ({"leave_out": -1}, "a number from 0 to 3"),
        ({"objectives": (), "aggregators": (), "leave_out": 1}, "name some objectives"),
    ],
)
def test_leaving_out_what_cannot_be_left_out_is_refused_first(
    changes: dict[str, Any], complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        compare(["fedavg"], QUICK, out=tmp_path / "out", **{"objectives": "erm", **changes})
    assert not (tmp_path / "out").exists()


def test_the_leaderboard_has_every_pair_and_beside_them_plain_methods(tmp_path: Path) -> None:
    plain = ["fedavg", "erm"]
    comparison = compare(
        plain, QUICK, objectives=["erm"], aggregators=["fedavg", "fedprox"], out=tmp_path
    )
    assert {row.method: row.reference for row in comparison.leaderboard} == {
        "erm × fedavg": False, "erm × fedprox": False, "fedavg": False, "local": True,
        "central": True,
    }  # fmt: skip
    assert matrix_of(comparison).rules == ["last", "validation", "oracle"]
    for text in (str(comparison), (tmp_path / "matrix.md").read_text()):
        assert "Not measured: --leave-out (leave_out) adds the runs it takes." in text


def expected(run: Run, *without: Run) -> dict[str, tuple[int, float, float]]:
    """What each rule chooses, read off the logs: round, score out of domain, score in domain.

    The last of the rounds with the smallest loss among those with the highest accuracy, of which
    rounding may have spoiled the last digits.
    """

    def means(
        path: Path, on: str, split: str, client: str | None = None, metric: str = "accuracy"
    ) -> dict[int, float]:
        values: dict[int, list[float]] = {}
        for line in map(json.loads, (path / "metrics.jsonl").read_text().splitlines()):
            where = (line["on"], line["split"], line["metric"], line["adapted"])
            if where == (on, split, metric, "none") and client in (None, line["client"]):
                values.setdefault(line["round"], []).append(line["value"])
        return {at: statistics.fmean(found) for at, found in values.items()}

    def curve(path: Path, *where: str) -> dict[int, tuple[float, float]]:
        losses = means(path, *where, metric="loss")
        return {at: (right, -losses[at]) for at, right in means(path, *where).items()}

    ood, inside = means(run.path, "unseen", "test"), means(run.path, "seen", "test")
    names = [json.loads((w.path / "config.json").read_text())["config"] for w in without]
    left = [
        curve(w.path, "unseen", "validation", config["federation"]["unseen"][-1])
        for w, config in zip(without, names, strict=True)
    ]
    looked_at: dict[str, dict[int, tuple[float, float]]] = {
        "last": {at: (at, 0.0) for at in ood},
        "validation": curve(run.path, "seen", "validation"),
        "environment": curve(run.path, "seen", "environment"),
        "left-out": {at: (sum(c[at][0] for c in left), sum(c[at][1] for c in left)) for at in ood},
        "oracle": curve(run.path, "unseen", "test"),
    }
    rounds = {
        rule: max(ood, key=lambda at: (round(found[at][0], 5), found[at][1], at))
        for rule, found in looked_at.items()
    }
    return {rule: (at, ood[at], inside[at]) for rule, at in rounds.items()}


def test_the_matrix_says_what_every_rule_chose(finished: Comparison) -> None:
    matrix = matrix_of(finished)
    assert (matrix.objectives, matrix.aggregators) == (OBJECTIVES, COLUMNS)
    assert (matrix.metric, matrix.target, matrix.seeds) == ("accuracy", UNSEEN, 2)
    lines = list(csv.DictReader(io.StringIO((finished.path / "matrix.csv").read_text())))
    assert len(lines) == 2 * 2 * 2 * len(RULES)
    everything = [Run(path) for path in (finished.path / "runs").iterdir()]
    whole = {path for row in finished.leaderboard for path in row.runs}
    for standing in finished.leaderboard:
        objective, aggregator = standing.method.split(" × ")
        for seed, path in enumerate(standing.runs):
            config = Run(path).config
            without = [
                other
                for other in everything
                if other.path not in whole
                and (other.config.method, other.config.seed) == (config.method, seed)
            ]
            assert len(without) == 2
            for rule, (at, ood, inside) in expected(Run(path), *without).items():
                (line,) = (
                    line
                    for line in lines
                    if (line["objective"], line["aggregator"]) == (objective, aggregator)
                    and (line["rule"], line["seed"]) == (rule, str(seed))
                )
                assert int(line["round"]) == at
                assert float(line["ood"]) == pytest.approx(ood)
                assert float(line["in_domain"]) == pytest.approx(inside)


def test_all_pairs_of_a_seed_leave_the_same_clients_out(finished: Comparison) -> None:
    whole = {path for row in finished.leaderboard for path in row.runs}
    left: dict[tuple[int, str], set[str]] = {}
    for path in (finished.path / "runs").iterdir():
        if path not in whole:
            config = Run(path).config
            assert isinstance(config.federation.unseen, list)
            key = (config.seed, label(config.method))
            left.setdefault(key, set()).add(config.federation.unseen[-1])
    assert len(left) == 2 * 4
    for seed in (0, 1):
        sets = [clients for (own, _), clients in left.items() if own == seed]
        assert all(clients == sets[0] and len(clients) == 2 for clients in sets)


def test_tables_show_mean_and_interval_over_seeds_and_mark_the_best(finished: Comparison) -> None:
    matrix = matrix_of(finished)
    markdown = (finished.path / "matrix.md").read_text()
    assert markdown == matrix.to_markdown()
    assert "mean ± half the 95 % t-interval over 2 seeds" in markdown
    sections = markdown.split("## ")[1:]
    assert [section.split()[0] for section in sections] == list(RULES)
    assert "peeks at the test data" in sections[4]
    for rule, section in zip(RULES, sections, strict=True):
        rows = [line for line in section.splitlines() if line.startswith("| ")][2:]
        means = {}
        for objective, row in zip(OBJECTIVES, rows, strict=True):
            name, *cells = row.strip("| ").split(" | ")
            assert name == objective
            for aggregator, cell in zip(COLUMNS, cells, strict=True):
                found = [
                    p.ood
                    for p in matrix.picks
                    if (p.rule, p.objective, p.aggregator) == (rule, objective, aggregator)
                ]
                # Of two values: the 97.5 % quantile of Student's t with one degree of freedom
                # times the deviation over the root of two, which is half the difference.
                half = 12.7062 * abs(found[0] - found[1]) / 2
                text = f"{statistics.fmean(found):.3f} ± {half:.3f}"
                assert cell.strip("*") == text
                means[cell] = statistics.fmean(found)
        best = max(means.values())
        assert {c for c in means if c.startswith("**")} == {c for c in means if means[c] == best}


def test_runs_are_counted_and_told_and_none_is_repeated(tmp_path: Path) -> None:
    first = Recorder()
    comparison = crossed(tmp_path, first, seeds=1)
    assert [(run.position, run.total) for run in first.runs] == [(p, 12) for p in range(1, 13)]
    pairs_run = [f"{o} × {a}, seed 0" for o in OBJECTIVES for a in COLUMNS]
    assert [run.name for run in first.runs[:4]] == pairs_run
    folds_run = [run.name.partition(", without ") for run in first.runs[4:]]
    assert [pair for pair, _, _ in folds_run] == pairs_run * 2
    assert len({client for _, _, client in folds_run}) == 2
    assert [run.repeated for run in first.runs] == [False] * 12
    again = Recorder()
    assert crossed(tmp_path, again, seeds=1) == comparison
    assert [(run.repeated, run.rounds) for run in again.runs] == [(True, [])] * 12


@pytest.mark.parametrize("position", [2, 5])
def test_after_ctrl_c_the_same_call_goes_on_where_it_was(position: int, tmp_path: Path) -> None:
    """The second of four pairs, or the first of four runs that leave somebody out."""
    small: dict[str, Any] = {"seeds": 1, "leave_out": 1}
    second_round = Recorder(lambda run: run.position == position and run.rounds[-1] == 2)
    with pytest.raises(KeyboardInterrupt):
        crossed(tmp_path / "stopped", second_round, **small)
    watch = Recorder()
    resumed = crossed(tmp_path / "stopped", watch, **small)
    before, after = position - 1, 8 - position
    assert [run.rounds for run in watch.runs] == [[]] * before + [[3]] + [[1, 2, 3]] * after
    assert [run.repeated for run in watch.runs] == [True] * before + [False] * (after + 1)
    assert matrix_of(resumed) == matrix_of(crossed(tmp_path / "whole", **small))


def test_without_unseen_clients_the_central_test_set_is_the_target(tmp_path: Path) -> None:
    seen = QUICK.model_copy(
        update={"federation": QUICK.federation.model_copy(update={"unseen": 0})}
    )
    comparison = compare([], seen, objectives="erm", out=tmp_path, references=False)
    matrix = matrix_of(comparison)
    assert matrix.target == CENTRAL_TEST
    (row,) = comparison.leaderboard
    assert row.central is not None
    assert matrix.score("validation", ("erm", "fedavg")).mean == row.central.mean
    assert "test accuracy on the central test set" in str(comparison)


def test_a_rule_without_validation_data_says_so(tmp_path: Path) -> None:
    section = QUICK.federation.model_copy(update={"validation": 0.0})
    config = QUICK.model_copy(update={"federation": section})
    comparison = compare([], config, objectives="erm", out=tmp_path, references=False)
    assert matrix_of(comparison).rules == ["last", "oracle"]
    assert "No client has validation data; federation.validation sets some aside." in str(
        comparison
    )
    with pytest.raises(ConfigError, match=r"set federation\.validation above 0"):
        compare([], config, objectives="erm", leave_out=1, out=tmp_path / "none")


def test_what_runs_warn_of_is_told_once_with_whom_it_concerns(tmp_path: Path) -> None:
    section = QUICK.federation.model_copy(update={"environments": Named(name="none")})
    config = QUICK.model_copy(update={"federation": section})
    comparison = compare([], config, objectives="erm vrex coral", out=tmp_path, references=False)
    remarks = matrix_of(comparison).remarks
    assert all(" one environment only" in remark for remark in remarks)
    assert {name for remark in remarks for name in remark.partition(": ")[0].split(", ")} == {
        "vrex", "coral",
    }  # fmt: skip
    for remark in remarks:
        assert str(comparison).count(remark) == 1
        assert (tmp_path / "matrix.md").read_text().count(remark) == 1
