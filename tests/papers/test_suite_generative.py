"""Suites of generative models: losses of the global model, samples, weights, divergence."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure
from scipy.stats import entropy, spearmanr
from scipy.stats import t as student

from fedskew.api import run
from fedskew.errors import ConfigError
from fedskew.federate.metrics import Row, by_group, summarise
from fedskew.models import seeded
from fedskew.papers.claims import Claim
from fedskew.papers.clients import Data, data_of_settings
from fedskew.papers.figure import draw, draw_series, mean_curve, too_tall
from fedskew.papers.format import Suite, parse_suite
from fedskew.papers.generative_figures import (
    draw_divergence,
    draw_portraits,
    draw_samples,
    shown_as,
)
from fedskew.papers.grid import cells
from fedskew.papers.machine import Provenance
from fedskew.papers.measure import Measured
from fedskew.papers.page import Reproduction, page
from fedskew.papers.scores import ScoreName
from fedskew.papers.suite import find_suite, reproduce
from fedskew.papers.verdict import Results, compared, judge
from fedskew.runs.experiment import Run, make_federation
from fedskew.store import save_tensors
from fedskew.views.generative import prior_samples

SUITE: dict[str, Any] = {
    "title": "Autoencoders",
    "source": "Nobody 2024",
    "question": "Does weighing help?",
    "headline": "central",
    "defaults": {
        "federation": {"clients": 10, "partition": "one-class", "normalise": "unit"},
        "model": {"name": "beta-vae", "hidden": [4]}, "train": {"rounds": 4},
    },
    "scales": {"smoke": {"seeds": 2}},
    "settings": [{"name": "one", "label": "One class"}, {"name": "two", "label": "Two classes"}],
    "arms": [
        {"name": "new", "label": "Weighed", "method": "vae"},
        {"name": "old", "label": "Plain", "method": "vae"},
    ],
}  # fmt: skip
CLAIM: dict[str, Any] = {
    "name": "c", "says": "It helps.", "source": "Nobody 2024", "better": "new", "than": "old",
    "on": ["one"], "score": "central", "at": "last", "at_why": "as printed",
}  # fmt: skip
LOSSES = (9.0, 5.0, 6.0, 3.0)
"""The global model's loss on the central test set, round by round."""


def suite(**changes: Any) -> Suite:
    return parse_suite({**SUITE, **changes}, "vaes")


def claim(**changes: Any) -> Claim:
    return Claim.model_validate({**CLAIM, **changes})


def central(metric: str, value: float, at: int = 4, **changes: str) -> Row:
    names = {"model": "global", "client": "", **changes}
    return Row("main", at, names["model"], "central", names["client"], "none", "test", metric,
               value, 9)  # fmt: skip


def server(metric: str, values: Sequence[float], at: int = 4) -> list[Row]:
    return [
        Row("main", at, "personal", "seen", str(k), "none", "server", metric, value, 0)
        for k, value in enumerate(values)
    ]


def measured(
    folder: Path,
    losses: Sequence[float] = LOSSES,
    rows: Sequence[Row] = (),
    clients: Mapping[str, float] | None = None,
    selected: int = 2,
    metric: str = "loss",
) -> Measured:
    """A finished run on disk with these central losses and rows, summed up as runs do it."""
    last = max(len(losses), 1)
    every = [central(metric, value, at) for at, value in enumerate(losses, 1)]
    every += [
        Row("main", at, "global", "seen", name, "none", "test", metric, value, 9)
        for at in range(1, last + 1)
        for name, value in (clients or {"0": 7.0, "1": 9.0}).items()
    ]
    # What another stage measured is not this run's score.
    every.append(Row("baseline", last, "global", "central", "", "none", "test", "loss", 99.0, 9))
    every += rows
    scores = [
        {
            "at": at, "round": number, "model": model, "on": on, "adapted": how, "split": split,
            "metric": name, **asdict(summarise([row.value for row in group])),
        }
        for at, number in (("last", last), ("selected", selected))
        for (model, on, how, split, name), group in by_group(
            row for row in every if row.round == number and row.stage == "main"
        ).items()
    ]  # fmt: skip
    folder.mkdir(parents=True)
    result = {
        "primary_metric": metric, "primary_model": "global", "rounds": last, "scores": scores,
        "selected_round": selected, "higher_is_better": metric == "accuracy",
        "bytes": {"up": 10**6, "down": 10**6}, "failures": 0, "seconds": 1.0,
    }  # fmt: skip
    (folder / "result.json").write_text(json.dumps(result))
    lines = [json.dumps(row.as_dict()) for row in every]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    return Measured(Run(folder), "central")


