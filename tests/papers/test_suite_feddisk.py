"""Suites that count effective rounds: who is held against whom, the page, pictures, verdicts."""

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
from scipy.stats import t as student

from fedskew.errors import ConfigError
from fedskew.federate.metrics import Row, by_group, summarise
from fedskew.federate.progress import RoundRecord
from fedskew.papers.boxes import draw_boxes
from fedskew.papers.cost_figure import draw_costs
from fedskew.papers.effort import effort_tables, with_rivals
from fedskew.papers.format import Suite, parse_suite
from fedskew.papers.grid import cells
from fedskew.papers.measure import Measured
from fedskew.papers.suite import reproduce
from fedskew.papers.verdict import Results, judge
from fedskew.runs.experiment import Run

PRINTED: list[dict[str, Any]] = [
    {"setting": "femnist", "arm": "disk", "preparation": 15, "preparation_parameters": 614_000,
     "rounds": 105, "parameters": 447_000, "cost": 112e6, "where": "Table I"},
    {"setting": "femnist", "arm": "avg", "rounds": 1100, "parameters": 447_000,
     "where": "Table I"},
    {"setting": "femnist", "arm": "rod", "rounds": 1015, "parameters": 447_000, "cost": 907e6,
     "where": "Table I"},
]  # fmt: skip
EFFORT: dict[str, Any] = {"baselines": ["avg", "rod"], "contenders": ["disk"], "printed": PRINTED}
CLAIM: dict[str, Any] = {
    "name": "cheaper", "says": "Less communication.", "source": "Nobody 2023", "better": "disk",
    "on": ["femnist"], "score": "times-cheaper", "kind": "above", "margin": 1.0,
}  # fmt: skip
SUITE: dict[str, Any] = {
    "title": "Weighted samples",
    "source": "Nobody 2023",
    "question": "Do weights help?",
    "defaults": {"federation": {"clients": 4}, "model": "logistic", "train": {"rounds": 2}},
    "scales": {"smoke": {"seeds": 3}},
    "settings": [{"name": "femnist", "label": "Writers"}, {"name": "mnist", "label": "Noise"}],
    "arms": [
        {"name": "disk", "label": "FedDisk", "method": "fedavg"},
        {"name": "avg", "label": "FedAvg", "method": "fedavg"},
        {"name": "rod", "label": "FedROD", "method": "fedavg"},
        {"name": "alone", "label": "Alone", "method": "local", "role": "reference"},
    ],
    "effort": EFFORT,
    "boxes": ["avg", "disk"],
}


def suite(**changes: Any) -> Suite:
    return parse_suite({**SUITE, **changes}, "weights")


def measured(
    folder: Path,
    curve: Mapping[int, float],
    *,
    prepared: int = 0,
    gaps: Sequence[float] = (-0.1, 0.1),
    metric: str = "accuracy",
    tells: bool = True,
) -> Measured:
    """A finished run of clients that lie so far from the curve, with ten parameters a round.

    ``prepared`` rounds of forty parameters come before.
    """
    rows = [
        Row("main", number, "global", "seen", f"c{k}", "none", "test", metric, value + gap, 9)
        for number, value in curve.items()
        for k, gap in enumerate(gaps)
    ]
    last = max(curve)
    # Four bytes a parameter and client, each way.
    records = [
        RoundRecord(stage, number, len(gaps), 0.1, 4 * size * len(gaps), 4 * size * len(gaps))
        for stage, rounds, size in (("density", prepared, 40), ("main", last, 10))
        for number in range(1, rounds + 1)
    ]
    scores = [
        {
            "at": at, "model": model, "on": on, "adapted": how, "split": split, "metric": name,
            **asdict(summarise([row.value for row in group])),
        }
        for at in ("last", "selected")
        for (model, on, how, split, name), group in by_group(
            row for row in rows if row.round == last
        ).items()
    ]  # fmt: skip
    stages = [{"name": "density", "parameters": 40}] * bool(prepared)
    result = {
        "primary_metric": metric, "primary_model": "global", "rounds": last, "scores": scores,
        "higher_is_better": metric == "accuracy", "bytes": {"up": 10**6, "down": 10**6},
        "failures": 0, "seconds": 1.0, "selected_round": last,
    }  # fmt: skip
    if tells:
        result["stages"] = [*stages, {"name": "main", "parameters": 10}]
    folder.mkdir(parents=True)
    (folder / "result.json").write_text(json.dumps(result))
    for name, lines in (("metrics", rows), ("rounds", records)):
        text = "".join(json.dumps(asdict(line)) + "\n" for line in lines)
        (folder / f"{name}.jsonl").write_text(text)
    return Measured(Run(folder))


