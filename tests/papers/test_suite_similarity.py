"""Suites of similarity-weighted methods: weights as scores, claims across settings, many arms."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from scipy.stats import t as student

from fedskew.errors import ConfigError
from fedskew.federate.metrics import Row, by_group, summarise
from fedskew.papers.claims import Claim
from fedskew.papers.figure import draw, draw_series
from fedskew.papers.format import Suite, parse_suite
from fedskew.papers.grid import cells
from fedskew.papers.machine import Provenance
from fedskew.papers.measure import Measured
from fedskew.papers.page import Reproduction, page
from fedskew.papers.verdict import Results, judge
from fedskew.runs.experiment import Run

SUITE: dict[str, Any] = {
    "title": "Similar clients",
    "source": "Nobody 2022",
    "question": "Does similarity help?",
    "defaults": {"federation": {"clients": 4}, "model": "logistic", "train": {"rounds": 2}},
    "scales": {"smoke": {"seeds": 3}},
    "settings": [{"name": "s2", "label": "Two classes"}, {"name": "s10", "label": "Ten classes"}],
    "arms": [
        {"name": "new", "label": "FedNew", "method": "fedavg"},
        {"name": "old", "label": "FedOld", "method": "fedavg"},
    ],
}
CLAIM: dict[str, Any] = {
    "name": "grows", "says": "The gap grows.", "source": "Nobody 2022", "better": "new",
    "than": "old", "on": ["s2"], "beyond": "s10",
}  # fmt: skip


def suite(**changes: Any) -> Suite:
    return parse_suite({**SUITE, **changes}, "similar")


def claim(**changes: Any) -> Claim:
    return Claim.model_validate({**CLAIM, **changes})


def measured(
    folder: Path,
    *,
    clients: float = 0.5,
    own: Sequence[float] = (),
    entropy: Sequence[float] = (),
    metric: str = "accuracy",
    validation: float = 0.25,
) -> Measured:
    """A finished run on disk with these scores, summed up from rows as runs do it."""
    rows = [
        Row("main", 2, "personal", "seen", "0", "none", split, metric, value, 9)
        for split, value in (("validation", validation), ("test", clients))
    ]
    for name, values in (("self_weight", own), ("row_entropy", entropy)):
        rows += [
            Row("main", 2, "personal", "seen", str(k), "none", "server", name, value, 0)
            for k, value in enumerate(values)
        ]
    scores = [
        {
            "at": at, "model": model, "on": on, "adapted": how, "split": split, "metric": name,
            **asdict(summarise([row.value for row in group])),
        }
        for at in ("last", "selected")
        for (model, on, how, split, name), group in by_group(rows).items()
    ]  # fmt: skip
    folder.mkdir(parents=True)
    result = {
        "primary_metric": metric, "primary_model": "personal", "rounds": 2, "scores": scores,
        "higher_is_better": metric == "accuracy", "bytes": {"up": 10**6, "down": 2 * 10**6},
        "failures": 0, "seconds": 1.0,
    }  # fmt: skip
    (folder / "result.json").write_text(json.dumps(result))
    return Measured(Run(folder))


def gaps(folder: Path, **arms: tuple[Sequence[float], Sequence[float]]) -> Results:
    """Runs whose clients score these values, by arm, on s2 and on s10, seed by seed."""
    return {
        (setting, arm, seed): measured(folder / f"{setting}-{arm}-{seed}", clients=value)
        for arm, both in arms.items()
        for setting, values in zip(("s2", "s10"), both, strict=True)
        for seed, value in enumerate(values)
    }


OLD = ([0.50, 0.60, 0.40], [0.80, 0.70, 0.75])
NEW = ([0.80, 0.92, 0.74], [0.90, 0.83, 0.88])
"""Ahead by 0.30, 0.32, 0.34 on s2 and by 0.10, 0.13, 0.13 on s10: 0.20, 0.19, 0.21 more."""

HALF = student.ppf(0.975, 2) * 0.01 / math.sqrt(3)


def test_weights_are_means_over_clients(tmp_path: Path) -> None:
    run = measured(tmp_path / "run", own=[0.5, 0.3, 0.1], entropy=[1.0, 0.4, 0.1])
    for at in ("last", "selected"):
        assert run.score("self-weight", at) == pytest.approx(0.3)
        assert run.score("entropy", at) == pytest.approx(0.5)
    assert run.score("clients") == 0.5


def test_each_round_has_its_own_weights(tmp_path: Path) -> None:
    run = measured(tmp_path / "run", own=[0.5])
    for entry in run.result["scores"]:
        if (entry["at"], entry["metric"]) == ("selected", "self_weight"):
            entry["mean"] = 0.25
    assert run.score("self-weight", "last") == 0.5
    assert run.score("self-weight", "selected") == 0.25


@pytest.mark.parametrize(
    ("field", "other"),
    [("split", "test"), ("model", "global"), ("on", "unseen"), ("adapted", "fine-tuned 1")],
)
def test_only_the_servers_own_rows_count_as_weights(field: str, other: str, tmp_path: Path) -> None:
    run = measured(tmp_path / "run", own=[0.5])
    for entry in run.result["scores"]:
        entry[field] = other
    assert math.isnan(run.score("self-weight"))


def test_a_run_without_weights_has_no_such_score(tmp_path: Path) -> None:
    run = measured(tmp_path / "run", own=[0.5])
    assert math.isnan(run.score("entropy"))


def test_more_weight_speaks_for_a_claim_even_where_the_task_is_a_loss(tmp_path: Path) -> None:
    runs = {
        ("s2", arm, seed): measured(tmp_path / f"{arm}{seed}", own=[own], metric="loss")
        for arm, own in (("new", 0.4), ("old", 0.1))
        for seed in range(2)
    }
    [finding] = judge(claim(score="self-weight", beyond=None), runs).findings
    assert finding.against[0].difference.mean == pytest.approx(0.3)
    assert not runs["s2", "new", 0].higher_is_better("clients")


def test_differences_of_weights_are_no_points_and_keep_four_digits(tmp_path: Path) -> None:
    runs = {
        ("s2", arm, seed): measured(tmp_path / f"{arm}{seed}", own=[own])
        for arm, own in (("new", 0.0125), ("old", 0.01))
        for seed in range(2)
    }
    [finding] = judge(claim(score="self-weight", beyond=None), runs).findings
    assert finding.against[0].text == "+0.0025 [+0.0025, +0.0025]"


def test_a_difference_beyond_another_settings_is_paired_by_seed(tmp_path: Path) -> None:
    [finding] = judge(claim(), gaps(tmp_path, new=NEW, old=OLD)).findings
    difference = finding.against[0].difference
    assert difference.n == 3
    assert difference.mean == pytest.approx(0.2)
    # Seeds matched otherwise would give the same mean, but not this interval.
    assert difference.half == pytest.approx(HALF)
    assert finding.outcome == "reproduced"
    low, high = 100 * (0.2 - HALF), 100 * (0.2 + HALF)
    assert finding.against[0].text == f"+20.00 [+{low:.2f}, +{high:.2f}] points"


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        # The interval is 0.2 +- 0.0248.
        ({"margin": 0.17}, "reproduced"),
        ({"margin": 0.2}, "undecided"),
        ({"margin": 0.23}, "not reproduced"),
        ({"better": "old", "than": "new"}, "not reproduced"),
        ({"better": "old", "than": "new", "kind": "no-worse", "margin": 0.23}, "reproduced"),
        ({"better": "old", "than": "new", "kind": "no-worse", "margin": 0.2}, "undecided"),
        ({"on": ["s10"], "beyond": "s2"}, "not reproduced"),
        ({"beyond": None}, "reproduced"),
    ],
)
def test_margins_and_kinds_hold_for_what_is_beyond(
    changes: dict[str, Any], outcome: str, tmp_path: Path
) -> None:
    [finding] = judge(claim(**changes), gaps(tmp_path, new=NEW, old=OLD)).findings
    assert finding.outcome == outcome


def test_a_control_whose_gap_grows_as_much_explains_it(tmp_path: Path) -> None:
    # The method is ahead of `same` by 0.1 everywhere, of `flat` by 0.30 to 0.34 on s2 only.
    same = ([0.70, 0.83, 0.63], [0.80, 0.72, 0.79])
    flat = ([0.50, 0.60, 0.40], [0.90, 0.83, 0.88])
    runs = gaps(tmp_path, new=NEW, old=OLD, same=same, flat=flat)
    assert judge(claim(control="flat"), runs).text == "reproduced"
    [finding] = judge(claim(control=["flat", "same"]), runs).findings
    assert finding.controls[0].difference.mean == pytest.approx(0.32)
    assert finding.controls[1].difference.mean == pytest.approx((0 - 0.02 + 0.02) / 3, abs=1e-9)
    assert finding.outcome == "the control explains it"


def test_a_seed_missing_beyond_is_left_out(tmp_path: Path) -> None:
    runs = dict(gaps(tmp_path, new=NEW, old=OLD))
    del runs["s10", "old", 2]
    [finding] = judge(claim(), runs).findings
    assert finding.against[0].difference.n == 2
    assert finding.against[0].difference.mean == pytest.approx(0.195)


def test_without_the_setting_beyond_there_is_no_verdict(tmp_path: Path) -> None:
    runs = {k: run for k, run in gaps(tmp_path, new=NEW, old=OLD).items() if k[0] == "s2"}
    assert judge(claim(), runs).text == "not run at this scale"


def test_where_less_is_better_both_differences_turn(tmp_path: Path) -> None:
    # Losses: lower by 0.5 on s2, by 0.2 on s10.
    runs = {
        (setting, arm, seed): measured(
            tmp_path / f"{setting}{arm}{seed}", clients=loss + seed, metric="loss"
        )
        for setting, arm, loss in (
            ("s2", "new", 1.0), ("s2", "old", 1.5), ("s10", "new", 2.0), ("s10", "old", 2.2),
        )
        for seed in range(2)
    }  # fmt: skip
    [finding] = judge(claim(), runs).findings
    assert finding.against[0].difference.mean == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("beyond", "message"),
    [
        ("s1", r"^suite 'similar': claim 'grows': unknown setting 's1': did you mean 's10'"),
        ("s2", r"^suite 'similar': claims\.0: beyond 's2' stands in on too: take it out"),
    ],
)
def test_a_bad_setting_beyond_gets_one_clear_sentence(beyond: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        suite(claims=[{**CLAIM, "beyond": beyond}])


def written(about: Suite, runs: Results) -> list[str]:
    """The page's lines."""
    facts = Reproduction(
        suite=about, scale="smoke", command="fedskew reproduce similar", fallback=None,
        plan=tuple(c for c in cells(about, "smoke") if (c.setting, c.arm, c.seed) in runs),
        results=runs, verdicts=[judge(c, runs) for c in about.claims], figures={}, series={},
        provenance=Provenance("1", "abc", 2, "chip", "1 GiB", "3", {"torch": "2"}),
        wall_seconds=1.0,
    )  # fmt: skip
    return page(facts).splitlines()