def grid(folder: Path, **arms: Sequence[float]) -> Results:
    """Runs on setting one whose last central losses are these, seed by seed."""
    return {
        ("one", arm, seed): measured(folder / f"{arm}{seed}", (*LOSSES[:3], value))
        for arm, values in arms.items()
        for seed, value in enumerate(values)
    }


GLOBAL_AND_OWN = [
    central("reconstruction", 2.5), central("legacy", 0.0031), central("frechet", 40.0),
    central("cas", 0.75), central("precision", 0.5), central("recall", 0.25),
    central("cas", 0.1, model="personal"),
    central("loss", 4.0, model="personal", client="a"),
    central("loss", 6.0, model="personal", client="b"),
    central("loss", 99.0, model="personal"),
    central("ensemble_loss", 2.0, model="personal"),
    Row("main", 4, "global", "seen", "a", "none", "test", "reconstruction", 7.0, 10),
    Row("main", 4, "global", "seen", "b", "none", "test", "reconstruction", 8.0, 10),
]  # fmt: skip


@pytest.mark.parametrize(
    ("score", "value"),
    [
        ("central", 3.0), ("first", 9.0), ("clients", 8.0), ("reconstruction", 2.5),
        ("legacy", 0.0031), ("frechet", 40.0), ("cas", 0.75), ("precision", 0.5),
        ("recall", 0.25), ("own-central", 5.0), ("ensemble", 2.0),
        ("own-reconstruction", 7.5),
    ],
)  # fmt: skip
def test_central_scores_are_those_of_the_global_model(
    score: ScoreName, value: float, tmp_path: Path
) -> None:
    assert measured(tmp_path / "run", rows=GLOBAL_AND_OWN).score(score) == pytest.approx(value)


def test_without_a_global_model_the_clients_samples_are_judged_together(tmp_path: Path) -> None:
    rows = [
        central("cas", 0.6, model="personal"),
        central("cas", 0.2, model="personal", client="a"),
    ]
    run = measured(tmp_path / "run", losses=(), rows=[*rows], selected=1)
    assert math.isnan(run.score("cas"))  # measured at round 4, but the run had one
    rows = [central("cas", row.value, at=1, model="personal", client=row.client) for row in rows]
    run = measured(tmp_path / "again", losses=(), rows=rows, selected=1)
    assert run.score("cas") == 0.6
    assert math.isnan(run.score("central"))
    assert math.isnan(run.score("first"))


def test_each_score_has_its_own_round(tmp_path: Path) -> None:
    rows = [central("cas", 0.5), central("cas", 0.25, at=2), *server("weight", [0.5, 0.5])]
    rows += server("weight", [1.0, 0.0], at=2)
    run = measured(tmp_path / "run", rows=rows)
    assert (run.score("cas"), run.score("cas", "selected")) == (0.5, 0.25)
    assert (run.score("kept"), run.score("kept", "selected")) == (2, 1)
    assert run.score("central", "selected") == 5.0


def test_entropy_and_number_of_weights(tmp_path: Path) -> None:
    weights = [0.5, 0.3, 0.2, 0.0]
    run = measured(tmp_path / "run", rows=server("weight", weights))
    assert run.score("weight-entropy") == pytest.approx(entropy(weights) / math.log(4))
    assert run.score("kept") == 3
    equal = measured(tmp_path / "equal", rows=server("weight", [0.25] * 4))
    assert equal.score("weight-entropy") == pytest.approx(1.0)
    one = measured(tmp_path / "one", rows=server("weight", [0.0, 1.0, 0.0]))
    assert (one.score("weight-entropy"), one.score("kept")) == (0.0, 1)


def test_a_client_that_was_not_asked_has_no_weight(tmp_path: Path) -> None:
    clients = dict.fromkeys("abcd", 1.0)
    run = measured(tmp_path / "run", rows=server("weight", [0.5, 0.5]), clients=clients)
    assert run.score("kept") == 2
    assert run.score("weight-entropy") == pytest.approx(0.5)  # log 2 / log 4


def diverging(*means: float) -> list[Row]:
    """Two entries of two clients whose mean is this, round by round from the first."""
    rows = []
    for at, mean in enumerate(means, 1):
        rows += server("divergence encoder.0.weight", [mean - 0.5, mean + 0.3], at)
        rows += server("divergence decoder.0.weight", [mean - 0.1, mean + 0.3], at)
        rows += server("discrepancy", [100.0, 100.0], at)
    return rows