AVG = [{1: 0.2, 5: 0.5, 10: 0.4}, {1: 0.2, 5: 0.5, 10: 0.4}, {1: 0.2, 5: 0.4, 10: 0.5}]
ROD = [{1: 0.3, 6: 0.6, 10: 0.5}, {1: 0.3, 6: 0.6, 10: 0.5}, {1: 0.3, 8: 0.6, 10: 0.5}]
DISK = [{1: 0.5, 2: 0.6, 10: 0.9}, {1: 0.5, 3: 0.6, 10: 0.9}, {1: 0.5, 4: 0.7, 10: 0.9}]
"""FedDisk reaches FedROD's 0.6 after 2, 3 and 4 rounds; two rounds of preparation come first.

FedAvg is best after 5, 5, 10 rounds, FedROD after 6, 6, 8: the cheapest take 100, 100, 160
numbers (2 * 10 a round), FedDisk 2 * (2 * 40 + 10 * rounds) = 200, 220, 240.
"""


def runs(
    folder: Path, disk: Sequence[Mapping[int, float]] = DISK, **changes: Any
) -> dict[tuple[str, str, int], Measured]:
    found = {
        ("femnist", arm, seed): measured(
            folder / f"{arm}{seed}", curve, prepared=2 if arm == "disk" else 0, **changes
        )
        for arm, curves in (("disk", disk), ("avg", AVG), ("rod", ROD))
        for seed, curve in enumerate(curves)
    }
    return with_rivals(suite(), found)


def test_contenders_are_held_against_the_best_baseline_and_baselines_against_themselves(
    tmp_path: Path,
) -> None:
    found = {(arm, seed): run.effort for (_, arm, seed), run in runs(tmp_path).items()}
    rounds = {key: None if e is None else e.rounds for key, e in found.items()}
    assert rounds == {
        ("avg", 0): 5, ("avg", 1): 5, ("avg", 2): 10,
        ("rod", 0): 6, ("rod", 1): 6, ("rod", 2): 8,
        ("disk", 0): 4, ("disk", 1): 5, ("disk", 2): 6,
    }  # fmt: skip
    disk = found["disk", 2]
    assert disk is not None
    assert (disk.prepared_rounds, disk.reached, disk.numbers, disk.bytes) == (2, True, 240, 960)


def test_times_cheaper_is_the_cheapest_baseline_over_the_contender(tmp_path: Path) -> None:
    found = runs(tmp_path)
    scores = [found["femnist", "disk", seed].score("times-cheaper") for seed in range(3)]
    assert scores == pytest.approx([100 / 200, 100 / 220, 160 / 240])
    assert math.isnan(found["femnist", "avg", 0].score("times-cheaper"))


def claim_on(found: Results, **changes: Any) -> tuple[str, str]:
    [claim] = suite(claims=[{**CLAIM, **changes}]).claims
    [finding] = judge(claim, found).findings
    return finding.outcome, finding.against[0].text


def test_less_communication_is_judged_by_the_interval_of_the_ratio(tmp_path: Path) -> None:
    found = runs(tmp_path)
    values = [100 / 200, 100 / 220, 160 / 240]
    mean, half = np.mean(values), student.ppf(0.975, 2) * np.std(values, ddof=1) / math.sqrt(3)
    text = f"{mean:.2f} [{mean - half:.2f}, {mean + half:.2f}]"
    assert claim_on(found) == ("not reproduced", text)
    assert claim_on(found, margin=0.5) == ("undecided", text)
    assert claim_on(found, margin=0.2) == ("reproduced", text)


def test_a_contender_that_never_gets_there_is_not_cheaper(tmp_path: Path) -> None:
    poor = [{1: 0.55, 10: 0.5}] * 3
    found = runs(tmp_path, poor)
    own = found["femnist", "disk", 0].effort
    assert own is not None
    assert (own.rounds, own.reached) == (3, False)
    # Two rounds of preparation, ten and one more, instead of the one to its own best.
    assert found["femnist", "disk", 0].score("times-cheaper") == pytest.approx(
        100 / (2 * (2 * 40 + 11 * 10))
    )
    text = "\n".join(effort_tables(suite(), ["femnist"], found))
    assert "| Writers | FedDisk | 2.0 ± 0.0 | 1.0 ± 0.0 | 3.0 ± 0.0 † |" in text
    assert "| 0 of 3 |" in text