def test_weights_get_columns_where_an_arm_has_them(tmp_path: Path) -> None:
    runs = dict(gaps(tmp_path, new=NEW, old=OLD))
    for seed, own in enumerate((0.2, 0.3, 0.4)):
        runs["s2", "new", seed] = measured(
            tmp_path / f"weighed{seed}", clients=NEW[0][seed], own=[own, own], entropy=[0.5, 0.9]
        )
    lines = written(suite(), runs)
    first, second = lines.index("### Two classes"), lines.index("### Ten classes")
    usual = "| last round | selected round | worst client | fine-tuned | central test |"
    assert lines[first + 2] == f"| arm | role {usual} self-weight | row entropy | sent (MB) |"
    # Standard deviation 0.1 over three seeds: 4.3027 * 0.1 / sqrt(3) = 0.2484.
    assert lines[first + 4].endswith("| – | – | 0.30 ± 0.25 | 0.70 ± 0.00 | 3.0 |")
    assert lines[first + 5].endswith("| – | – | – | – | 3.0 |")
    assert lines[second + 2] == f"| arm | role {usual} sent (MB) |"
    assert sum(line.startswith("“Self-weight” is") for line in lines) == 1


def test_a_page_without_weights_says_nothing_of_them(tmp_path: Path) -> None:
    text = "\n".join(written(suite(), gaps(tmp_path, new=NEW, old=OLD)))
    assert "elf-weight" not in text
    assert "entropy" not in text