def test_divergence_is_the_mean_over_clients_and_entries(tmp_path: Path) -> None:
    run = measured(tmp_path / "run", rows=diverging(4.0, 3.0, 2.0, 1.0))
    assert run.score("divergence") == pytest.approx(1.0)
    assert run.score("divergence", "selected") == pytest.approx(3.0)


def test_follows_ranks_divergence_against_the_change_of_the_loss(tmp_path: Path) -> None:
    losses = (9.0, 5.0, 6.0, 3.0, 3.5, 3.4)
    apart = (50.0, 1.0, 4.0, 2.0, 3.0, 2.5)
    run = measured(tmp_path / "run", losses, diverging(*apart))
    # Changes -4, 1, -3, 0.5, -0.1 from the second round on: the first has none before it.
    expected = spearmanr([1.0, 4.0, 2.0, 3.0, 2.5], [-4.0, 1.0, -3.0, 0.5, -0.1]).statistic
    assert run.score("follows") == pytest.approx(expected)
    assert expected == pytest.approx(1.0)
    against = measured(tmp_path / "against", losses, diverging(1, 4, 1, 3, 2, 2.5))
    assert against.score("follows") == pytest.approx(-1.0)


@pytest.mark.parametrize("apart", [(1.0, 1.0, 1.0, 1.0), (2.0,), ()])
def test_what_never_changes_or_is_too_short_follows_nothing(
    apart: Sequence[float], tmp_path: Path
) -> None:
    losses = LOSSES if len(apart) != 1 else LOSSES[:1]
    run = measured(tmp_path / "run", losses, diverging(*apart), selected=1)
    assert math.isnan(run.score("follows"))


def test_directions(tmp_path: Path) -> None:
    run = measured(tmp_path / "run")
    rising: list[ScoreName] = ["cas", "precision", "recall", "divergence", "follows", "kept"]
    falling: list[ScoreName] = ["frechet", "legacy", "reconstruction", "ensemble", "own-central"]
    assert all(run.higher_is_better(score) for score in [*rising, "weight-entropy", "entropy"])
    assert not any(run.higher_is_better(s) for s in [*falling, "first", "central", "clients"])
    accuracy = measured(tmp_path / "accuracy", metric="accuracy")
    assert accuracy.higher_is_better("first")
    assert not accuracy.higher_is_better("frechet")


def test_a_lower_loss_and_a_higher_share_speak_for_a_claim(tmp_path: Path) -> None:
    def runs(arm: str, loss: float, share: float) -> dict[tuple[str, str, int], Measured]:
        rows = [central("cas", share), central("frechet", loss)]
        return {("one", arm, seed): measured(tmp_path / f"{arm}{seed}", (9.0, 8.0, 7.0, loss), rows)
                for seed in range(2)}  # fmt: skip

    both = {**runs("new", 3.0, 0.75), **runs("old", 3.5, 0.5)}
    found = {
        score: judge(claim(score=score), both).findings[0].against[0]
        for score in ("central", "cas", "frechet")
    }
    assert {score: c.difference.mean for score, c in found.items()} == pytest.approx(
        {"central": 0.5, "cas": 0.25, "frechet": 0.5}
    )
    assert found["central"].text == "+0.5000 [+0.5000, +0.5000]"
    assert found["cas"].text == "+25.00 [+25.00, +25.00] points"


def test_a_curve_follows_the_headline(tmp_path: Path) -> None:
    run = measured(tmp_path / "run")
    assert run.curve == {1: 9.0, 2: 5.0, 3: 6.0, 4: 3.0}
    assert Measured(run.run).curve == {1: 8.0, 2: 8.0, 3: 8.0, 4: 8.0}
    assert run.score("rounds", target=5.5) == 2
    words = compared(suite(), claim(score="rounds", target=5.5))
    assert words.startswith("rounds until the global model's score on the central test set reaches")
    runs = {("one", "new", 0): run, ("one", "new", 1): measured(tmp_path / "b", (1.0, 2.0))}
    assert mean_curve(runs, "one", "new") == {1: 5.0, 2: 3.5}