def test_the_page_sets_rounds_parameters_and_costs_beside_the_sources(tmp_path: Path) -> None:
    lines = "\n".join(effort_tables(suite(), ["femnist", "mnist"], runs(tmp_path))).splitlines()
    # Deviation 1 over three seeds: 4.3027 / sqrt(3) = 2.48; of 5, 5, 10: 2.8868, so 7.17.
    assert (
        "| Writers | FedDisk | 2.0 ± 0.0 | 3.0 ± 2.5 | 5.0 ± 2.5 | 15 + 105 = 120 (Table I) |"
        in lines
    )
    assert "| Writers | FedAvg | – | 6.7 ± 7.2 | 6.7 ± 7.2 | 1100 (Table I) |" in lines
    assert "| Writers | FedDisk | 40 | 10 | 614,000 | 447,000 |" in lines
    assert "| Writers | FedROD | – | 10 | – | 447,000 |" in lines
    # Numbers 200, 220, 240: deviation 20, half 49.7; four bytes each.
    assert (
        "| Writers | FedDisk | 0.0002200 ± 0.0000497 | 0.0008800 ± 0.0001987 | 112 (112.29) |"
    ) in lines
    assert any(line.endswith("| (983.40) |") for line in lines)
    [ratio] = [line for line in lines if line.endswith("| 8.10 |")]
    assert ratio.startswith("| Writers | FedDisk | 0.54 ± 0.28 | 3 of 3 |")
    assert not any("Noise" in line for line in lines)


def test_runs_that_do_not_tell_their_parameters_still_have_rounds(tmp_path: Path) -> None:
    found = runs(tmp_path, tells=False)
    lines = "\n".join(effort_tables(suite(), ["femnist"], found)).splitlines()
    assert any(
        line.startswith("| Writers | FedDisk | 2.0 ± 0.0 | 3.0 ± 2.5 | 5.0 ± 2.5 |")
        for line in lines
    )
    assert "| Writers | FedDisk | – | – | 614,000 | 447,000 |" in lines
    assert draw_costs(suite(), ["femnist"], found, tmp_path) == {}
    assert claim_on(found)[0] == "not run"


def test_losses_are_counted_until_they_are_low_enough(tmp_path: Path) -> None:
    falling = {1: 2.0, 2: 1.0, 5: 0.5}
    found = with_rivals(
        suite(),
        {
            ("femnist", "disk", 0): measured(tmp_path / "disk", falling, metric="loss"),
            ("femnist", "avg", 0): measured(tmp_path / "avg", {1: 3.0, 4: 1.0}, metric="loss"),
        },
    )
    mine = found["femnist", "disk", 0].effort
    assert mine is not None
    assert (mine.rounds, mine.reached) == (2, True)


def test_costs_are_drawn_with_their_numbers_beside(tmp_path: Path) -> None:
    pictures = draw_costs(suite(), ["femnist", "mnist"], runs(tmp_path / "runs"), tmp_path)
    assert pictures == {"effort": tmp_path / "effort.png"}
    assert pictures["effort"].stat().st_size > 5000
    with open(tmp_path / "effort.csv") as file:
        rows = list(csv.DictReader(file))
    mine = [row for row in rows if row["arm"] == "disk"]
    assert [float(row["numbers"]) for row in mine] == [200, 220, 240]
    assert [float(row["bytes"]) for row in mine] == [800, 880, 960]
    assert [row["reached"] for row in rows if row["arm"] == "rod"] == ["False"] * 3
    assert draw_costs(suite(effort=None), ["femnist"], {}, tmp_path) == {}


