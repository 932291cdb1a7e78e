"""Suites about newcomers: few-shot scores, confidence, privacy, models by dataset, the source."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from fedskew.config import make_config
from fedskew.errors import ConfigError
from fedskew.federate.metrics import Row, by_group, summarise
from fedskew.models import seeded
from fedskew.papers.claims import Claim
from fedskew.papers.clients import Data
from fedskew.papers.curves import (
    COVERAGES,
    coverage_curve,
    draw_coverage,
    draw_shots,
    draw_trades,
    shot_curve,
)
from fedskew.papers.format import Suite, find_suite, parse_suite
from fedskew.papers.generative_figures import draw_samples
from fedskew.papers.grid import cells
from fedskew.papers.machine import Provenance
from fedskew.papers.measure import Measured
from fedskew.papers.page import Reproduction, page
from fedskew.papers.printed import source_table
from fedskew.papers.scores import ClientScore, ScoreName, client_score, in_points, meaning
from fedskew.papers.spread import spread_tables
from fedskew.papers.suite import reproduce
from fedskew.papers.tables import about_columns, results_table
from fedskew.papers.verdict import Results, compared, indistinct, judge
from fedskew.runs.experiment import Run
from fedskew.store import save_tensors

SUITE: dict[str, Any] = {
    "title": "Newcomers",
    "source": "Nobody 2023",
    "question": "Who adapts?",
    "defaults": {"federation": {"clients": 4}, "model": "logistic", "train": {"rounds": 2}},
    "scales": {"smoke": {"seeds": 2}},
    "settings": [{"name": "one", "label": "One"}, {"name": "two", "label": "Two"}],
    "arms": [
        {"name": "new", "label": "FedNew", "method": "fedavg"},
        {"name": "old", "label": "FedOld", "method": "fedavg"},
    ],
}
CLAIM: dict[str, Any] = {
    "name": "adapts", "says": "It adapts.", "source": "Nobody 2023", "better": "new",
    "than": "old", "on": ["one"], "score": "unseen-2-shot",
}  # fmt: skip
Key = tuple[str, str, str, str]
"""On whom, which client, adapted how, which metric."""


def suite(**changes: Any) -> Suite:
    return parse_suite({**SUITE, **changes}, "newcomers")


SIZE: dict[str, Any] = {
    "model": {"name": "logistic", "knobs": {}}, "sample_shape": [4], "classes": 3,
}  # fmt: skip


def measured(
    folder: Path,
    scores: Mapping[Key, float],
    earlier: Mapping[Key, float] | None = None,
    **more: Any,
) -> Measured:
    """A finished run of two rounds with these test scores; the first round is the selected one."""
    rows = [
        Row("main", number, "global", on, client, adapted, "test", metric, value, 9)
        for number, found in ((1, earlier or {}), (2, scores))
        for (on, client, adapted, metric), value in found.items()
    ]
    summed = [
        {
            "at": at, "round": number, "model": model, "on": on, "adapted": how, "split": split,
            "metric": metric, **asdict(summarise([row.value for row in group])),
        }
        for at, number in (("last", 2), ("selected", 1))
        for (model, on, how, split, metric), group in by_group(
            row for row in rows if row.round == number
        ).items()
    ]  # fmt: skip
    folder.mkdir(parents=True)
    result = {
        "primary_metric": "accuracy", "primary_model": "global", "rounds": 2, "selected_round": 1,
        "scores": summed, "higher_is_better": True, "bytes": {"up": 10**6, "down": 10**6},
        "failures": 0, "seconds": 1.0, **more,
    }  # fmt: skip
    config = make_config({"method": more.get("method", "fedavg")}).resolved()
    (folder / "config.json").write_text(json.dumps({"config": config}))
    (folder / "result.json").write_text(json.dumps(result))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(r.as_dict()) + "\n" for r in rows))
    return Measured(Run(folder))


def scored(value: float, on: str = "unseen", adapted: str = "none") -> dict[Key, float]:
    return {(on, "ann", adapted, "accuracy"): value}


SCORES: dict[Key, float] = {
    ("seen", "ann", "none", "accuracy"): 0.5,
    ("seen", "bob", "none", "accuracy"): 0.7,
    ("seen", "ann", "none", "macro_f1"): 0.4,
    ("seen", "ann", "2-shot 20", "accuracy"): 0.8,
    ("seen", "ann", "fine-tuned 20", "accuracy"): 0.9,
    ("odd", "bob", "none", "accuracy"): 0.11,
    ("odd", "bob", "2-shot 20", "accuracy"): 0.12,
    ("odd", "bob", "fine-tuned 20", "accuracy"): 0.13,
    ("unseen", "cat", "none", "accuracy"): 0.2,
    ("unseen", "dan", "none", "accuracy"): 0.4,
    ("unseen", "cat", "none", "macro_f1"): 0.25,
    ("unseen", "cat", "2-shot 20", "accuracy"): 0.6,
    ("unseen", "cat", "2-shot 20", "macro_f1"): 0.55,
    ("unseen", "cat", "20-shot 20", "accuracy"): 0.65,
    ("unseen", "cat", "fine-tuned 20", "accuracy"): 0.75,
}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("clients", 0.6), ("macro-f1", 0.4), ("2-shot", 0.8), ("fine-tuned", 0.9), ("odd", 0.11),
        ("odd-2-shot", 0.12), ("odd-fine-tuned", 0.13), ("unseen", 0.3), ("unseen-0-shot", 0.3),
        ("unseen-macro-f1", 0.25), ("unseen-2-shot", 0.6), ("unseen-2-shot-macro-f1", 0.55),
        ("unseen-20-shot", 0.65), ("unseen-fine-tuned", 0.75),
    ],
)  # fmt: skip
def test_a_score_names_on_whom_adapted_how_and_by_what(
    name: ScoreName, value: float, tmp_path: Path
) -> None:
    run = measured(tmp_path / "run", SCORES)
    assert run.score(name) == pytest.approx(value)
    assert math.isnan(run.score(name, "selected"))
    assert run.higher_is_better(name)
    assert in_points(name, main_is_share=True)


def test_the_selected_round_has_adapted_scores_of_its_own(tmp_path: Path) -> None:
    run = measured(tmp_path / "run", SCORES, scored(0.35, adapted="2-shot 20"))
    assert run.score("unseen-2-shot") == 0.6
    assert run.score("unseen-2-shot", "selected") == 0.35
    assert math.isnan(run.score("unseen-3-shot"))


def test_macro_f1_is_a_share_whatever_the_main_score_is(tmp_path: Path) -> None:
    run = measured(tmp_path / "run", SCORES, primary_metric="loss", higher_is_better=False)
    assert run.higher_is_better("macro-f1")
    assert in_points("unseen-macro-f1", main_is_share=False)
    assert not run.higher_is_better("unseen-2-shot")
    assert not in_points("unseen-2-shot", main_is_share=False)


@pytest.mark.parametrize(
    "name",
    ["", "-", "unseen-", "unseen2-shot", "-2-shot", "shot", "x-shot", "02-shot", "2-shot-unseen",
     "macro-f1-unseen", "unseen-clients", "odd-worst", "2-shots"],
)  # fmt: skip
def test_names_that_are_put_together_wrongly_mean_nothing(name: str) -> None:
    assert client_score(name) is None


def test_every_part_of_a_name_is_told_in_words() -> None:
    assert meaning("unseen-2-shot") == (
        "mean score over the unseen clients' test data, adapted on 2 labelled sample(s) a class"
    )
    assert meaning("odd-fine-tuned-macro-f1") == (
        "mean macro F1 score over the odd clients' own test data, "
        "after fine-tuning on their training data"
    )
    assert client_score("odd-fine-tuned-macro-f1") == ClientScore("odd", "fine-tuned", "macro_f1")
    words = compared(suite(), Claim.model_validate(CLAIM))
    assert words.startswith(meaning("unseen-2-shot") + ", selected round.")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"claims": [{**CLAIM, "score": "unseen-2-shoot"}]},
         r"claims\.0\.score: unknown score 'unseen-2-shoot': did you mean 'unseen-2-shot'"),
        ({"claims": [{**CLAIM, "than": "old:odd2-shot"}]}, "unknown score 'odd2-shot': did you"),
        ({"columns": ["unsen"]}, r"columns\.0: unknown score 'unsen': did you mean 'unseen'"),
        ({"numbers": [{"setting": "one", "arm": "new", "where": "T"}]},
         "either a value or a word"),
        ({"numbers": [{"setting": "one", "arm": "new", "where": "T", "value": 1, "word": "Low"}]},
         "either a value or a word"),
        ({"numbers": [{"setting": "one", "arm": "new", "where": "T", "word": "Lo"}],
          "bands": {"Low": 0, "High": 80}}, r"numbers: 'Lo' is no word of bands \(Low, High\)"),
        ({"numbers": [{"setting": "one", "arm": "new", "where": "T", "value": 1, "client": "ann",
                       "score": "aurc"}]}, "score 'aurc' is not one of a single client"),
        ({"trades": [{"name": "t", "label": "T", "setting": "on", "along": "epsilon", "axis": "e",
                      "scores": ["clients"], "arms": ["new", "old"]}]},
         "trade 't': unknown setting 'on': did you mean 'one'"),
        ({"scales": {"smoke": {"seeds": 1, "fallback": {"config": {}, "settings": ["thre"]}}}},
         "scale 'smoke': unknown setting 'thre'"),
    ],
)  # fmt: skip
def test_a_bad_suite_gets_one_clear_sentence(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=rf"^suite 'newcomers': .*{message}"):
        suite(**changes)


def predictions(folder: Path, rows: Sequence[tuple[float, bool, str, str, str]]) -> None:
    """Predictions as runs keep them: confidence, correct, on, split, adapted."""
    confidence, correct, on, split, adapted = zip(*rows, strict=True)
    np.savez(
        folder / "predictions.npz", confidence=np.array(confidence, dtype=np.float32),
        correct=np.array(correct), on=np.array(on), split=np.array(split),
        adapted=np.array(adapted),
    )  # fmt: skip


UNSEEN = ("unseen", "test", "none")
MIXED = [
    (0.9, True, *UNSEEN), (0.7, True, *UNSEEN), (0.8, False, *UNSEEN), (0.6, False, *UNSEEN),
    (0.99, False, "seen", "test", "none"), (0.98, False, "unseen", "test", "2-shot 20"),
    (0.97, False, "unseen", "validation", "none"),
]  # fmt: skip


def test_the_risk_coverage_area_is_of_unseen_clients_as_they_come(tmp_path: Path) -> None:
    run = measured(tmp_path / "run", SCORES)
    assert math.isnan(run.score("aurc"))
    run = measured(tmp_path / "other", SCORES)
    predictions(run.run.path, MIXED)
    # Errors among the surest one, two, three, four: 0, 1/2, 1/3, 1/2.
    assert run.score("aurc") == pytest.approx((0 + 1 / 2 + 1 / 3 + 1 / 2) / 4)
    assert not run.higher_is_better("aurc")


def test_without_unseen_clients_there_is_no_risk_coverage_area(tmp_path: Path) -> None:
    run = measured(tmp_path / "run", SCORES)
    predictions(run.run.path, MIXED[4:])
    assert math.isnan(run.score("aurc"))


def test_privacy_and_size_are_read_from_the_result(tmp_path: Path) -> None:
    run = measured(tmp_path / "run", SCORES, privacy={"epsilon": 2.5, "delta": 1e-5}, **SIZE)
    assert run.score("epsilon") == 2.5
    assert run.score("parameters") == 4 * 3 + 3
    # C11: a second head of the same size, for every client its own.
    rod = measured(tmp_path / "rod", SCORES, method="fedrod", **SIZE)
    assert rod.score("parameters") == 2 * (4 * 3 + 3)
    assert not run.higher_is_better("epsilon")
    plain = measured(tmp_path / "plain", SCORES, privacy=None)
    assert math.isnan(plain.score("epsilon"))
    leaky = {"epsilon": None, "why": "clients send more", "delta": 1e-5}
    assert math.isnan(measured(tmp_path / "leaky", SCORES, privacy=leaky, **SIZE).score("epsilon"))
    assert math.isnan(plain.score("parameters"))


def pair(folder: Path, **arms: Mapping[Key, float]) -> Results:
    """Two seeds of each arm on setting one; the second scores 0.1 more."""
    return {
        ("one", arm, seed): measured(
            folder / f"{arm}{seed}", {key: value + 0.1 * seed for key, value in scores.items()}
        )
        for arm, scores in arms.items()
        for seed in range(2)
    }


def test_a_claim_about_newcomers_is_judged_on_newcomers(tmp_path: Path) -> None:
    runs = pair(tmp_path, new=scored(0.6, adapted="2-shot 20") | scored(0.1, on="seen"),
                old=scored(0.4, adapted="2-shot 5") | scored(0.9, on="seen"))  # fmt: skip
    last = {"at": "last", "at_why": "stubs have scores of the last round only"}
    [finding] = judge(Claim.model_validate({**CLAIM, **last}), runs).findings
    assert finding.against[0].difference.mean == pytest.approx(0.2)
    assert judge(Claim.model_validate(CLAIM), runs).text == "not run at this scale"


def test_columns_are_shown_where_some_arm_has_them(tmp_path: Path) -> None:
    about = suite(columns=["unseen-2-shot", "odd", "unseen"])
    runs = pair(tmp_path, new=SCORES | {("odd", "bob", "none", "accuracy"): math.nan},
                old=scored(0.9, on="seen"))  # fmt: skip
    lines = results_table(about, "one", ["new", "old"], runs).splitlines()
    assert lines[0] == (
        "| arm | role | last round | worst client | fine-tuned | unseen-2-shot | unseen "
        "| sent (MB) |"
    )
    # 0.6 and 0.7: 12.7062 * 0.05 = 0.6353.
    assert lines[2].endswith("| 65.00 ± 63.53 | 35.00 ± 63.53 | 2.0 |")
    assert lines[3].endswith("| – | – | 2.0 |")
    words = about_columns(about, ["one"], runs)
    assert words[-1].splitlines() == [
        f"- {score}: {meaning(score)}" for score in ("unseen-2-shot", "unseen")
    ]


def test_arms_that_differ_once_adapted_are_not_called_the_same(tmp_path: Path) -> None:
    adapted = scored(0.6, adapted="2-shot 20")
    runs = pair(tmp_path, new=scored(0.5, on="seen") | adapted,
                old=scored(0.5, on="seen") | {**adapted, ("unseen", "x", "none", "loss"): 1.0},
                other=scored(0.5, on="seen"))  # fmt: skip
    assert indistinct(runs, "one") == [["new", "old", "other"]]
    assert indistinct(runs, "one", "clients", ["unseen-2-shot"]) == [["new", "old"]]


def test_the_sources_numbers_stand_beside_ours_of_the_same_score(tmp_path: Path) -> None:
    number = {"setting": "one", "where": "Table 1", "arm": "new"}
    numbers = [
        {**number, "value": 61},
        {**number, "value": 86, "spread": 2, "score": "unseen-2-shot"},
        {**number, "word": "High", "score": "odd"},
        {**number, "value": 95, "score": "2-shot", "client": "ann"},
        {**number, "value": 15, "score": "parameters", "where": "Table 7"},
        {**number, "arm": "old", "value": 50},
        {**number, "setting": "two", "value": 1},
    ]
    about = suite(numbers=numbers, bands={"Low": 0, "Medium": 16, "High": 17})
    runs = {
        ("one", "new", seed): measured(
            tmp_path / str(seed), {key: value + 0.1 * seed for key, value in SCORES.items()}, **SIZE
        )
        for seed in range(2)
    }
    heading, about_rounds, lines = source_table(about, "one", runs)
    assert heading == "#### The source's numbers beside ours"
    assert about_rounds == "Ours are of the last round, unless the score names another."
    assert lines.splitlines()[2:] == [
        "| Table 1 | FedNew | clients | 61 | 65.00 ± 63.53 |",
        "| Table 1 | FedNew | unseen-2-shot | 86 ± 2 | 65.00 ± 63.53 |",
        "| Table 1 | FedNew | odd | High | Medium (16.00 ± 63.53) |",
        "| Table 1 | FedNew | 2-shot of client ann | 95 | 85.00 ± 63.53 |",
        "| Table 7 | FedNew | parameters | 15 | 15 |",
    ]
    assert "source's number" not in results_table(about, "one", ["new"], runs)
    assert source_table(about, "two", runs) == []
    # One seed is too little to put one of the source's words on.
    first = {key: run for key, run in runs.items() if key[2] == 0}
    assert "| Table 1 | FedNew | odd | High | 11.00 |" in source_table(about, "one", first)[2]


def test_the_sources_number_of_a_round_stands_beside_ours_of_that_round(tmp_path: Path) -> None:
    number = {"setting": "one", "where": "text", "arm": "new", "value": 61, "at": 1}
    runs = {("one", "new", 0): measured(tmp_path / "run", scored(0.6, "seen"), scored(0.4, "seen"))}
    lines = source_table(suite(numbers=[number]), "one", runs)[2].splitlines()
    assert lines[2:] == ["| text | FedNew | clients, round 1 | 61 | 40.00 |"]


def test_the_shared_head_of_models_with_two_has_a_score_of_its_own(tmp_path: Path) -> None:
    rows = {
        ("seen", who, "none", "generic_accuracy"): v for who, v in (("ann", 0.25), ("bob", 0.5))
    }
    run = measured(tmp_path / "run", SCORES | rows)
    assert run.score("generic") == 0.375
    assert meaning("generic") == (
        "mean accuracy of the head all clients share, without their own, over the clients' own "
        "test data"
    )


def test_a_table_counts_the_seeds_that_diverged(tmp_path: Path) -> None:
    values = (0.5, math.nan, 0.5)
    runs = {("one", "new", seed): measured(tmp_path / str(seed), scored(value, "seen"))
            for seed, value in enumerate(values)}  # fmt: skip
    [line] = results_table(suite(), "one", ["new"], runs).splitlines()[2:]
    assert "| 50.00 ± 0.00 (diverged in 1 of 3 seeds) |" in line


def test_a_suite_with_headline_numbers_only_keeps_its_column(tmp_path: Path) -> None:
    about = suite(numbers=[{"setting": "one", "arm": "new", "value": 61, "where": "Table 1"}])
    runs = pair(tmp_path, new=SCORES)
    assert source_table(about, "one", runs) == []
    assert results_table(about, "one", ["new"], runs).splitlines()[2].endswith("| 61 (Table 1) |")


def test_other_clients_of_the_source_compare_as_a_spread(tmp_path: Path) -> None:
    numbers = {"setting": "one", "arm": "new", "where": "Table 3", "same": False,
               "values": {"x1": 80, "x2": 90, "x3": 94}}  # fmt: skip
    about = suite(client_numbers=[numbers])
    data = Data({}, torch.zeros(0), {"ann": 31, "bob": 7})
    tables = spread_tables(about, "one", pair(tmp_path, new=SCORES), data)
    assert tables[2].splitlines()[2:] == [
        "| FedNew | ours | 60.00 | 50.00 | 70.00 | 2 |",
        "| FedNew | the source's (Table 3) | 88 | 80 | 94 | 3 |",
    ]
    assert tables[3].splitlines()[2:] == ["| ann | 31 | 50.00 |", "| bob | 7 | 70.00 |"]
    assert spread_tables(about, "two", {}, data) == []


SHOTS = scored(0.2) | scored(0.5, adapted="2-shot 20") | scored(0.6, adapted="10-shot 20")


def test_a_curve_of_shots_begins_without_any_and_ends_with_all(tmp_path: Path) -> None:
    runs = pair(tmp_path, new=SHOTS | scored(0.8, adapted="fine-tuned 20"))
    curve = shot_curve(runs, "one", "new", "unseen")
    assert list(curve) == ["0", "2", "10", "all"]
    assert [span.mean for span in curve.values()] == pytest.approx([0.25, 0.55, 0.65, 0.85])
    assert shot_curve(runs, "one", "new", "odd") == {}


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Every figure that is saved."""
    figures: list[Figure] = []
    save = Figure.savefig

    def keep(figure: Figure, *args: Any, **options: Any) -> None:
        save(figure, *args, **options)
        figures.append(figure)

    monkeypatch.setattr(Figure, "savefig", keep)
    return figures


