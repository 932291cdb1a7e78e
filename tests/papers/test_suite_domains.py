"""Suites of objectives x aggregators: pairs as arms, rounds by rules, folds, and the page."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import folder_of
from recorder import Observed, Recorder
from toy_pairs import PAIRS, stubs, toy_suite

from fedskew.config import Config, make_config
from fedskew.errors import ConfigError
from fedskew.papers.claims import Claim
from fedskew.papers.folds import fold_cells
from fedskew.papers.grid import cells
from fedskew.papers.measure import Measured
from fedskew.papers.printed import stand_apart
from fedskew.papers.suite import Reproduced, find_suite, reproduce
from fedskew.papers.verdict import judge
from fedskew.runs.experiment import Run, load_run

ROUNDS = (1, 2, 3, 4)


@dataclass(frozen=True)
class Whole:
    """The toy suite, run without interruption."""

    suite: Path
    out: Path
    done: Reproduced
    seen: Recorder
    early: str
    """The page as it was when the first fold began."""

    @property
    def page(self) -> str:
        return self.done.page.read_text()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    folder = tmp_path_factory.mktemp("whole")
    toy_suite(folder)
    early: list[str] = []

    def read_page(run: Observed) -> bool:
        if "without" in run.name and not early:
            early.append((folder / "out" / "toy-smoke.md").read_text())
        return False

    seen = Recorder(read_page)
    done = reproduce(str(folder / "toy.toml"), "smoke", folder / "out", watch=seen)
    return Whole(folder / "toy.toml", folder / "out", done, seen, early[0])


def claim(**changes: Any) -> Claim:
    values = {"name": "c", "says": "s", "source": "x", "better": "erm+*", "than": "irm+*",
              "on": ["skewed"], "score": "ood"}  # fmt: skip
    return Claim.model_validate({**values, **changes})


def row(round: int, on: str, client: str, split: str, value: float, **changes: Any) -> Any:
    return {
        "stage": "main", "round": round, "model": "global", "on": on, "client": client,
        "adapted": "none", "split": split, "metric": "accuracy", "value": value, "n": 5, **changes,
    }  # fmt: skip


def made_up(folder: Path, rows: Sequence[Any], unseen: Sequence[str], **result: Any) -> Run:
    """A run folder that holds these rows."""
    folder.mkdir(parents=True)
    config = make_config({"federation": {"unseen": list(unseen)}}).resolved()
    (folder / "config.json").write_text(json.dumps({"config": config}))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in rows))
    known = {"primary_model": "global", "primary_metric": "accuracy", "higher_is_better": True,
             "rounds": 4, "selected_round": 2, "scores": []}  # fmt: skip
    (folder / "result.json").write_text(json.dumps({**known, **result}))
    return Run(folder)


VALIDATION = {1: 0.5, 2: 0.7, 3: 0.6, 4: 0.6}
OUTSIDE = {1: 0.30, 2: 0.40, 3: 0.60, 4: 0.50}
INSIDE = {1: 0.1, 2: 0.2, 3: 0.3, 4: 0.4}
CENTRAL = {1: 0.9, 2: 0.8, 3: 0.7, 4: 0.6}
WITHOUT = {"a": {1: 0.9, 2: 0.1, 3: 0.1, 4: 0.1}, "b": {1: 0.8, 2: 0.9, 3: 0.2, 4: 0.1}}
"""Left-out clients' validation scores: means 0.85, 0.5, 0.15, 0.1, so round 1 is best."""