def test_a_number_can_be_claimed_to_lie_above_a_bar(tmp_path: Path) -> None:
    runs = {
        ("one", "new", seed): measured(tmp_path / f"r{seed}", rows=server("weight", weights))
        for seed, weights in enumerate(([0.5, 0.5, 0.0], [0.4, 0.4, 0.2], [0.9, 0.1, 0.0]))
    }
    above = {"kind": "above", "than": [], "score": "kept"}
    # Kept 2, 3, 2: mean 7/3, standard deviation 1/sqrt(3), so half is 4.3027 / 3 = 1.4342.
    half = student.ppf(0.975, 2) / 3
    [finding] = judge(claim(**above), runs).findings
    assert finding.against[0].difference.mean == pytest.approx(7 / 3)
    assert finding.against[0].difference.half == pytest.approx(half)
    assert finding.outcome == "reproduced"
    assert finding.against[0].text == "2.33 [0.90, 3.77]"
    assert judge(claim(**above, margin=1.0), runs).findings[0].outcome == "undecided"
    assert judge(claim(**above, margin=4.0), runs).findings[0].outcome == "not reproduced"
    assert judge(claim(**above, on=["two"]), runs).text == "not run at this scale"


def test_the_score_itself_is_not_turned_where_less_is_better(tmp_path: Path) -> None:
    runs = grid(tmp_path, new=[3.0, 3.0625])
    [finding] = judge(claim(kind="above", than=[], margin=2.0), runs).findings
    assert (finding.outcome, finding.against[0].text) == ("reproduced", "3.031 [2.634, 3.428]")
    [same] = judge(
        claim(kind="above", than=[], margin=2.0), grid(tmp_path / "b", new=[3.0, 3.0])
    ).findings
    assert same.text == "undecided (all seeds gave the same number)"


def test_a_claim_about_a_round_looks_at_that_round(tmp_path: Path) -> None:
    runs = {("one", arm, seed): measured(tmp_path / f"{arm}{seed}", (9.0, second + seed, 1.0))
            for arm, second in (("new", 4.0), ("old", 6.5)) for seed in range(2)}  # fmt: skip
    about = claim(at=2, at_why="the round of the text")
    [finding] = judge(about, runs).findings
    assert finding.against[0].difference.mean == pytest.approx(2.5)
    assert "central test set, round 2 (the round of the text)." in compared(suite(), about)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "above"}, "kind 'above' is about one arm: leave out than, control and beyond"),
        ({"than": []}, "kind 'better' compares arms: name the others in than"),
        ({"score": "fid"}, r"claims\.0\.score"),
    ],
)
def test_a_bad_claim_gets_one_clear_sentence(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        suite(claims=[{**CLAIM, **changes}])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"headline": "first"}, "headline"),
        ({"clients_of": ["now"]}, "clients_of: unknown arm 'now': did you mean 'new'"),
        ({"pictures": ["now"]}, "pictures: unknown arm 'now'"),
        ({"follows": "now"}, "follows: unknown arm 'now'"),
        (
            {"client_numbers": [{"setting": "on", "arm": "new", "where": "T", "values": {"3": 1}}]},
            "client_numbers: unknown setting 'on': did you mean 'one'",
        ),
    ],
)
def test_a_bad_suite_gets_one_clear_sentence(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=rf"^suite 'vaes': {message}"):
        suite(**changes)


def written(about: Suite, runs: Results, data: Mapping[str, Data] | None = None) -> list[str]:
    """The page's lines."""
    facts = Reproduction(
        suite=about, scale="smoke", command="fedskew reproduce vaes", fallback=None,
        plan=tuple(c for c in cells(about, "smoke") if (c.setting, c.arm, c.seed) in runs),
        results=runs, verdicts=[judge(c, runs) for c in about.claims], figures={}, series={},
        provenance=Provenance("1", "abc", 2, "chip", "1 GiB", "3", {"torch": "2"}),
        wall_seconds=1.0,
        data=data or {},
    )  # fmt: skip
    return page(facts).splitlines()


def test_the_table_begins_with_the_central_test_and_leaves_out_empty_columns(
    tmp_path: Path,
) -> None:
    runs = dict(grid(tmp_path, new=[3.0, 3.5], old=[4.0, 4.0]))
    rows = [central("cas", 0.5), *server("weight", [0.75, 0.25, 0.0])]
    runs["one", "new", 0] = measured(tmp_path / "a", (9.0, 5.0, 6.0, 3.0), rows)
    runs["one", "new", 1] = measured(tmp_path / "b", (9.0, 5.0, 6.0, 3.5), rows)
    lines = written(suite(), runs)
    first = lines.index("### One class")
    assert lines[first + 2] == (
        "| arm | role | central test | selected round | first round | clients' own tests "
        "| worst client | CAS | weight entropy | clients kept | sent (MB) |"
    )
    # 3.0 and 3.5: 12.7062 * 0.25 = 3.177. Entropy of 3:1 over log 3: 0.5623 / 1.0986 = 0.51.
    assert lines[first + 4] == (
        "| Weighed | method | 3.250 ± 3.177 | 5.000 ± 0.000 | 9.000 ± 0.000 | 8.000 ± 0.000 "
        "| 7.000 ± 0.000 | 50.00 ± 0.00 | 0.51 ± 0.00 | 2.0 ± 0.0 | 2.0 |"
    )
    assert lines[first + 5].endswith("| – | – | – | 2.0 |")
    assert any(line.startswith("The loss (lower is better), unless") for line in lines)
    explained = [line for line in lines if line.startswith("- ")]
    assert [line.partition(":")[0] for line in explained] == [
        "- CAS", "- weight entropy", "- clients kept",
    ]  # fmt: skip