def read(path: Path) -> list[dict[str, str]]:
    with open(path) as file:
        return list(csv.DictReader(file))


def test_curves_of_shots_are_drawn_for_newcomers_and_odd_clients(
    tmp_path: Path, drawn: list[Figure]
) -> None:
    odd = scored(0.1, "odd") | scored(0.3, "odd", "2-shot 20")
    runs = pair(tmp_path, new=SHOTS | odd, old=scored(0.9, on="seen"))
    about = suite()
    pictures = draw_shots(about, cells(about, "smoke"), runs, tmp_path)
    assert pictures == {"one": tmp_path / "one-shots.png"}
    [figure] = drawn
    assert [axes.get_title() for axes in figure.axes] == ["unseen clients", "odd clients"]
    ticks = [[text.get_text() for text in axes.get_xticklabels()] for axes in figure.axes]
    assert ticks == [["0", "2", "10"], ["0", "2"]]
    rows = read(tmp_path / "one-shots.csv")
    assert {(r["on"], r["arm"], r["shots"]): float(r["mean"]) for r in rows} == pytest.approx(
        {
            ("unseen", "new", "0"): 0.25, ("unseen", "new", "2"): 0.55,
            ("unseen", "new", "10"): 0.65, ("odd", "new", "0"): 0.15, ("odd", "new", "2"): 0.35,
        }
    )  # fmt: skip