def test_the_page_says_what_was_compared_beyond(tmp_path: Path) -> None:
    lines = written(
        suite(claims=[{**CLAIM, "margin": 0.1}]), gaps(tmp_path, new=NEW, old=OLD)
    )  # fmt: skip
    assert (
        "Compared: mean score over the clients' own test data, selected round; "
        "the difference here minus that on Ten classes; more than 10 points."
    ) in lines
    heads = "| setting | `new` against | difference less that on `s10` | p (Holm) | outcome |"
    assert heads in lines
    # Deviation 0.01, so t = 0.1 * sqrt(3) / 0.01 = 17.32, and p = 1 - t / sqrt(t² + 2) = 0.0033.
    assert "| Two classes | `old` | +20.00 [+17.52, +22.48] points | 0.003 | reproduced |" in lines


def test_the_page_says_where_numbers_beyond_are_missing(tmp_path: Path) -> None:
    runs = {k: run for k, run in gaps(tmp_path, new=NEW, old=OLD).items() if k[0] == "s2"}
    lines = written(suite(claims=[CLAIM]), runs)
    assert "Without numbers at this scale, there or on s10: s2." in lines


def test_numbers_from_other_data_stand_beside_ours_with_their_place(tmp_path: Path) -> None:
    number = {"setting": "s2", "arm": "new", "value": 94.04, "where": "CIFAR-10, Table 3.1"}
    other = {**number, "value": 71.5, "spread": 0.3, "where": "CIFAR-100, Table 3.2"}
    lines = written(suite(numbers=[number, other]), gaps(tmp_path, new=NEW, old=OLD))
    first = lines.index("### Two classes")
    assert lines[first + 4].startswith("| FedNew | method | 82.00 ± ")
    assert lines[first + 4].endswith(
        "| 94.04 (CIFAR-10, Table 3.1); 71.5 ± 0.3 (CIFAR-100, Table 3.2) |"
    )
    assert lines[first + 5].endswith("| – |")