def test_a_page_about_clients_has_its_old_columns(tmp_path: Path) -> None:
    lines = written(suite(headline="clients"), grid(tmp_path, new=[3.0], old=[4.0]))
    first = lines.index("### One class")
    assert lines[first + 2] == (
        "| arm | role | last round | selected round | worst client | fine-tuned | central test "
        "| sent (MB) |"
    )
    assert any(line.startswith("Mean over clients on each client's own") for line in lines)


def test_arms_without_a_headline_score_are_not_called_the_same(tmp_path: Path) -> None:
    runs = {("one", arm, 0): measured(tmp_path / arm, (), selected=1) for arm in ("new", "old")}
    assert not any("The same to the last digit" in line for line in written(suite(), runs))
    alike = written(suite(), grid(tmp_path / "alike", new=[3.0], old=[3.0]))
    assert "The same to the last digit, whatever the seed: new, old." in alike


def test_the_page_says_which_number_lies_above(tmp_path: Path) -> None:
    about = suite(claims=[{**CLAIM, "kind": "above", "than": [], "margin": 2.0}])
    lines = written(about, grid(tmp_path, new=[3.0, 3.0625]))
    assert (
        "Compared: score of the global model on the central test set, last round (as printed); "
        "itself above 2."
    ) in lines
    assert "| setting | score of `new` | p (Holm) | outcome |" in lines
    # Mean 3.03125, error 0.03125, so 12.7062 * 0.03125 = 0.3971 and t = 33 with one degree:
    # p = 1 - 2 / pi * atan(33).
    assert 1 - 2 / math.pi * math.atan(33) == pytest.approx(0.0193, abs=5e-5)
    assert "| One class | 3.031 [2.634, 3.428] | 0.019 | reproduced |" in lines
    assert any("A claim about one number rests on" in line for line in lines)


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


def axes_of(about: Suite, runs: Results, folder: Path, drawn: list[Figure]) -> list[Any]:
    """The panels of the one picture of setting one."""
    plan = [c for c in cells(about, "smoke") if (c.setting, c.arm, c.seed) in runs]
    draw(about, plan, runs, folder)
    [figure] = drawn
    return list(figure.axes)


def test_the_picture_shows_the_headline(tmp_path: Path, drawn: list[Figure]) -> None:
    runs = {
        ("one", "new", 0): measured(tmp_path / "new"),
        ("one", "old", 0): measured(tmp_path / "old", (), selected=1),
    }
    left, right = axes_of(suite(), runs, tmp_path / "figures", drawn)
    axis = "loss, global model, central test set"
    assert left.get_xlabel() == f"{axis}, last round, 95 % interval over seeds"
    assert right.get_ylabel() == axis
    # Who has no global model is in neither panel.
    assert [text.get_text() for text in left.get_yticklabels()] == ["Weighed"]
    [line] = right.get_lines()
    assert list(line.get_ydata()) == list(LOSSES)
    with open(tmp_path / "figures" / "one.csv") as file:
        assert [row["mean"] for row in csv.DictReader(file)] == ["3.0", "nan"]


def test_a_curve_far_above_the_others_is_cut_off(tmp_path: Path, drawn: list[Figure]) -> None:
    runs = {
        ("one", "new", 0): measured(tmp_path / "new"),
        ("one", "old", 0): measured(tmp_path / "old", (5e6, 5.0, 4.0, 3.0)),
    }
    right = axes_of(suite(), runs, tmp_path / "figures", drawn)[1]
    assert right.get_ylim() == pytest.approx((2.7, 9.3))
    assert right.get_ylabel().endswith("\n(cut off: Plain)")


def test_a_higher_accuracy_is_never_cut_off(tmp_path: Path, drawn: list[Figure]) -> None:
    runs = {
        ("one", "new", 0): measured(tmp_path / "new", (0.1, 0.11), metric="accuracy"),
        ("one", "old", 0): measured(tmp_path / "old", (0.1, 0.9), metric="accuracy"),
    }
    right = axes_of(suite(), runs, tmp_path / "figures", drawn)[1]
    assert right.get_ylim()[1] > 0.9
    assert "cut off" not in right.get_ylabel()