def test_risk_is_averaged_over_seeds_at_every_coverage(tmp_path: Path) -> None:
    runs = pair(tmp_path, new=SCORES, old=SCORES)
    predictions(runs["one", "new", 0].run.path, MIXED)
    predictions(runs["one", "new", 1].run.path, [(0.9, False, *UNSEEN), (0.1, True, *UNSEEN)])
    curve = coverage_curve(runs, "one", "new")
    assert curve is not None
    at = {round(c, 2): risk for c, risk in zip(COVERAGES.tolist(), curve.tolist(), strict=True)}
    # Seed 0 has risks 0, 1/2, 1/3, 1/2 up to each quarter, seed 1 has 1 and 1/2 up to each half.
    assert [at[c] for c in (0.24, 0.26, 0.5, 0.52, 0.74, 1.0)] == pytest.approx(
        [(0 + 1) / 2, (1 / 2 + 1) / 2, (1 / 2 + 1) / 2, (1 / 3 + 1 / 2) / 2, (1 / 3 + 1 / 2) / 2,
         (1 / 2 + 1 / 2) / 2]
    )  # fmt: skip
    assert coverage_curve(runs, "one", "old") is None
    about = suite()
    pictures = draw_coverage(about, cells(about, "smoke"), runs, tmp_path)
    assert pictures == {"one": tmp_path / "one-coverage.png"}
    rows = read(tmp_path / "one-coverage.csv")
    assert {row["arm"] for row in rows} == {"new"}
    assert [float(row["risk"]) for row in rows] == pytest.approx(curve.tolist())


