"""Suites: the grid they mean, resuming, verdicts on numbers worked by hand, the page, bad files."""

from __future__ import annotations

import csv
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import t as student

from fedskew.errors import ConfigError
from fedskew.papers.entries import merged
from fedskew.papers.format import Claim, parse_suite
from fedskew.papers.grid import cells, missing_datasets
from fedskew.papers.machine import UNKNOWN, commit
from fedskew.papers.measure import MADE_WITH
from fedskew.papers.pairs import filled
from fedskew.papers.statistics import Interval, interval
from fedskew.papers.suite import Reproduced, Step, find_suite, reproduce, suites
from fedskew.papers.verdict import Finding, decide, indistinct, judge, overall
from fedskew.runs.experiment import load_run

TOY = """
title = "A toy"
source = "Nobody 2020"
question = "Does the mechanism work?"

[defaults]
executor = "threads"
[defaults.federation]
clients = 4
partition = { name = "dirichlet", alpha = 0.5 }
[defaults.model]
name = "logistic"
[defaults.train]
lr = 0.1
[defaults.evaluate]
fine_tune_epochs = 1

[scales.smoke]
seeds = 2
settings = ["skewed"]
[scales.smoke.config.train]
rounds = 2
[scales.smoke.by_arm.prox.train]
rounds = 3

[scales.paper]
seeds = 5
[scales.paper.config.train]
rounds = 7

[[settings]]
name = "skewed"
label = "Skewed digits"
arms = ["avg", "prox", "slow"]
[[settings]]
name = "shards"
label = "Digits in shards"
config.federation.partition = { name = "shards", shards_per_client = 5 }

[[arms]]
name = "avg"
label = "FedAvg"
method = "fedavg"
[[arms]]
name = "prox"
label = "FedProx"
method = { name = "fedprox", mu = 0.5 }
[[arms]]
name = "slow"
label = "Slow FedAvg"
role = "control"
method = "fedavg"
config.train.lr = 0.05
[[arms]]
name = "alone"
label = "Alone"
role = "reference"
method = "local"

[[numbers]]
setting = "skewed"
arm = "avg"
value = 91.5
spread = 0.25
where = "Table 7"

[[claims]]
name = "pull"
says = "The pull helps."
source = "Nobody 2020"
better = "prox"
than = "avg"
control = "slow"
why = "Short steps may do."
on = ["skewed", "shards"]
"""


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    path = tmp_path / "toy.toml"
    path.write_text(TOY)
    return path


@dataclass(frozen=True)
class Whole:
    """The toy suite, run without interruption."""

    suite: Path
    out: Path
    done: Reproduced
    steps: list[Step]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    folder = tmp_path_factory.mktemp("whole")
    (folder / "toy.toml").write_text(TOY)
    steps: list[Step] = []
    done = reproduce(str(folder / "toy.toml"), "smoke", folder / "out", report=steps.append)
    return Whole(folder / "toy.toml", folder / "out", done, steps)


@dataclass
class Scores:
    """Stands for a finished run: scores by name."""

    values: dict[str, float]
    is_share: bool = True
    rising: bool = True

    def score(self, score: str, at: str = "last", target: float | None = None) -> float:
        return self.values[score]

    def higher_is_better(self, score: str) -> bool:
        return self.rising and score not in ("rounds", "swing")


def claim(**changes: Any) -> Claim:
    values = {"name": "c", "says": "s", "source": "x", "better": "new", "than": "old", "on": ["a"]}
    return Claim.model_validate({**values, **changes})


def results(score: str = "clients", **arms: list[float]) -> dict[tuple[str, str, int], Any]:
    return {
        ("a", arm, seed): Scores({score: value})
        for arm, values in arms.items()
        for seed, value in enumerate(values)
    }


def around(mean: float, half: float, n: int = 3) -> Interval:
    return Interval(mean, mean - half, mean + half, n)


def test_the_interval_is_students() -> None:
    values = [0.1, 0.4, 0.2, 0.5]
    found = interval(values)
    # mean 0.3; squares 0.04+0.01+0.01+0.04 = 0.1 over 3, so the error is sqrt(0.1/3/4).
    half = student.ppf(0.975, df=3) * math.sqrt(0.1 / 3 / 4)
    assert found.n == 4
    assert [found.mean, found.low, found.high] == pytest.approx([0.3, 0.3 - half, 0.3 + half])
    assert half == pytest.approx(3.182446 * 0.0912871, rel=1e-5)


def test_one_seed_has_no_interval() -> None:
    found = interval([0.5])
    assert found.mean == 0.5
    assert math.isnan(found.low)