@pytest.mark.parametrize(
    ("curves", "tall"),
    [
        ({"a": [3.0, 2.0], "b": [21.9, 2.0]}, []),
        ({"a": [3.0, 2.0], "b": [22.1, 2.0]}, ["b"]),
        ({"a": [3.0, 2.0], "b": [3.0, 2.0], "c": [1e6, 1.0], "d": [1e9, math.nan]}, ["c", "d"]),
        ({"a": [3.0, 2.0], "b": [math.inf, 2.0]}, ["b"]),
        ({"a": [3.0, 3.0], "b": [90.0, 2.0]}, []),
        ({"a": [3.0, 2.0], "b": []}, []),
        ({}, []),
    ],
)
def test_which_curves_are_too_tall(curves: dict[str, list[float]], tall: list[str]) -> None:
    assert too_tall({arm: dict(enumerate(c)) for arm, c in curves.items()})[0] == tall


def test_a_series_shows_the_first_and_the_last_central_score(tmp_path: Path) -> None:
    series = {"name": "by-c", "label": "Classes", "axis": "classes", "settings": ["one", "two"],
              "at": [1, 2], "arms": ["new"]}  # fmt: skip
    runs = {
        (setting, "new", 0): measured(tmp_path / setting, (first, 1.0))
        for setting, first in (("one", 9.0), ("two", 4.0))
    }
    draw_series(suite(series=[series]), runs, tmp_path)
    lines = (tmp_path / "by-c.csv").read_text().splitlines()[1:]
    assert [line.split(",")[1:3] + line.split(",")[4:5] for line in lines] == [
        ["central", "1.0", "1.0"], ["central", "2.0", "1.0"],
        ["first", "1.0", "9.0"], ["first", "2.0", "4.0"],
    ]  # fmt: skip


NUMBERS = {"setting": "one", "arm": "new", "where": "Table 1", "values": {"3": 0.0017, "7": 0.5}}


def test_clients_go_by_the_class_they_have_most_of() -> None:
    about = suite(clients_of=["new"])
    plan = cells(about, "smoke")
    data = data_of_settings(about, plan, None)
    assert list(data) == ["one", "two"]
    federation = make_federation(plan[0].config)
    for client in federation.clients:
        labels = federation.y[client.train].tolist()
        most = max(set(labels), key=labels.count)
        assert data["one"].majority[client.name] == federation.class_names[most]
    assert sorted(data["one"].majority.values()) == [str(digit) for digit in range(10)]


def test_real_images_show_every_class_once() -> None:
    about = suite(pictures=["new"])
    plan = cells(about, "smoke")
    federation = make_federation(plan[0].config)
    images = data_of_settings(about, plan, None)["one"].images
    rows = federation.central_test
    for label, image in enumerate(images):
        same = federation.x[rows][federation.y[rows] == label]
        assert torch.equal(image, same[0])
    assert len(images) == 10
    assert data_of_settings(suite(), plan, None) == {}


def test_every_client_has_its_own_column(tmp_path: Path) -> None:
    data = Data({"c0": "Sneaker", "c1": "Bag", "c2": "bag"}, torch.zeros(0))
    about = suite(
        clients_of=["new"], client_numbers=[{**NUMBERS, "values": {"BAG": 0.0017, "Coat": 1.0}}]
    )
    runs = {}
    for seed, shift in enumerate((0.0, 0.5)):
        legacy = [
            Row("main", 4, "global", "seen", name, "none", "test", "legacy", value, 9)
            for name, value in (("c0", 0.003), ("c1", 0.004))
        ]
        scores = {"c0": 3.0 + shift, "c1": 500.0, "c2": 7.0}
        runs["one", "new", seed] = measured(tmp_path / str(seed), LOSSES, legacy, scores)
    lines = written(about, runs, {"one": data})
    start = lines.index("#### Every client's own score")
    assert lines[start + 2].startswith("The loss of each client's main model on the client's own")
    assert lines[start + 4 :][:5] == [
        "| arm | number | Sneaker | Bag | bag |",
        "|---|---|---|---|---|",
        # 12.7062 * 0.25 = 3.17655.
        "| Weighed | loss | 3.250 ± 3.177 | 500.00 ± 0.00 | 7.000 ± 0.000 |",
        "| Weighed | legacy | 0.003000 ± 0.000000 | 0.004000 ± 0.000000 | – |",
        "| Weighed | the source's (Table 1) | – | 0.0017 | 0.0017 |",
    ]