def rows_of_rules(unseen: bool = True) -> list[Any]:
    rows = []
    for number in ROUNDS:
        for client, shift in (("a", -0.05), ("b", 0.05)):
            rows.append(row(number, "seen", client, "validation", VALIDATION[number] + shift))
            rows.append(row(number, "seen", client, "test", INSIDE[number] + shift))
        if unseen:
            rows.append(row(number, "unseen", "u", "test", OUTSIDE[number] - 0.1))
            rows.append(row(number, "unseen", "v", "test", OUTSIDE[number] + 0.1))
            rows.append(row(number, "unseen", "u", "validation", 0.99 - number / 10))
        rows.append(row(number, "central", "", "test", CENTRAL[number]))
        # None of these is asked for: another metric, stage, model, or an adapted one.
        rows.append(row(number, "unseen", "u", "test", 9.0, metric="loss"))
        rows.append(row(number, "unseen", "u", "test", 9.0, stage="first"))
        rows.append(row(number, "seen", "a", "validation", 9.0 * number, model="personal"))
        rows.append(row(number, "unseen", "u", "test", 9.0, adapted="2-shot 5"))
    return rows


def folds_of_rules(folder: Path) -> tuple[Run, ...]:
    return tuple(
        made_up(
            folder / f"without-{client}",
            [row(n, "unseen", client, "validation", value) for n, value in curve.items()]
            # The clients that are unseen anyway do not choose.
            + [row(n, "unseen", "u", "validation", n / 4) for n in ROUNDS],
            ["u", "v", client],
        )
        for client, curve in WITHOUT.items()
    )


def test_each_rule_has_its_own_round(tmp_path: Path) -> None:
    run = made_up(tmp_path / "run", rows_of_rules(), ["u", "v"])
    measured = Measured(run, "ood", folds=folds_of_rules(tmp_path))
    found = {at: measured.score("ood", at) for at in ("last", "selected", "left-out", "oracle")}
    # Rounds 4, 2, 1 and 3; every number the mean of clients u and v.
    assert found == pytest.approx({"last": 0.5, "selected": 0.4, "left-out": 0.3, "oracle": 0.6})
    assert measured.curve == pytest.approx(OUTSIDE)
    assert measured.score("clients", "left-out") == pytest.approx(0.1)
    assert measured.score("clients", "oracle") == pytest.approx(0.3)
    assert measured.score("worst", "oracle") == pytest.approx(0.25)
    assert measured.score("unseen", "oracle") == pytest.approx(0.6)
    assert math.isnan(measured.score("fine-tuned", "oracle"))


def test_without_unseen_clients_the_target_is_the_central_test_set(tmp_path: Path) -> None:
    rows = [line for line in rows_of_rules(unseen=False) if line["on"] != "unseen"]
    measured = Measured(made_up(tmp_path / "run", rows, []), "ood")
    assert measured.score("ood", "last") == pytest.approx(0.6)
    assert measured.score("ood", "selected") == pytest.approx(0.8)
    assert measured.score("ood", "oracle") == pytest.approx(0.9)
    assert math.isnan(measured.score("ood", "left-out"))


def test_of_a_loss_the_least_is_best(tmp_path: Path) -> None:
    run = made_up(tmp_path / "run", rows_of_rules(), ["u", "v"], higher_is_better=False)
    measured = Measured(run, folds=folds_of_rules(tmp_path))
    # Validation is least in round 1, so is the score out of domain; left-out clients in round 4.
    assert measured.score("ood", "selected") == pytest.approx(0.3)
    assert measured.score("ood", "oracle") == pytest.approx(0.3)
    assert measured.score("ood", "left-out") == pytest.approx(0.5)
    assert measured.score("worst", "oracle") == pytest.approx(0.15)


def test_a_run_is_read_once(tmp_path: Path) -> None:
    run = made_up(tmp_path / "run", rows_of_rules(), ["u", "v"])
    measured = Measured(run)
    first = measured.score("ood", "oracle")
    (run.path / "metrics.jsonl").unlink()
    assert measured.score("ood", "oracle") == first
    assert measured.curve == pytest.approx(INSIDE)
    assert measured.central_curve == CENTRAL