def test_arms_are_placed_by_what_they_cost(tmp_path: Path, drawn: list[Figure]) -> None:
    arms = [{"name": name, "label": name.title(), "method": "fedavg"} for name in
            ("strict", "lax", "free", "absent")]  # fmt: skip
    trade = {"name": "cost", "label": "Cost", "setting": "one", "along": "epsilon", "axis": "ε",
             "scores": ["unseen"], "arms": ["lax", "free", "strict", "absent"]}  # fmt: skip
    about = suite(arms=arms, trades=[trade])
    runs = {
        ("one", arm, 0): measured(tmp_path / arm, scored(value), privacy=spent)
        for arm, value, spent in (
            ("strict", 0.3, {"epsilon": 1.0}), ("lax", 0.6, {"epsilon": 8.0}), ("free", 0.9, None),
        )
    }  # fmt: skip
    assert draw_trades(about, runs, tmp_path) == {"cost": tmp_path / "cost.png"}
    rows = [(r["arm"], r["epsilon"], r["mean"]) for r in read(tmp_path / "cost.csv")]
    assert rows == [("strict", "1.0", "0.3"), ("lax", "8.0", "0.6"), ("free", "nan", "0.9")]
    [axes] = drawn[0].axes
    line, level = axes.get_lines()[0], axes.get_lines()[-1]
    np.testing.assert_array_equal(line.get_xdata(), [1.0, 8.0])
    np.testing.assert_array_equal(line.get_ydata(), [0.3, 0.6])
    np.testing.assert_array_equal(level.get_ydata(), [0.9, 0.9])
    del runs["one", "lax", 0]
    assert draw_trades(about, runs, tmp_path) == {}


