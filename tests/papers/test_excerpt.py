"""Parts of a suite: settings, arms and tables by name or pattern, and the number of seeds."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedskew.errors import ConfigError
from fedskew.papers.excerpt import Excerpt
from fedskew.papers.format import Suite, find_suite
from fedskew.papers.suite import suites

TABLES = """
[tables]
"3.1" = { settings = "shards", arms = ["avg", "alone"] }
"figure 2" = { settings = ["skewed", "shards"], arms = "prox" }
"""


@pytest.fixture
def suite(toy: Path) -> Suite:
    toy.write_text(toy.read_text() + TABLES)
    return find_suite(str(toy))


def chosen(suite: Suite, excerpt: Excerpt, scale: str = "paper") -> list[tuple[str, str, int]]:
    return [(cell.setting, cell.arm, cell.seed) for cell in excerpt.of(suite, scale)]


def test_settings_and_arms_are_chosen_by_name_or_pattern(suite: Suite) -> None:
    one = Excerpt(settings=["sk*"], arms=["a*", "slow"], seeds=1)
    assert chosen(suite, one) == [("skewed", "avg", 0), ("skewed", "slow", 0)]


def test_seeds_take_the_place_of_the_scales(suite: Suite) -> None:
    two = chosen(suite, Excerpt(seeds=2), "smoke")
    assert {seed for _, _, seed in two} == {0, 1}
    assert {seed for _, _, seed in chosen(suite, Excerpt(seeds=3), "smoke")} == {0, 1, 2}


def test_seeds_take_the_place_of_those_of_one_setting_too(suite: Suite) -> None:
    scale = suite.scale("smoke").model_copy(update={"seeds_on": {"skewed": 4}})
    other = suite.model_copy(update={"scales": {**suite.scales, "smoke": scale}})
    assert len({seed for _, _, seed in chosen(other, Excerpt(), "smoke")}) == 4
    assert len({seed for _, _, seed in chosen(other, Excerpt(seeds=1), "smoke")}) == 1


def test_a_table_is_what_the_source_ran_for_it(suite: Suite) -> None:
    assert chosen(suite, Excerpt(tables=["3.1"], seeds=1)) == [
        ("shards", "avg", 0), ("shards", "alone", 0),
    ]  # fmt: skip
    both = chosen(suite, Excerpt(tables=["3.1", "figure 2"], seeds=1))
    assert ("skewed", "prox", 0) in both
    assert ("skewed", "avg", 0) not in both
    assert len(both) == 4
    narrowed = Excerpt(tables=["figure 2"], settings=["shards"], seeds=1)
    assert chosen(suite, narrowed) == [("shards", "prox", 0)]


@pytest.mark.parametrize(
    ("excerpt", "sentence"),
    [
        (Excerpt(arms=["alnoe"]), "unknown arm 'alnoe' of scale 'paper'.*did you mean 'alone'"),
        (Excerpt(settings=["*e*"]), "pattern '.e.' has more than one"),
        (Excerpt(tables=["3.2"]), "unknown table '3.2' of suite 'toy': did you mean '3.1'"),
        (Excerpt(settings=["skewed"], arms=["alone"]), "no run of scale 'paper' of suite 'toy' is"),
        (Excerpt(seeds=0), "seeds must be at least 1"),
    ],
)
def test_what_means_no_run_is_refused(excerpt: Excerpt, sentence: str, suite: Suite) -> None:
    with pytest.raises(ConfigError, match=sentence):
        excerpt.of(suite, "paper")


def test_a_table_that_names_what_is_not_there_is_refused(toy: Path) -> None:
    text = toy.read_text()
    for wrong, sentence in (
        ('settings = "skewd", arms = "avg"', "table '1': unknown setting 'skewd'"),
        ('settings = "skewed", arms = "agv"', "table '1': unknown arm 'agv'"),
    ):
        toy.write_text(f'{text}\n[tables]\n"1" = {{ {wrong} }}\n')
        with pytest.raises(ConfigError, match=sentence):
            find_suite(str(toy))


def test_options_can_be_typed_again() -> None:
    excerpt = Excerpt(["a*"], ["x", "y"], ["5.1", "figure 2"], 3)
    assert excerpt.options == ' --tables "5.1,figure 2" --settings "a*" --arms x,y --seeds 3'
    assert excerpt.is_part
    assert not Excerpt(seeds=3).is_part


@pytest.mark.parametrize(("name", "scale"), [("civae", "tables"), ("latent-weights", "paper")])
def test_the_tables_of_the_shipped_suites_have_runs(name: str, scale: str) -> None:
    suite = suites()[name]
    assert suite.tables
    for table in suite.tables:
        found = chosen(suite, Excerpt(tables=[table]), scale)
        assert {setting for setting, _, _ in found} == set(suite.tables[table].settings)
        assert {arm for _, arm, _ in found} <= set(suite.tables[table].arms)