def test_a_pattern_has_the_mean_of_its_arms() -> None:
    runs = stubs(erm_fedavg=[0.6, 0.7], erm_fedprox=[0.8, 0.9], irm_fedavg=[0.5, 0.5],
                 irm_fedprox=[0.7, 0.9])  # fmt: skip
    [finding] = judge(claim(), runs).findings
    # Seed 0: 0.7 - 0.6 = 0.1; seed 1: 0.8 - 0.7 = 0.1.
    assert finding.against[0].difference.mean == pytest.approx(0.1)
    assert finding.against[0].difference.half == pytest.approx(0, abs=1e-12)
    [alone] = judge(claim(kind="above", than=[], margin=0.5), runs).findings
    assert alone.against[0].difference.mean == pytest.approx(0.75)
    [single] = judge(claim(better="irm+fedprox", than="*+fedavg"), runs).findings
    # 0.7 - 0.55 and 0.9 - 0.6.
    assert single.against[0].difference.mean == pytest.approx(0.225)


def test_two_patterns_are_compared_over_the_partners_both_have() -> None:
    runs = stubs(erm_fedavg=[0.6, 0.7], erm_fedprox=[0.1, 0.2], irm_fedavg=[0.5, 0.5])
    [finding] = judge(claim(), runs).findings
    assert finding.against[0].difference.mean == pytest.approx(0.15)
    [server] = judge(claim(better="*+fedprox", than="*+fedavg"), runs).findings
    assert server.against[0].difference.mean == pytest.approx(-0.5)


def test_a_pattern_with_a_missing_run_is_not_judged() -> None:
    runs = stubs(erm_fedavg=[0.6, 0.7], erm_fedprox=[0.8, math.nan], irm_fedavg=[0.5, 0.5],
                 irm_fedprox=[0.7, 0.9])  # fmt: skip
    assert judge(claim(), runs).findings[0].outcome == "not run"


def test_only_pairs_of_the_mean_have_curves_unless_the_suite_says_so(tmp_path: Path) -> None:
    arms = ["central", *PAIRS]
    assert toy_suite(tmp_path).drawn(arms) == ["central", "erm+fedavg", "irm+fedavg"]
    other = toy_suite(tmp_path, ("[matrix]", '[matrix]\ncurves = "irm+*"'))
    assert other.drawn(arms) == ["central", "irm+fedavg", "irm+fedprox"]
    control = toy_suite(tmp_path, ('role = "reference"', 'role = "control"'))
    assert control.drawn(arms) == ["erm+fedavg", "irm+fedavg"]


def test_printed_numbers_of_pairs_have_a_table_of_their_own(tmp_path: Path) -> None:
    number = '\n[[numbers]]\nsetting = "skewed"\narm = "{}"\nvalue = 1\nwhere = "Figure 1"\n'
    last = ('at = "left-out"\n', 'at = "left-out"\n' + number.format("erm+fedavg"))
    assert stand_apart(toy_suite(tmp_path, last))
    assert not stand_apart(toy_suite(tmp_path, (last[0], last[0] + number.format("central"))))


def test_folds_come_after_all_other_runs(whole: Whole) -> None:
    order = [(*_arm_and_seed(run), "without" in run.name) for run in whole.seen.runs]
    assert all(run.repeated is False for run in whole.seen.runs)
    arms = ["central", *PAIRS]
    again = ["erm+fedavg", "irm+fedavg"]
    assert order[:10] == [(arm, seed, False) for seed in (0, 1) for arm in arms]
    assert order[10:] == [
        (arm, seed, True) for seed in (0, 1) for _ in range(2) for arm in again
    ]  # fmt: skip
    last = whole.seen.runs[-1]
    assert (last.position, last.total) == (18, 18)
    assert re.fullmatch(r"skewed · irm\+fedavg · seed 1 · without client-00\d", last.name)


def _arm_and_seed(run: Observed) -> tuple[str, int]:
    _, arm, seed, *_ = run.name.split(" · ")
    return arm, int(seed.removeprefix("seed "))