def test_samples_of_a_class_informed_model_say_their_class(
    tmp_path: Path, drawn: list[Figure]
) -> None:
    about = suite(pictures=["new"])
    run = measured(tmp_path / "run", SCORES)
    model = seeded("conv-civae", (1, 8, 8), 2, seed=1, latent=3)
    path = run.run.path / "models" / "last" / "global.safetensors"
    path.parent.mkdir(parents=True)
    save_tensors(path, dict(model.state_dict()))
    result = json.loads((run.run.path / "result.json").read_text())
    more = {"model": {"name": "conv-civae", "knobs": {"latent": 3}}, "sample_shape": [1, 8, 8]}
    (run.run.path / "result.json").write_text(json.dumps({**result, **more, "classes": 2}))
    (run.run.path / "config.json").write_text(json.dumps({"config": {"method": "civae"}}))
    data = {"one": Data({}, torch.rand(4, 1, 8, 8), {}, ("nought", "one"))}
    draw_samples(about, {("one", "new", 0): Measured(run.run)}, data, tmp_path)
    titles = [axes.get_title() for axes in drawn[0].axes]
    from fedskew.views.generative import prior_codes

    weight, bias = model.state_dict()["classifier.weight"], model.state_dict()["classifier.bias"]
    logits = prior_codes(3, 4, 0) @ weight.T + bias
    shares = logits.exp() / logits.exp().sum(dim=1, keepdim=True)
    expected = [f"{('nought', 'one')[int(row.argmax())]}, {row.max():.2f}" for row in shares]
    assert titles == expected