def test_a_class_the_data_do_not_have_is_refused_before_anything_runs() -> None:
    about = suite(clients_of=["new"], client_numbers=[{**NUMBERS, "values": {"33": 1.0}}])
    message = "^suite 'vaes': client_numbers: unknown class of digits '33'"
    with pytest.raises(ConfigError, match=message):
        data_of_settings(about, cells(about, "smoke"), None)
    assert list(data_of_settings(about, cells(about, "smoke"), None, fallback=True)) == [
        "one",
        "two",
    ]


def saved(run: Measured, name: str = "global", model: str = "beta-vae") -> None:
    """Put a model into a run's folder as runs do it."""
    knobs = {"hidden": [3]}
    module = seeded(model, (1, 4, 4), 2, seed=1, **knobs)
    path = run.run.path / "models" / "last" / f"{name}.safetensors"
    path.parent.mkdir(parents=True)
    save_tensors(path, dict(module.state_dict()))
    about = {"model": {"name": model, "knobs": knobs}, "sample_shape": [1, 4, 4], "classes": 2}
    result = json.loads((run.run.path / "result.json").read_text())
    (run.run.path / "result.json").write_text(json.dumps({**result, **about}))
    method = {"method": "fedavg" if model == "mlp" else "vae"}
    (run.run.path / "config.json").write_text(json.dumps({"config": method}))


def test_samples_from_the_prior_are_shown_in_the_range_of_real_images(
    tmp_path: Path, drawn: list[Figure]
) -> None:
    arms = [{"name": name, "label": name.title(), "method": "vae"} for name in
            ("new", "alone", "other", "absent")]  # fmt: skip
    about = suite(arms=arms, pictures=["other", "alone", "new", "absent"])
    runs = {("one", arm, 0): measured(tmp_path / arm) for arm in ("new", "alone", "other")}
    saved(runs["one", "new", 0])
    saved(runs["one", "alone", 0], "personal/c0")
    saved(runs["one", "other", 0], model="mlp")
    real = torch.rand(3, 1, 4, 4, generator=torch.Generator().manual_seed(0)) * 4 - 2
    data = {"one": Data({}, real), "two": Data({}, real)}
    pictures = draw_samples(about, runs, data, tmp_path)
    assert pictures == {"one": tmp_path / "one-samples.png"}
    assert pictures["one"].read_bytes().startswith(b"\x89PNG")
    panels = drawn[0].axes
    labels = [axes.get_ylabel() for axes in panels if axes.get_ylabel()]
    assert labels == ["New"]
    expected = prior_samples(runs["one", "new", 0].run.model(round="last"), 3, 0)
    low, high = float(real.min()), float(real.max())
    for place, axes in enumerate(panels):
        image = expected[place, 0]
        shown = torch.as_tensor(axes.get_images()[0].get_array())
        torch.testing.assert_close(shown, ((image - low) / (high - low)).clamp(0, 1))


def test_images_are_shown_in_the_range_of_the_real_ones() -> None:
    real = torch.tensor([-1.0, 3.0]).reshape(1, 2, 1, 1)
    shown = shown_as(torch.tensor([-5.0, 1.0]).reshape(1, 2, 1, 1), real)
    assert shown.shape == (1, 1, 1, 2)
    assert shown.flatten().tolist() == [0.0, 0.5]


def test_features_have_no_pictures(tmp_path: Path) -> None:
    runs = {("one", "new", 0): measured(tmp_path / "new")}
    saved(runs["one", "new", 0])
    flat = {"one": Data({}, torch.zeros(3, 16))}
    assert draw_samples(suite(pictures=["new"]), runs, flat, tmp_path) == {}


def test_divergence_is_drawn_beside_the_loss_without_biases(tmp_path: Path) -> None:
    rows = diverging(4.0, 3.0, 2.0, 1.0) + server("divergence decoder.0.bias", [8.0], at=1)
    runs = {
        ("one", "new", 0): measured(tmp_path / "new", rows=rows),
        ("two", "new", 0): measured(tmp_path / "none"),
    }
    pictures = draw_divergence(suite(follows="new"), runs, tmp_path)
    assert pictures == {"one": tmp_path / "one-divergence.png"}
    with open(tmp_path / "one-divergence.csv") as file:
        lines = {(row["what"], int(row["round"])): float(row["value"])
                 for row in csv.DictReader(file)}  # fmt: skip
    # Entries of the encoder are 0.1 below the mean, those of the decoder as much above.
    expected = {("encoder.0.weight", n): 4.9 - n for n in range(1, 5)}
    expected |= {("decoder.0.weight", n): 5.1 - n for n in range(1, 5)}
    expected |= {("central loss", n): LOSSES[n - 1] for n in range(1, 5)}
    assert lines == pytest.approx(expected)
    assert draw_divergence(suite(), runs, tmp_path) == {}


