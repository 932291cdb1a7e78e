"""Pairs of an objective and an aggregator, and patterns that name several."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from toy_pairs import PAIRS, TOY, toy_suite

from fedskew.errors import ConfigError
from fedskew.papers.grid import cells
from fedskew.papers.pairs import filled
from fedskew.papers.suite import find_suite, reproduce


def test_every_pair_is_an_arm_with_the_aggregator_as_base(tmp_path: Path) -> None:
    suite = toy_suite(tmp_path)
    assert [arm.name for arm in suite.arms] == ["central", *PAIRS]
    last = suite.arm("irm+fedprox")
    assert last.label == "irm × fedprox"
    assert last.method.name == "irm"
    assert last.method.knobs == {"lam": 2.0, "base": {"name": "fedprox", "mu": 0.5}}
    assert suite.arm("irm+fedavg").method.knobs["base"] == "fedavg"


def test_configs_of_both_sides_are_laid_over_each_other(tmp_path: Path) -> None:
    found = {c.arm: c.config.train for c in cells(toy_suite(tmp_path), "smoke") if not c.seed}
    rates = {arm: (train.lr, train.momentum) for arm, train in found.items()}
    assert rates == {
        "central": (0.1, 0.0), "erm+fedavg": (0.1, 0.0), "erm+fedprox": (0.2, 0.0),
        "irm+fedavg": (0.05, 0.5), "irm+fedprox": (0.2, 0.5),
    }  # fmt: skip


def test_an_aggregator_may_train_otherwise_in_one_setting(tmp_path: Path) -> None:
    there = "aggregator_config.fedprox.train.lr = 0.2"
    suite = toy_suite(tmp_path, (there, f"{there}\naggregator_on.fedprox.shards.train.lr = 0.7"))
    rates = {
        (cell.setting, cell.arm): cell.config.train.lr
        for cell in cells(suite, "desk")
        if cell.arm in ("erm+fedavg", "erm+fedprox")
    }
    assert rates == {
        ("skewed", "erm+fedavg"): 0.1, ("skewed", "erm+fedprox"): 0.2,
        ("shards", "erm+fedavg"): 0.1, ("shards", "erm+fedprox"): 0.7,
    }  # fmt: skip
    with pytest.raises(ConfigError, match="unknown aggregator 'fedprx'"):
        toy_suite(tmp_path, (there, "aggregator_on.fedprx.shards.train.lr = 0.7"))


def test_patterns_limit_settings_and_scales_to_a_row_or_a_column(tmp_path: Path) -> None:
    suite = toy_suite(tmp_path)
    ran = [(c.setting, c.arm) for c in cells(suite, "desk")]
    assert [arm for setting, arm in ran if setting == "shards"] == PAIRS[:3]
    assert [arm for setting, arm in ran if setting == "skewed"] == ["central", *PAIRS]
    paper = {(c.setting, c.arm) for c in cells(suite, "paper")}
    assert {arm for setting, arm in paper if setting == "skewed"} == {"central", *PAIRS[:2]}
    rounds = {c.arm: c.config.train.rounds for c in cells(suite, "desk")}
    assert rounds == {"central": 3, **dict.fromkeys(PAIRS[:2], 3), **dict.fromkeys(PAIRS[2:], 7)}


def test_a_pattern_means_whole_names_only() -> None:
    names = ["erm+fedavg", "ib-erm+fedavg", "erm+fedavg-crsm", "fedavg"]
    assert filled("erm+*", names) == {"fedavg": "erm+fedavg", "fedavg-crsm": "erm+fedavg-crsm"}
    assert list(filled("*+fedavg", names)) == ["erm", "ib-erm"]
    assert filled("fedavg", names) == {"": "fedavg"}
    assert filled("fed*avg", names) == {"": "fedavg"}
    assert filled("fedav*vg", names) == {}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"erm", {', '"erm", "erm", {', r"matrix: two objectives are called 'erm'"),
        ('"irm", lam', '"irm", base = "x", lam', r"matrix: objective 'irm' has a base"),
        ('["fedavg", {', '["my:rule", {', r"matrix: aggregator 'my:rule' cannot be part of"),
        ("objective_config.irm", "objective_config.irn", r"unknown objective 'irn'.*'irm'"),
        ("aggregators =", "agregators =", r"matrix: unknown key 'agregators'.*'aggregators'"),
        ('"erm+*"]\nconfig', '"erm-*"]\nconfig', r"setting 'shards': no arm is like 'erm-\*'"),
        ('["*+fedavg"]\n\n[sc', '["*+fed*"]\n\n[sc', r"selection: pattern '\*\+fed\*' has more"),
        ('"irm+*".train', '"irm+fedavgg".train', r"scale 'desk': unknown arm.*'irm\+fedavg'"),
        ('than = "irm+*"', 'than = "irn+*"', r"claim 'plain': no arm is like 'irn\+\*'"),
        ("folds = 2\n", 'folds = 2\nsettings = ["x"]\n', r"selection: unknown setting 'x'"),
        ('at = "left-out"', 'at = "leftout"', r"claims\.0\.at: .*'left-out'"),
        ('folds = "all"', 'folds = "al"', r"scales\.paper\.folds"),
        ('headline = "ood"', 'headline = "odd"', r"headline: .*'ood'"),
        ('name = "central"', 'name = "erm+fedavg"', r"two arms are called 'erm\+fedavg'"),
        ("[matrix]", '[matrix]\ncurves = "*+x"', r"matrix.curves: no arm is like '\*\+x'"),
    ],
)
def test_a_bad_matrix_gets_one_clear_sentence(
    old: str, new: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=rf"^suite 'toy': .*{message}"):
        toy_suite(tmp_path, (old, new))


def test_an_unknown_objective_is_named_before_anything_runs(tmp_path: Path) -> None:
    toy_suite(
        tmp_path, ('["erm", {', '["ermm", {'), ('"erm+*"]\nconfig', '"ermm+*"]\nconfig'),
        ('"central", "erm+*"', '"central"'), ('better = "erm+*"', 'better = "ermm+*"'),
    )  # fmt: skip
    with pytest.raises(ConfigError, match=r"arm 'ermm\+fedavg': unknown method 'ermm'.*'erm'"):
        reproduce(str(tmp_path / "toy.toml"), "smoke", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_suite_needs_arms_or_a_matrix(tmp_path: Path) -> None:
    text = re.sub(r"\[matrix\].*?\[selection\].*?\[scales", "[scales", TOY, flags=re.DOTALL)
    text = re.sub(r"\[\[arms\]\].*", "", text, flags=re.DOTALL)
    (tmp_path / "toy.toml").write_text(text)
    with pytest.raises(ConfigError, match="arms: a suite needs arms, or a matrix of them"):
        find_suite(str(tmp_path / "toy.toml"))