def test_differences_are_paired_by_seed() -> None:
    # Seeds differ by 0.5, arms by 0.1 +- 0.01: only pairing sees it.
    runs = results(new=[0.21, 0.70, 0.39], old=[0.10, 0.60, 0.30])
    [finding] = judge(claim(), runs).findings
    difference = finding.against[0].difference
    assert difference.mean == pytest.approx(0.1)
    assert difference.half == pytest.approx(student.ppf(0.975, 2) * 0.01 / math.sqrt(3))
    assert finding.outcome == "reproduced"


def test_a_seed_without_partner_is_left_out() -> None:
    runs = results(new=[0.2, 0.3, 0.9], old=[0.1, 0.2])
    [finding] = judge(claim(), runs).findings
    assert finding.against[0].difference.n == 2


def test_fewer_rounds_speak_for_the_claim() -> None:
    runs = results("rounds", new=[5, 6, 5], old=[9, 10, 9])
    verdict = judge(claim(score="rounds", target=0.8), runs)
    assert verdict.findings[0].against[0].difference.mean == pytest.approx(4)
    assert verdict.text == "reproduced"


def test_a_lower_loss_speaks_for_the_claim() -> None:
    runs: dict[tuple[str, str, int], Any] = {
        key: Scores(run.values, False, rising=False)
        for key, run in results(new=[1.0, 1.1], old=[2.0, 2.1]).items()
    }
    assert judge(claim(), runs).findings[0].against[0].difference.mean == pytest.approx(1)


def test_a_side_may_look_at_another_score() -> None:
    runs: dict[tuple[str, str, int], Any] = {}
    for seed in range(2):
        runs["a", "new", seed] = Scores({"clients": 0.5})
        runs["a", "old", seed] = Scores({"clients": 0.1, "fine-tuned": 0.8})
    [finding] = judge(claim(than="old:fine-tuned"), runs).findings
    assert finding.against[0].difference.mean == pytest.approx(-0.3)
    assert finding.outcome == "not reproduced"


def test_arms_nobody_can_tell_apart_are_named() -> None:
    runs = results(new=[0.2, 0.3], old=[0.2, 0.3], other=[0.2, 0.4])
    assert indistinct(runs, "a") == [["new", "old"]]


@pytest.mark.parametrize(
    ("against", "controls", "bar", "outcome"),
    [
        ([around(0.3, 0.2)], {}, 0.0, "reproduced"),
        ([around(0.1, 0.2)], {}, 0.0, "undecided"),
        ([around(-0.3, 0.2)], {}, 0.0, "not reproduced"),
        ([around(0.3, 0.2)], {}, 0.2, "undecided"),
        ([around(-0.005, 0.002)], {}, -0.01, "reproduced"),
        ([around(0.3, 0.2), around(-0.3, 0.2)], {}, 0.0, "not reproduced"),
        ([around(0.3, 0.2), around(0.1, 0.2)], {}, 0.0, "undecided"),
        ([around(0.3, 0.2)], {"c": around(0.2, 0.1)}, 0.0, "reproduced"),
        ([around(0.3, 0.2)], {"c": around(0.1, 0.2)}, 0.0, "the control explains it"),
        ([around(0.3, 0.2)], {"c": around(-0.3, 0.2)}, 0.0, "the control explains it"),
        ([around(0.1, 0.2)], {"c": around(-0.3, 0.2)}, 0.0, "undecided"),
        ([interval([0.3])], {}, 0.0, "undecided"),
        ([interval([])], {}, 0.0, "not run"),
        ([around(0.3, 0.2)], {"c": interval([])}, 0.0, "not run"),
    ],
)
def test_outcomes(
    against: list[Interval], controls: dict[str, Interval], bar: float, outcome: str
) -> None:
    assert decide(against, controls, bar)[0] == outcome


@pytest.mark.parametrize(
    ("outcomes", "text"),
    [
        (["reproduced", "reproduced"], "reproduced"),
        (["reproduced", "undecided"], "reproduced only on s0; undecided on s1"),
        (["not reproduced", "reproduced"], "reproduced only on s1; not reproduced on s0"),
        (["not run", "reproduced"], "reproduced"),
        (["undecided", "not reproduced"], "undecided on s0; not reproduced on s1"),
        (["not run"], "not run at this scale"),
    ],
)
def test_one_line_for_all_settings(outcomes: list[Any], text: str) -> None:
    findings = [Finding(f"s{i}", outcome, "", (), ()) for i, outcome in enumerate(outcomes)]
    assert overall(findings) == text