def test_boxes_pool_the_clients_of_all_seeds_after_the_last_round(tmp_path: Path) -> None:
    about, found = suite(), runs(tmp_path / "runs")
    plan = [c for c in cells(about, "smoke") if (c.setting, c.arm, c.seed) in found]
    pictures = draw_boxes(about, plan, found, tmp_path)
    assert pictures == {"boxes": tmp_path / "boxes.png"}
    with open(tmp_path / "boxes.csv") as file:
        rows = list(csv.DictReader(file))
    values = {
        arm: sorted(float(row["score"]) for row in rows if row["arm"] == arm)
        for arm in {row["arm"] for row in rows}
    }
    assert values == {
        "avg": pytest.approx([0.3, 0.3, 0.4, 0.5, 0.5, 0.6]),
        "disk": pytest.approx([0.8, 0.8, 0.8, 1.0, 1.0, 1.0]),
    }
    assert draw_boxes(suite(boxes=[]), plan, found, tmp_path) == {}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"effort": {**EFFORT, "baselines": ["av"]}}, "effort: unknown arm 'av': did you mean"),
        ({"effort": {**EFFORT, "baselines": ["disk"]}}, "'disk' is a baseline and a contender"),
        ({"effort": {**EFFORT, "rivals": []}}, "unknown key 'rivals'"),
        (
            {"effort": {**EFFORT, "printed": [{**PRINTED[0], "setting": "femnst"}]}},
            "effort: unknown setting 'femnst': did you mean 'femnist'",
        ),
        (
            {"effort": {**EFFORT, "printed": [{**PRINTED[1], "preparation": 3}]}},
            "preparation and preparation_parameters go together",
        ),
        ({"boxes": ["disc"]}, "boxes: unknown arm 'disc': did you mean 'disk'"),
        ({"claims": [{**CLAIM, "better": "avg"}]}, "add 'avg' to effort.contenders"),
        ({"claims": [CLAIM], "effort": None}, "add 'disk' to effort.contenders"),
        (
            {"claims": [{**CLAIM, "kind": "better", "than": ["avg"]}]},
            "'times-cheaper' compares arms by itself: set kind to 'above'",
        ),
        (
            {"series": [{"name": "boxes", "label": "x", "axis": "x", "arms": ["avg"],
                         "settings": ["femnist", "mnist"], "at": [1, 2]}]},
            "series 'boxes': pages have another picture of that name",
        ),
    ],
)  # fmt: skip
def test_a_bad_suite_gets_one_clear_sentence(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        suite(**changes)


PARTS = '''
from fedskew.federate.recipe import Recipe, Stage


def prepared():
    """FedAvg after three rounds of a smaller model and two at each client alone."""
    from fedskew.methods.baselines import local

    density = Stage("density", Recipe(), rounds=3, model={"name": "logistic"})
    alone = Stage("local-density", local(), rounds=2, model={"name": "logistic"})
    return Recipe(prepares=(density, alone))
'''
DIGITS = """
title = "Prepared digits"
source = "Nobody 2023"
question = "Does preparing pay?"
boxes = ["avg", "prepared"]

[effort]
baselines = ["avg"]
contenders = ["prepared"]
[[effort.printed]]
setting = "digits"
arm = "avg"
rounds = 40
parameters = 1000
where = "Table I"

[defaults]
model = { name = "mlp", hidden = [8] }
federation.clients = 4
train.rounds = 4

[scales.smoke]
seeds = 2

[[settings]]
name = "digits"
label = "Skewed digits"

[[arms]]
name = "avg"
label = "FedAvg"
method = "fedavg"
[[arms]]
name = "prepared"
label = "Prepared FedAvg"
method = "prepared_parts:prepared"

[[claims]]
name = "cheaper"
says = "Preparing pays."
source = "Nobody 2023"
better = "prepared"
score = "times-cheaper"
kind = "above"
margin = 1.0
on = ["digits"]
"""
LOGISTIC, MLP = 64 * 10 + 10, 64 * 8 + 8 + 8 * 10 + 10


def test_a_suite_counts_what_its_runs_really_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "prepared_parts.py").write_text(PARTS)
    (tmp_path / "prepared.toml").write_text(DIGITS)
    monkeypatch.chdir(tmp_path)
    done = reproduce("prepared.toml", "smoke", "out", allow_code=True)
    with open("out/figures/prepared-smoke/effort.csv") as file:
        rows = {(row["arm"], row["seed"]): row for row in csv.DictReader(file)}
    for seed in ("0", "1"):
        plain, mine = rows["avg", seed], rows["prepared", seed]
        rounds = int(plain["rounds"])
        # The same main stage: it is as good as the baseline ever was when the baseline was.
        assert mine["reached"] == "True"
        assert (int(mine["prepared_rounds"]), int(mine["rounds"])) == (3, 3 + rounds)
        assert float(plain["numbers"]) == 2 * MLP * rounds
        assert float(plain["bytes"]) == 4 * 2 * MLP * rounds
        assert float(mine["numbers"]) == 2 * (3 * LOGISTIC + rounds * MLP)
        # The finished first stage is sent to every client once more.
        assert float(mine["bytes"]) == 4 * (float(mine["numbers"]) + LOGISTIC)
    text = done.page.read_text()
    assert "### Effective communication" in text
    assert "![Effective communication](figures/prepared-smoke/effort.png)" in text
    assert "![Scores of all clients](figures/prepared-smoke/boxes.png)" in text
    assert f"| Skewed digits | Prepared FedAvg | {LOGISTIC} | {MLP} | – | – |" in text
    [verdict] = done.verdicts
    found = [float(rows["avg", s]["numbers"]) / float(rows["prepared", s]["numbers"]) for s in "01"]
    assert verdict.findings[0].against[0].difference.mean == pytest.approx(sum(found) / 2)