def test_eighteen_arms_stay_readable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Figure] = []
    save = Figure.savefig

    def keep(figure: Figure, *args: Any, **options: Any) -> None:
        save(figure, *args, **options)
        drawn.append(figure)

    monkeypatch.setattr(Figure, "savefig", keep)
    arms = [
        {"name": f"arm{n}", "label": f"FedSomething, self-weight 0.2, number {n}",
         "method": "fedavg", "role": ("method", "control", "reference")[n % 3]}
        for n in range(18)
    ]  # fmt: skip
    many = suite(arms=arms, settings=SUITE["settings"][:1], scales={"smoke": {"seeds": 1}})
    plan = cells(many, "smoke")
    runs = {}
    for n, cell in enumerate(plan):
        run = measured(tmp_path / cell.arm, clients=0.5 + 0.01 * n)
        run.__dict__["curve"] = {1: 0.1, 2: 0.5 + 0.01 * n}
        runs[cell.setting, cell.arm, cell.seed] = run
    draw(many, plan, runs, tmp_path / "figures")
    [figure] = drawn
    figure.draw_without_rendering()
    left, right = figure.axes
    [legend] = figure.legends
    frame = legend.get_window_extent()
    assert len(legend.get_texts()) == 18
    assert not frame.overlaps(right.get_window_extent())
    assert figure.bbox.y0 <= frame.y0 < frame.y1 <= figure.bbox.y1
    assert frame.x1 <= figure.bbox.x1
    labels = [text.get_window_extent() for text in left.get_yticklabels()]
    assert len(labels) == 18
    assert all(below.y1 < above.y0 for above, below in pairwise(labels))
    assert min(label.x0 for label in labels) >= figure.bbox.x0
    # Names must not squeeze out what they name.
    assert min(axes.get_window_extent().width for axes in (left, right)) > 0.2 * figure.bbox.width