def test_a_fold_is_the_same_run_without_one_client(whole: Whole) -> None:
    by_seed: dict[int, dict[str, set[str]]] = {0: {}, 1: {}}
    full = {_arm_and_seed(run): run for run in whole.seen.runs[:10]}
    for fold in whole.seen.runs[10:]:
        arm, seed = _arm_and_seed(fold)
        left_out = fold.name.rpartition("without ")[2]
        mine, theirs = (_clients(whole.out, run.config) for run in (fold, full[arm, seed]))
        assert mine["unseen"] == theirs["unseen"] | {left_out}
        assert mine["seen"] == theirs["seen"] - {left_out}
        by_seed[seed].setdefault(arm, set()).add(left_out)
    for arms in by_seed.values():
        assert len(arms["erm+fedavg"]) == 2
        assert arms["erm+fedavg"] == arms["irm+fedavg"]


def _clients(out: Path, config: Config) -> dict[str, set[str]]:
    rows = Run(folder_of(config, out / "runs")).rows()
    return {on: {r.client for r in rows if r.on == on} for on in ("seen", "unseen")}


def test_a_page_stands_before_the_first_fold(whole: Whole) -> None:
    assert "Rule *oracle*" in whole.early
    assert "Rule *left-out*" not in whole.early
    assert "Without numbers here: rule environment, left-out." in whole.early
    assert "Rule *left-out* (2 of the training clients, one at a time):" in whole.page
    assert "| runs | 10 and 8 that leave a client out" in whole.page


def test_the_tables_hold_what_the_runs_scored(whole: Whole) -> None:
    parts = whole.page.partition("### Skewed digits")[2].partition("## Set-up")[0]
    tables = dict(re.findall(r"Rule \*([\w-]+)\*[^\n]*:\n\n((?:\|[^\n]*\n)+)", parts))
    assert set(tables) == {"last", "validation", "left-out", "oracle"}
    plan = cells(find_suite(str(whole.suite)), "smoke")
    outside: dict[str, list[dict[int, float]]] = {arm: [] for arm in PAIRS}
    for cell in plan:
        if cell.arm in outside:
            outside[cell.arm].append(_outside(folder_of(cell.config, whole.out / "runs")))
    means = {arm: (np.mean([c[3] for c in curves]), np.mean([max(c.values()) for c in curves]))
             for arm, curves in outside.items()}  # fmt: skip
    for place, rule in enumerate(("last", "oracle")):
        best = max(values[place] for values in means.values())
        for line, objective in zip(tables[rule].splitlines()[2:], ("erm", "irm"), strict=True):
            name, *shown = [text.strip() for text in line.strip("|").split("|")]
            assert name == objective
            for text, aggregator in zip(shown, ("fedavg", "fedprox"), strict=True):
                value = means[f"{objective}+{aggregator}"][place]
                assert text.strip("*").startswith(f"{100 * value:.2f} ± ")
                assert text.startswith("**") == (value == best)
    assert re.search(r"\| irm \| [^|]+ \| – \|", tables["left-out"])


def _outside(path: Path) -> dict[int, float]:
    """The unseen client's accuracy by round, from the file itself."""
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return {
        line["round"]: line["value"]
        for line in lines
        if (line["on"], line["split"], line["metric"]) == ("unseen", "test", "accuracy")
    }


def test_the_long_table_has_only_arms_outside_the_matrix(whole: Whole) -> None:
    rows = [line for line in whole.page.splitlines() if line.startswith("| All in one place |")]
    assert len(rows) == 2, "its scores, and what it is"
    assert "| erm × fedavg |" not in whole.page
    for side in (
        "| erm × any | `erm+*` | objective | erm |",
        "| irm × any | `irm+*` | objective | irm (lam=2.0); train.lr = 0.05",
        "| any × fedprox | `*+fedprox` | aggregator | fedprox (mu=0.5); train.lr = 0.2",
    ):
        assert side in whole.page
    assert "nan" not in whole.page


