"""Suites: the grid they mean, resuming, verdicts on numbers worked by hand, the page, bad files."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from recorder import Recorder
from toy_claims import TOY

from fedskew.engine.arithmetic import arithmetic
from fedskew.errors import ConfigError
from fedskew.papers.format import parse_suite
from fedskew.papers.grid import cells, missing_datasets
from fedskew.papers.pairs import filled
from fedskew.papers.reading import MADE_WITH
from fedskew.papers.suite import Reproduced, find_suite, reproduce, suites
from fedskew.runs.experiment import load_run
from fedskew.store import read_sealed, write_sealed


@dataclass(frozen=True)
class Whole:
    """The toy suite, run without interruption."""

    suite: Path
    out: Path
    done: Reproduced
    seen: Recorder


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    folder = tmp_path_factory.mktemp("whole")
    (folder / "toy.toml").write_text(TOY)
    seen = Recorder()
    done = reproduce(str(folder / "toy.toml"), "smoke", folder / "out", watch=seen)
    return Whole(folder / "toy.toml", folder / "out", done, seen)


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


def test_an_observer_sees_every_run_and_round(whole: Whole) -> None:
    runs = whole.seen.runs
    assert [run.repeated for run in runs] == [False] * 6
    assert sorted(len(run.rounds) for run in runs) == [2, 2, 2, 2, 3, 3]
    last = runs[-1]
    assert (last.position, last.total, last.name) == (6, 6, "skewed · slow · seed 1")


def test_runs_of_a_suite_have_no_figures_of_their_own(whole: Whole) -> None:
    assert list((whole.out / "runs").iterdir())
    assert not list((whole.out / "runs").glob("*/figures"))


def test_a_suite_ends_in_one_page_and_its_figures(whole: Whole) -> None:
    assert whole.done.page == whole.out / "toy-smoke.md"
    assert [verdict.claim.name for verdict in whole.done.verdicts] == ["pull"]
    _check_page(whole.done.page.read_text(), whole.out.parent)
    _check_figures(whole.out / "figures" / "toy-smoke")


def test_finished_runs_are_not_run_again(whole: Whole) -> None:
    before = _numbers(whole.done.page.read_text())
    seen = Recorder()
    again = reproduce(str(whole.suite), "smoke", whole.out, watch=seen)
    assert [(run.repeated, run.rounds) for run in seen.runs] == [(True, [])] * 6
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


def test_runs_of_other_machines_are_owned_up_to(whole: Whole) -> None:
    here = arithmetic()["instructions"]
    page = whole.done.page.read_text()
    assert re.search(rf"^\| arithmetic \| .*instructions {here},", page, re.MULTILINE)
    assert "other arithmetic" not in page
    path = next((whole.out / "runs").iterdir()) / "result.json"
    mine = path.read_bytes()
    elsewhere = {**arithmetic(), "instructions": "AVX", "cores": "1"}
    write_sealed(path, {**read_sealed(path), "made_on": [elsewhere]})
    try:
        page = reproduce(str(whole.suite), "smoke", whole.out).page.read_text()
    finally:
        path.write_bytes(mine)
    assert f"| runs made with other arithmetic | instructions (AVX, here {here}) |" in page


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
    toy.write_text(TOY.replace("seeds = 2", 'seeds = 1\narms = ["avg", "prox"]'))
    out = tmp_path / "out"
    in_second = Recorder(lambda run: run.position == 2 and run.rounds[-1] == 2)
    with pytest.raises(KeyboardInterrupt):
        reproduce(str(toy), "smoke", out, watch=in_second)
    assert not (out / "toy-smoke.md").exists()
    seen = Recorder()
    reproduce(str(toy), "smoke", out, watch=seen)
    assert (seen.runs[0].position, seen.runs[0].repeated) == (1, True)
    assert (seen.runs[1].rounds, seen.runs[1].repeated) == ([3], False)
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
    seen = Recorder()
    done = reproduce("toy.toml", "smoke", tmp_path / "out", watch=seen)
    assert [run.name for run in seen.runs] == ["skewed · avg · seed 0"]
    assert seen.runs[0].config.federation.dataset == "digits"
    assert "were not found" in done.page.read_text()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('than = "avg"', 'than = "avgg"', r"claim 'pull': unknown arm 'avgg': did you mean 'avg'"),
        ('"shards"]\n', '"shard"]\n', r"claim 'pull': unknown setting 'shard'.*'shards'"),
        (
            'than = "avg"',
            'than = "avg"\nat = "last"',
            r"nobody selected says why, in at_why",
        ),
        ('than = "avg"', 'than = "avg"\nat = 0', r"claims\.0\.at: unknown round"),
        ('than = "avg"', 'than = "avg"\nours = "x"', r"ours and letter go together"),
        (
            'than = "avg"',
            'than = "avg"\nours = "x"\nletter = "pul"',
            r"claim 'pull': unknown claim 'pul': did you mean 'pull'",
        ),
        (
            "seeds = 5",
            "seeds = 5\nunjudged = { pol = 'x' }",
            r"scale 'paper': unknown claim 'pol': did you mean 'pull'",
        ),
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
        (
            "mu = 0.5",
            "mew = 0.5",
            r"suite 'toy', setting 'skewed', arm 'prox': unknown knob 'mew' of "
            r"method 'fedprox': choose from mu, server_lr, weights\.",
        ),
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


@pytest.mark.parametrize("scale", ["smoke", "desk", "tables", "paper"])
@pytest.mark.parametrize("name", sorted(suites()))
def test_every_claim_can_be_judged_on_the_arms_that_run(name: str, scale: str) -> None:
    suite = suites()[name]
    if scale not in suite.scales:
        return
    ran = {(cell.setting, cell.arm) for cell in cells(suite, scale)}
    places = {setting for setting, _ in ran}
    for claim in suite.claims:
        if claim.name in suite.scale(scale).unjudged:
            continue
        arms = [claim.side(r).arm for r in (claim.better, *claim.than, *claim.control)]
        named = places & {*claim.on, *([claim.beyond] if claim.beyond else ())}
        for place in named:
            here = [arm for setting, arm in ran if setting == place]
            assert all(filled(arm, here) for arm in arms)


def test_a_suite_without_a_title_is_refused() -> None:
    with pytest.raises(ConfigError, match="suite 'x': title: field required"):
        parse_suite({}, "x")