def test_a_page_shows_the_similarity_matrices_of_one_arm(tmp_path: Path) -> None:
    about = suite(shows="new")
    runs = dict(gaps(tmp_path, new=NEW, old=OLD))
    for setting in ("s2", "s10"):
        folder = runs[setting, "new", 0].run.path / "matrices"
        folder.mkdir()
        for number in (1, 5):
            text = f"client,a,b\na,1,0.{number}\nb,0.{number},1\n"
            (folder / f"similarity-{number:06d}.csv").write_text(text)
    for run in runs.values():
        run.__dict__["curve"] = {1: 0.5}
    plan = [c for c in cells(about, "smoke") if (c.setting, c.arm, c.seed) in runs]
    pictures = draw(about, plan, runs, tmp_path / "figures")
    assert [path.name for path in pictures["s2"]] == ["s2.png", "s2-similarity.png"]
    table = (tmp_path / "figures" / "s2-similarity.csv").read_text().splitlines()
    assert table[0] == "round,row,column,value"
    assert "5,a,b,0.5" in table


def test_an_arm_to_show_must_exist() -> None:
    with pytest.raises(ConfigError, match="shows: unknown arm 'now': did you mean 'new'"):
        suite(shows="now")


def test_validation_scores_are_read_from_validation_data(tmp_path: Path) -> None:
    found = measured(tmp_path / "run", clients=0.5, validation=0.75)
    assert found.score("validation") == 0.75
    assert found.score("clients") == 0.5


def test_what_the_results_say_stands_at_the_top_where_it_was_written_for(tmp_path: Path) -> None:
    reading = {"smoke": {**SUITE["scales"]["smoke"], "reading": ["Nothing helped."]}}
    lines = written(suite(scales=reading), gaps(tmp_path, new=NEW, old=OLD))
    place = lines.index("## In short")
    assert lines[place + 2] == "Nothing helped."
    assert place < lines.index("## Results")
    assert "## In short" not in written(suite(), gaps(tmp_path / "again", new=NEW, old=OLD))


SERIES = {
    "name": "by-s", "label": "More shards", "axis": "s", "settings": ["s2", "s10"],
    "at": [2, 10], "arms": ["new", "old"],
}  # fmt: skip


def test_a_series_draws_arms_against_a_number_of_the_settings(tmp_path: Path) -> None:
    about = suite(series=[SERIES])
    pictures = draw_series(about, gaps(tmp_path, new=NEW, old=OLD), tmp_path)
    assert pictures == {"by-s": tmp_path / "by-s.png"}
    lines = (tmp_path / "by-s.csv").read_text().splitlines()
    assert lines[0] == "arm,score,at,seeds,mean,low,high"
    assert [line.split(",")[:4] for line in lines[1:]] == [
        [arm, "clients", at, "3"] for arm in ("new", "old") for at in ("2.0", "10.0")
    ]
    means = [float(line.split(",")[4]) for line in lines[1:]]
    expected = [sum(v) / 3 for v in (*NEW, *OLD)]
    assert means == pytest.approx(expected)


def test_a_series_of_one_finished_setting_is_not_drawn(tmp_path: Path) -> None:
    runs = {key: run for key, run in gaps(tmp_path, new=NEW, old=OLD).items() if key[0] == "s2"}
    assert draw_series(suite(series=[SERIES]), runs, tmp_path) == {}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"at": [2]}, "2 settings and 1 numbers in at"),
        ({"settings": ["s2", "s11"]}, "series 'by-s': unknown setting 's11'"),
        ({"arms": ["now"]}, "series 'by-s': unknown arm 'now'"),
    ],
)
def test_a_bad_series_gets_one_clear_sentence(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        suite(series=[{**SERIES, **changes}])


def test_a_scale_may_take_more_seeds_on_one_setting() -> None:
    more = {"smoke": {**SUITE["scales"]["smoke"], "seeds": 2, "seeds_on": {"s10": 4}}}
    plan = cells(suite(scales=more), "smoke")
    counts = {name: len({c.seed for c in plan if c.setting == name}) for name in ("s2", "s10")}
    assert counts == {"s2": 2, "s10": 4}
    with pytest.raises(ConfigError, match="scale 'smoke': unknown setting 's11'"):
        suite(scales={"smoke": {"seeds": 1, "seeds_on": {"s11": 2}}})