def test_an_arm_has_the_model_of_the_dataset_and_the_setting_has_the_last_word() -> None:
    arm = {"name": "new", "label": "New", "method": "fedavg",
           "on": {"digits": {"model": {"name": "mlp", "hidden": [4]}},
                  "two": {"model": {"hidden": [8]}}}}  # fmt: skip
    settings = [
        {"name": name, "label": name, "config": {"federation": {"dataset": dataset}}}
        for name, dataset in (("one", "digits"), ("two", "digits"), ("three", "har"))
    ]
    about = suite(arms=[arm], settings=settings, scales={"smoke": {"seeds": 1}})
    models = {cell.setting: cell.config.model for cell in cells(about, "smoke")}
    assert models["one"].knobs == {"hidden": [4]}
    assert models["two"].knobs == {"hidden": [8]}
    assert models["three"].name == "logistic"


def test_what_only_some_runs_have_is_not_called_the_same_in_every_run() -> None:
    sized = {"name": "one", "label": "One", "config": {"federation": {"image": {"side": 12}}}}
    arm = {"name": "new", "label": "New", "method": "fedavg",
           "on": {"digits": {"model": "mlp"}, "har": {"model": "logistic"}}}  # fmt: skip
    about = suite(settings=[sized, SUITE["settings"][1]], arms=[arm])
    plan = cells(about, "smoke")
    facts = Reproduction(
        suite=about, scale="smoke", command="fedskew reproduce newcomers", fallback=None,
        plan=plan, results={}, verdicts=[], figures={}, series={}, wall_seconds=1.0,
        provenance=Provenance("1", "abc", 2, "chip", "1 GiB", "3", {"torch": "2"}),
    )  # fmt: skip
    lines = page(facts).splitlines()
    [common] = [line for line in lines if line.startswith("The same in every run")]
    assert "train.rounds = 2" in common
    assert "federation.image" not in common
    # Nor does an arm tell of data that are not here.
    assert "| New | `new` | method | fedavg; on digits: model = mlp |" in lines