def test_the_grid_is_settings_by_seeds_by_arms(toy: Path) -> None:
    suite = find_suite(str(toy))
    smoke = cells(suite, "smoke")
    assert [(c.setting, c.seed, c.arm) for c in smoke] == [
        ("skewed", seed, arm) for seed in (0, 1) for arm in ("avg", "prox", "slow")
    ]
    # Three arms on the first setting, all four on the second, five seeds.
    assert len(cells(suite, "paper")) == (3 + 4) * 5


def test_layers_of_a_config_win_in_order(toy: Path) -> None:
    suite = find_suite(str(toy))
    smoke = {c.arm: c.config for c in cells(suite, "smoke")}
    assert [smoke[arm].train.rounds for arm in ("avg", "prox", "slow")] == [2, 3, 2]
    assert [smoke[arm].train.lr for arm in ("avg", "prox", "slow")] == [0.1, 0.1, 0.05]
    assert smoke["prox"].method.knobs["mu"] == 0.5
    shards = next(c.config for c in cells(suite, "paper") if c.setting == "shards")
    assert shards.federation.partition.name == "shards"
    assert "alpha" not in shards.federation.partition.knobs


def test_a_table_without_a_name_changes_knobs_only() -> None:
    assert merged({"m": {"name": "x", "k": 1}}, {"m": {"k": 2}}) == {"m": {"name": "x", "k": 2}}


def test_every_step_is_told(whole: Whole) -> None:
    states = [step.state for step in whole.steps]
    assert states.count("finished") == 6
    assert states.count("round") == 2 * (2 + 3 + 2)
    assert whole.steps[-1].text.startswith("[6/6] skewed · slow · seed 1: finished in ")


def test_a_suite_ends_in_one_page_and_its_figures(whole: Whole) -> None:
    assert whole.done.page == whole.out / "toy-smoke.md"
    assert [verdict.claim.name for verdict in whole.done.verdicts] == ["pull"]
    _check_page(whole.done.page.read_text(), whole.out.parent)
    _check_figures(whole.out / "figures" / "toy-smoke")


def test_finished_runs_are_not_run_again(whole: Whole) -> None:
    before = _numbers(whole.done.page.read_text())
    steps: list[Step] = []
    again = reproduce(str(whole.suite), "smoke", whole.out, report=steps.append)
    assert [step.state for step in steps] == ["skipped"] * 6
    assert _numbers(again.page.read_text()) == before


def test_runs_of_other_code_are_owned_up_to(whole: Whole) -> None:
    assert "other code" not in whole.done.page.read_text()
    run = next((whole.out / "runs").iterdir())
    mine = (run / MADE_WITH).read_text()
    (run / MADE_WITH).write_text('{"code": "0.0.1, commit abc"}')
    try:
        page = reproduce(str(whole.suite), "smoke", whole.out).page.read_text()
    finally:
        (run / MADE_WITH).write_text(mine)
    assert "| runs finished by other code | 0.0.1, commit abc |" in page


def _check_page(page: str, tmp_path: Path) -> None:
    for wanted in (
        "# A toy", "Nobody 2020", "Does the mechanism work?",
        "fedskew reproduce toy.toml --scale smoke", "2 seeds", "pull", "The pull helps.",
        "Short steps may do.", "Without numbers at this scale: shards.", "91.5 ± 0.25 (Table 7)",
        "fedprox (mu=0.5)", "fedavg; train.lr = 0.05", "worst client", "fine-tuned", "sent (MB)",
        "figures/toy-smoke/skewed.png", "cores", "torch 2", "commit ",
        "| train.rounds | 2 / 3 | 7 |", "| seeds | 2 | 5 |",
    ):  # fmt: skip
        assert wanted in page, wanted
    assert str(tmp_path) not in page
    assert not re.search(r"(^|[\s(`\"])/\w+/", page)
    assert "nan" not in page


def _check_figures(folder: Path) -> None:
    assert (folder / "skewed.png").read_bytes().startswith(b"\x89PNG")
    with open(folder / "skewed.csv") as file:
        rows = list(csv.DictReader(file))
    assert [row["arm"] for row in rows] == ["avg", "prox", "slow"]
    assert all(float(r["low"]) <= float(r["mean"]) <= float(r["high"]) for r in rows)


def _numbers(page: str) -> str:
    """The page without the times of the command that wrote it."""
    return page.partition("## Made with")[0]