def test_the_gains_on_the_page_are_those_of_the_csv(whole: Whole) -> None:
    with open(whole.out / "figures" / "toy-smoke" / "skewed-matrix.csv") as file:
        lines = list(csv.DictReader(file))
    # Four pairs on two seeds by three rules, and half of them by the fourth.
    assert len(lines) == 4 * 2 * 3 + 2 * 2
    last = {(line["objective"], line["aggregator"], line["seed"]): float(line["ood"])
            for line in lines if line["rule"] == "last"}  # fmt: skip
    gains = [last["irm", a, s] - last["erm", a, s] for s in "01" for a in ("fedavg", "fedprox")]
    section = whole.page.partition("Each objective against erm")[2]
    shown = re.search(r"\| irm \| \**([+-][\d.]+) ±", section)
    assert shown
    assert float(shown[1]) == pytest.approx(100 * np.mean(gains), abs=0.006)


def test_the_matrix_is_drawn_before_the_curves(whole: Whole) -> None:
    pictures = re.findall(r"!\[Skewed digits\]\((.*?)\)", whole.page)
    assert [Path(p).name for p in pictures[:2]] == ["skewed-matrix.png", "skewed.png"]
    for picture in pictures:
        assert (whole.out / picture).read_bytes().startswith(b"\x89PNG")


def test_a_finished_suite_is_not_run_again(whole: Whole) -> None:
    before = whole.page.partition("## Made with")[0]
    seen = Recorder()
    again = reproduce(str(whole.suite), "smoke", whole.out, watch=seen)
    assert [(run.repeated, run.rounds) for run in seen.runs] == [(True, [])] * 18
    assert again.page.read_text().partition("## Made with")[0] == before


def test_an_interrupted_fold_is_taken_up_where_it_was(whole: Whole, tmp_path: Path) -> None:
    limits = ("seeds = 2", 'seeds = 1\narms = ["erm+fedavg"]\nfolds = 1')
    toy_suite(tmp_path, limits)
    in_fold = Recorder(lambda run: "without" in run.name and run.rounds[-1] == 2)
    with pytest.raises(KeyboardInterrupt):
        reproduce(str(tmp_path / "toy.toml"), "smoke", tmp_path / "out", watch=in_fold)
    assert (tmp_path / "out" / "toy-smoke.md").exists()
    seen = Recorder()
    reproduce(str(tmp_path / "toy.toml"), "smoke", tmp_path / "out", watch=seen)
    assert [run.rounds for run in seen.runs] == [[], [3]]
    for run in (tmp_path / "out" / "runs").iterdir():
        uninterrupted = load_run(whole.out / "runs" / run.name)
        assert load_run(run).result["scores"] == uninterrupted.result["scores"]


@pytest.mark.parametrize(
    ("changes", "folds"),
    [
        ([], 2 * 2 * 2),
        ([("folds = 2\n", "folds = 0\n")], 0),
        ([("folds = 2\n", "folds = 99\n")], 2 * 2 * 3),
        ([("seeds = 2", 'seeds = 2\nfolds = "all"')], 2 * 2 * 3),
        ([("seeds = 2", "seeds = 2\nfolds = 1")], 2 * 2 * 1),
        ([('arms = ["*+fedavg"]\n\n', "\n")], 2 * 4 * 2),
        ([('arms = ["*+fedavg"]\n\n', 'settings = ["shards"]\n\n')], 0),
    ],
)
def test_how_many_folds_there_are(
    changes: list[tuple[str, str]], folds: int, whole: Whole, tmp_path: Path
) -> None:
    suite = toy_suite(tmp_path, *changes)
    plan = cells(suite, "smoke")
    done = [(cell, Run(folder_of(cell.config, whole.out / "runs"))) for cell in plan]
    found = fold_cells(suite, "smoke", done)
    assert len(found) == folds
    assert all(cell.arm != "central" for cell in found)
    assert len({cell.config.model_dump_json() for cell in found}) == folds


def test_folds_that_cannot_be_made_are_explained(whole: Whole, tmp_path: Path) -> None:
    suite = toy_suite(tmp_path)
    cell = cells(suite, "smoke")[1]
    rows = [row(1, "seen", client, "test", 0.5) for client in ("a", "b")]
    run = made_up(tmp_path / "run", rows, [])
    with pytest.raises(ConfigError, match=r"suite 'toy', setting 'skewed': .*federation\.val"):
        fold_cells(suite, "smoke", [(cell, run)])