def test_fallback_data_bring_their_own_model_and_settings() -> None:
    arm = {"name": "new", "label": "New", "method": "fedavg",
           "on": {"digits": {"model": {"name": "mlp", "hidden": [4]}}}}  # fmt: skip
    fallback = {"config": {"federation": {"dataset": "digits"}}, "settings": ["two"]}
    defaults = {**SUITE["defaults"], "federation": {"dataset": "har"}}
    about = suite(
        arms=[arm], defaults=defaults, scales={"smoke": {"seeds": 1, "fallback": fallback}}
    )
    assert [cell.config.model.name for cell in cells(about, "smoke")] == ["logistic"] * 2
    [cell] = cells(about, "smoke", about.scales["smoke"].fallback)
    assert (cell.setting, cell.config.model.name) == ("two", "mlp")


def civae() -> Suite:
    return find_suite("civae")


def asked(name: str) -> str:
    """How a score's models are adapted."""
    found = client_score(name)
    return "none" if found is None else found.adapted


@pytest.mark.parametrize("scale", ["desk", "tables", "paper"])
def test_whatever_the_suite_asks_for_is_scored(scale: str) -> None:
    about = civae()
    configs = {(cell.setting, cell.arm): cell.config for cell in cells(about, scale)}
    wanted: list[tuple[str, str, str]] = []
    for claim in about.claims:
        for reference in (claim.better, *claim.than, *claim.control):
            side = claim.side(reference)
            wanted += [(setting, side.arm, side.score) for setting in claim.on]
    wanted += [(n.setting, n.arm, n.score or "clients") for n in about.numbers]
    for setting, arm, score in wanted:
        if scale == "tables" and (setting, arm) not in configs:
            continue
        shots = [f"{count}-shot" for count in configs[setting, arm].evaluate.shots]
        assert asked(score) in ("none", *shots), (setting, arm, score)


@pytest.mark.parametrize("scale", ["smoke", "desk", "tables", "paper"])
def test_every_arm_of_the_suite_has_the_model_of_its_data(scale: str) -> None:
    families = {
        "femnist": {"femnist-cnn", "conv-civae"}, "har": {"har-mlp", "dense-civae", "logistic"},
    }  # fmt: skip
    for cell in cells(civae(), scale):
        assert cell.config.model.name in families[cell.config.federation.dataset]
        is_civae = "civae" in cell.arm or cell.arm.startswith("private")
        assert cell.config.model.name.endswith("civae") == is_civae