TOML = """
title = "Toy autoencoders"
source = "Nobody 2024"
question = "Does anything help?"
headline = "central"
clients_of = ["avg", "alone"]
pictures = ["avg", "alone"]
follows = "avg"

[defaults.federation]
normalise = "unit"
samples = 200
partition = "one-class"
[defaults.model]
name = "beta-vae"
hidden = [8]
[defaults.train]
rounds = 4
optimiser = "adam"
lr = 0.003

[scales.smoke]
seeds = 2

[[settings]]
name = "one"
label = "One digit a client"

[[arms]]
name = "avg"
label = "FedAvg"
method = { name = "vae", divergence = true }
[[arms]]
name = "alone"
label = "Alone"
role = "reference"
method = { name = "vae", base = "local" }

[[client_numbers]]
setting = "one"
arm = "avg"
where = "Table 1"
values = { "3" = 0.0017 }

[[claims]]
name = "spikes"
says = "The loss rises where clients diverge."
source = "Nobody 2024"
better = "avg"
kind = "above"
score = "follows"
on = ["one"]
"""


def test_a_generative_suite_runs_from_file_to_page(tmp_path: Path) -> None:
    (tmp_path / "toy.toml").write_text(TOML)
    done = reproduce(str(tmp_path / "toy.toml"), "smoke", tmp_path / "out")
    lines = done.page.read_text().splitlines()
    assert "nan" not in "\n".join(lines)
    for picture in ("one", "one-divergence", "one-samples"):
        assert f"![One digit a client](figures/toy-smoke/{picture}.png)" in lines
        assert (tmp_path / "out" / "figures" / "toy-smoke" / f"{picture}.png").is_file()
    [verdict] = done.verdicts
    assert verdict.findings[0].against[0].difference.n == 2
    start = lines.index("#### Every client's own score")
    heads = lines[start + 4].split(" | ")
    printed = next(line for line in lines if "the source's (Table 1)" in line).split(" | ")
    assert [head for head, text in zip(heads, printed, strict=True) if text == "0.0017"] == ["3"]
    # A finished suite is told again from its runs and data alone.
    again = reproduce(str(tmp_path / "toy.toml"), "smoke", tmp_path / "out").page.read_text()
    assert again.partition("## Made with")[0] == "\n".join(lines).partition("## Made with")[0]


def test_figures_of_single_runs_come_to_the_page(tmp_path: Path) -> None:
    shown = parse_suite(
        {
            **SUITE,
            "scales": {"smoke": {"seeds": 1, "settings": ["one"]}},
            "defaults": {**SUITE["defaults"], "train": {"rounds": 1}},
            "portraits": {"new": ["samples", "matrices"]},
        },
        "vaes",
    )
    plan = cells(shown, "smoke")
    results = {
        (cell.setting, cell.arm, cell.seed): Measured(run(cell.config, out=tmp_path, draw=False))
        for cell in plan
    }
    folder = tmp_path / "figures"
    folder.mkdir()
    drawn = draw_portraits(shown, plan, results, None, folder)
    assert drawn == {"one": [folder / "one-new-samples.png"]}
    path = results["one", "new", 0].run.path / "figures" / "samples.png"
    assert drawn["one"][0].read_bytes() == path.read_bytes()
    with pytest.raises(ConfigError, match="portraits: unknown arm 'newer'"):
        suite(portraits={"newer": ["samples"]})


def test_scale_tables_of_latent_weights_has_the_size_of_the_thesis() -> None:
    found = cells(find_suite("latent-weights"), "tables")
    assert {cell.setting for cell in found} == {"mnist-niid2", "fmnist-niid2"}
    for cell in found:
        train, federation = cell.config.train, cell.config.federation
        assert (train.rounds, train.epochs, train.batch_size, train.lr) == (25, 10, 64, 0.001)
        assert (federation.samples, federation.clients) == (None, 6), "all 60,000 images"
        assert cell.config.model.knobs["hidden"] == [512, 256]
    alphas = {c.config.method.knobs["alpha"] for c in found if c.arm.startswith("lw-")}
    assert alphas == {0.1, 0.5, 0.9}