def test_an_interrupted_suite_goes_on_where_it_was(toy: Path, tmp_path: Path, whole: Whole) -> None:
    def interrupt(step: Step) -> None:
        if (step.number, step.state, step.round) == (2, "round", 2):
            raise KeyboardInterrupt

    toy.write_text(TOY.replace("seeds = 2", 'seeds = 1\narms = ["avg", "prox"]'))
    out = tmp_path / "out"
    steps: list[Step] = []
    with pytest.raises(KeyboardInterrupt):
        reproduce(str(toy), "smoke", out, report=interrupt)
    assert not (out / "toy-smoke.md").exists()
    reproduce(str(toy), "smoke", out, report=steps.append)
    assert (steps[0].number, steps[0].state) == (1, "skipped")
    assert [s.round for s in steps if s.number == 2 and s.state == "round"] == [3]
    for run in (out / "runs").iterdir():
        uninterrupted = load_run(whole.out / "runs" / run.name)
        assert load_run(run).result["scores"] == uninterrupted.result["scores"]


def test_fallback_data_are_used_and_owned_up_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FEDSKEW_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    text = TOY.replace("clients = 4", 'clients = 4\ndataset = "har"')
    text = text.replace("seeds = 2", "seeds = 1") + (
        '\n[scales.smoke.fallback]\narms = ["avg"]\nconfig.federation.dataset = "digits"\n'
    )
    (tmp_path / "toy.toml").write_text(text)
    suite = find_suite(str(tmp_path / "toy.toml"))
    assert missing_datasets(cells(suite, "smoke"), None) == ["har"]
    steps: list[Step] = []
    done = reproduce("toy.toml", "smoke", tmp_path / "out", report=steps.append)
    assert {s.cell.arm for s in steps} == {"avg"}
    assert steps[0].cell.config.federation.dataset == "digits"
    assert "were not found" in done.page.read_text()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('than = "avg"', 'than = "avgg"', r"claim 'pull': unknown arm 'avgg': did you mean 'avg'"),
        ('"shards"]\n', '"shard"]\n', r"claim 'pull': unknown setting 'shard'.*'shards'"),
        ("why =", "wy =", r"claims\.0: unknown key 'wy': did you mean 'why'"),
        ("question =", "questions =", r"unknown key 'questions': did you mean 'question'"),
        ('than = "avg"', 'than = "avg:best"', r"unknown score 'best'"),
        ('than = "avg"', 'than = "avg"\nscore = "rounds"', r"score 'rounds' and a target"),
        ('name = "slow"', 'name = "avg"', r"two arms are called 'avg'"),
        ('setting = "skewed"', 'setting = "skew"', r"numbers: unknown setting 'skew'"),
        ("by_arm.prox", "by_arm.pro", r"scale 'smoke': unknown arm 'pro'"),
        ("seeds = 2", "seeds = 0", r"scales\.smoke\.seeds: .*greater than or equal to 1"),
    ],
)
def test_a_bad_suite_gets_one_clear_sentence(old: str, new: str, message: str, toy: Path) -> None:
    assert old in TOY
    toy.write_text(TOY.replace(old, new, 1))
    with pytest.raises(ConfigError, match=rf"^suite 'toy': .*{message}"):
        find_suite(str(toy))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("mu = 0.5", "mew = 0.5", r"setting 'skewed', arm 'prox': .*'mew': choose from mu"),
        ("lr = 0.05", "rl = 0.05", r"arm 'slow': unknown setting 'train.rl'.*'train.lr'"),
    ],
)
def test_a_bad_cell_is_named_before_anything_runs(
    old: str, new: str, message: str, toy: Path, tmp_path: Path
) -> None:
    toy.write_text(TOY.replace(old, new, 1))
    with pytest.raises(ConfigError, match=message):
        reproduce(str(toy), "smoke", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_unknown_names_offer_the_nearest(toy: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'baselines'"):
        find_suite("baseline")
    with pytest.raises(ConfigError, match=r"unknown scale of suite 'toy' 'papr'.*'paper'"):
        reproduce(str(toy), "papr", tmp_path)


def test_code_outside_version_control_has_no_commit(tmp_path: Path) -> None:
    (tmp_path / "__init__.py").touch()
    assert commit(tmp_path) == UNKNOWN


@pytest.mark.parametrize("scale", ["smoke", "desk", "paper"])
@pytest.mark.parametrize("name", sorted(suites()))
def test_every_claim_can_be_judged_on_the_arms_that_run(name: str, scale: str) -> None:
    suite = suites()[name]
    ran = {(cell.setting, cell.arm) for cell in cells(suite, scale)}
    places = {setting for setting, _ in ran}
    for claim in suite.claims:
        arms = [claim.side(r).arm for r in (claim.better, *claim.than, *claim.control)]
        named = places & {*claim.on, *([claim.beyond] if claim.beyond else ())}
        for place in named:
            here = [arm for setting, arm in ran if setting == place]
            assert all(filled(arm, here) for arm in arms)


def test_a_suite_without_a_title_is_refused() -> None:
    with pytest.raises(ConfigError, match="suite 'x': title: field required"):
        parse_suite({}, "x")