def test_the_sources_tables_are_all_there() -> None:
    about = civae()
    found = {number.where.removesuffix("*") for number in about.numbers}
    found |= {numbers.where for numbers in about.client_numbers}
    assert found == {f"Table 5.{n}" for n in range(1, 11)}
    table = {
        (n.arm, n.score): n.value for n in about.numbers if n.where.removesuffix("*") == "Table 5.9"
    }
    assert table == {
        ("local-classifier", None): 98, ("fed-classifier", "2-shot"): 96, ("fed-civae", None): 97,
        ("fedreptile-civae", "2-shot"): 92, ("local-classifier", "unseen-2-shot"): 23,
        ("fed-classifier", "unseen-2-shot"): 93, ("fed-civae", "unseen-2-shot"): 85,
        ("fedreptile-civae", "unseen-2-shot"): 92,
    }  # fmt: skip
    sums = {n.arm: sum(n.values.values()) for n in about.client_numbers}
    # Column sums of Table 5.3.
    assert sums == {
        "local-classifier": 2233, "fed-classifier": 2107, "fed-civae": 2175,
        "fedreptile-civae": 2111,
    }  # fmt: skip


def test_scale_tables_has_the_size_of_the_source() -> None:
    found = {(c.setting, c.arm, c.seed): c.config for c in cells(civae(), "tables")}
    seeds = {place: {s for p, _, s in found if p == place} for place, _, _ in found}
    assert all(len(of) == (5 if place == "har-windows" else 3) for place, of in seeds.items())
    turned = found["femnist-rotated", "fedreptile-civae", 0]
    assert (turned.federation.clients, turned.federation.unseen) == (100, 75)
    assert turned.federation.image is None, "28x28 as they are, white around them"
    assert turned.federation.options["ink_on_black"] is False
    train = turned.train
    assert (train.rounds, train.epochs, train.batch_size, train.lr) == (200, 1, 4, 0.001)
    assert turned.evaluate.fine_tune_epochs == 1001
    alone = found["femnist-rotated", "local-classifier", 0]
    assert (alone.train.rounds, alone.evaluate.fine_tune_epochs) == (100, 51)
    assert alone.evaluate.fine_tune_batch == 8
    walking = found["har-windows", "fed-civae", 2]
    assert (walking.train.rounds, walking.train.batch_size) == (200, 8)
    assert found["rotation-4", "fed-civae", 0].federation.unseen == 25


TOML = """
title = "Toy newcomers"
source = "Nobody 2023"
question = "Who adapts?"
columns = ["unseen", "unseen-2-shot", "odd", "odd-2-shot", "macro-f1", "aurc", "parameters"]
pictures = ["reptile"]

[defaults.federation]
normalise = "unit"
samples = 300
clients = 5
unseen = 2
partition = { name = "dirichlet", alpha = 5.0 }
skew = [{ name = "rotation", low = 0, high = 0, spread = 0.0, odd_angle = 90, odd = 1 }]
[defaults.train]
rounds = 2
optimiser = "adam"
lr = 0.003
[defaults.evaluate]
shots = [1, 2, "all"]
fine_tune_epochs = 1

[scales.smoke]
seeds = 2

[[settings]]
name = "one"
label = "One turned"

[[arms]]
name = "classifier"
label = "Fed CL"
method = "fed-classifier"
on.digits.model = { name = "mlp", hidden = [8] }
[[arms]]
name = "reptile"
label = "FedRep CI-VAE"
method = "fedreptile-civae"
on.digits.model = { name = "dense-civae", hidden = [16], decoder_hidden = [16] }

[[numbers]]
setting = "one"
arm = "reptile"
value = 88
score = "unseen-2-shot"
where = "Table 5.2"

[[claims]]
name = "adapts"
says = "Reptile adapts."
source = "Nobody 2023"
better = "reptile"
than = "classifier"
score = "unseen-2-shot"
on = ["one"]
"""


def test_a_suite_about_newcomers_runs_from_file_to_page(tmp_path: Path) -> None:
    (tmp_path / "toy.toml").write_text(TOML)
    done = reproduce(str(tmp_path / "toy.toml"), "smoke", tmp_path / "out")
    page = done.page.read_text()
    assert "nan" not in page
    for picture in ("one", "one-shots", "one-coverage", "one-samples"):
        assert f"![One turned](figures/toy-smoke/{picture}.png)" in page
        assert (tmp_path / "out" / "figures" / "toy-smoke" / f"{picture}.png").is_file()
    assert "| Table 5.2 | FedRep CI-VAE | unseen-2-shot | 88 |" in page
    [verdict] = done.verdicts
    assert verdict.findings[0].against[0].difference.n == 2
    rows = read(tmp_path / "out" / "figures" / "toy-smoke" / "one-shots.csv")
    mine = [(r["on"], r["shots"]) for r in rows if r["arm"] == "reptile"]
    assert mine == [(on, shots) for on in ("unseen", "odd") for shots in ("0", "1", "2", "all")]
