"""What leaves clients in a finished recipe, and the one epsilon of all of it, or why there is none.

Numbers are for σ = 2, a hundred rounds and 10 of 200 clients, δ = 1e-5: 6.47 where rounds forget
(Rényi bound of the sampled Gaussian), 16.33 where clients remember (told_who in
tests/parts/test_accounting.py), 91.8 with everybody in every round.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from helpers import spent_on

from fedskew.api import run
from fedskew.federate.metrics import MAIN
from fedskew.federate.privacy import (
    Course,
    Sent,
    remembers,
    sent_in,
    spent,
    why_no_epsilon,
)
from fedskew.federate.recipe import Phase, Recipe, Stage
from fedskew.methods import METHODS, find
from fedskew.parts.accounting import Noising, epsilon
from fedskew.parts.aggregate import Mean, Uniform
from fedskew.parts.begin import Own
from fedskew.parts.correct import Correction
from fedskew.parts.private import Private
from fedskew.parts.report import LocalLength, Report
from fedskew.parts.select import EVERYTHING, NOTHING
from fedskew.views.terminal import run_summary

NOISY = {"name": "private", "noise": 2.0}
FORGETS, REMEMBERS = 6.4666, 16.3250
AGGREGATES = Private(Mean(Uniform()), clip=1.0, noise=2.0)


def in_a_hundred_rounds(recipe: Recipe) -> dict[str, Any]:
    return spent_on(recipe, rounds=100, per_round=10, clients=200)


def wrappers() -> list[str]:
    """Methods built on others that private may be under and over."""
    built_on = [name for name, method in METHODS.items() if "base" in method.knobs]
    return sorted(set(built_on) - {"private", "feddisco", "feddisk"})


@pytest.mark.parametrize("name", wrappers())
def test_the_same_algorithm_has_the_same_epsilon_however_it_was_wrapped(name: str) -> None:
    over, under = find("private").recipe(base=name, noise=2.0), find(name).recipe(base=NOISY)
    assert over == under
    assert in_a_hundred_rounds(over) == in_a_hundred_rounds(under)


@pytest.mark.parametrize(
    ("base", "known"),
    [
        ("fedavg", FORGETS), ("ditto", FORGETS), ("fedbabu", FORGETS), ("coral", FORGETS),
        ("fedper", REMEMBERS), ("fedrep", REMEMBERS), ("fedbn", REMEMBERS), ("irm", REMEMBERS),
        ("vrex", REMEMBERS), ("ib-irm", REMEMBERS), ("groupdro", REMEMBERS),
    ],
)  # fmt: skip
def test_a_secret_lot_is_no_help_where_clients_remember_earlier_rounds(
    base: str, known: float
) -> None:
    found = in_a_hundred_rounds(find("private").recipe(base=base, noise=2.0))
    assert found["epsilon"] == pytest.approx(known, abs=1e-3)


def test_what_was_spent_is_what_the_accountant_says() -> None:
    recipe = find("private").recipe(clip=3.0, noise=4.0, delta=1e-4)
    assert spent_on(recipe, rounds=50, per_round=10, clients=100) == {
        "epsilon": epsilon(4.0, 50, 10, 100, 1e-4), "delta": 1e-4, "clip": 3.0, "noise": 4.0,
    }  # fmt: skip


def test_densities_learned_without_noise_leave_no_epsilon_for_feddisk() -> None:
    found = in_a_hundred_rounds(find("feddisk").recipe(base=NOISY))
    assert found["epsilon"] is None
    assert found["why"] == (
        "in stage 'density' clients send model parameters, neither clipped nor noised"
    )


def test_noise_of_nothing_is_no_privacy() -> None:
    found = in_a_hundred_rounds(find("private").recipe(noise=0.0))
    assert found["epsilon"] is None
    assert found["why"] == (
        "in stage 'main' updates are clipped, but no noise is added (noise = 0)"
    )


def test_nothing_is_said_of_privacy_where_nobody_asked_for_it() -> None:
    stages = [Stage(MAIN, find("fedavg").recipe())]
    assert spent([Course(stage, 10, 5) for stage in stages], 5) is None
    assert why_no_epsilon(stages) == (
        "in stage 'main' clients send model parameters, neither clipped nor noised"
    )


@dataclass(frozen=True)
class Gossip(Report):
    """A user's report that says nothing about itself."""


def test_a_report_leaves_no_epsilon_whoever_wrote_it() -> None:
    recipe = Recipe(aggregates=AGGREGATES, reports=(LocalLength(), Gossip()))
    assert in_a_hundred_rounds(recipe)["why"] == (
        "in stage 'main' clients send how long their accumulated gradients are and what Gossip "
        "reports, neither clipped nor noised"
    )


def test_what_a_stage_hands_over_leaves_no_epsilon_either() -> None:
    private = Recipe(aggregates=AGGREGATES)
    before = Stage("first", private, hands_over=(Gossip(),))
    assert in_a_hundred_rounds(replace(private, prepares=(before,)))["why"] == (
        "in stage 'first' clients send what Gossip reports, neither clipped nor noised"
    )


def test_raw_data_leave_their_client_and_what_a_server_invents_does_not() -> None:
    assert list(sent_in(Stage(MAIN, find("central").recipe()))) == [Sent(MAIN, "raw data")]
    distilled = find("distilled-vae").recipe()
    assert list(sent_in(Stage(MAIN, distilled))) == []
    assert [one.what for one in sent_in(distilled.prepares[0])] == [
        "their decoder and number of samples, and where their codes lie"
    ]


def test_two_private_stages_add_up_and_count_as_remembering() -> None:
    private = Recipe(aggregates=AGGREGATES)
    twice = replace(private, prepares=(Stage("first", private),))
    found = in_a_hundred_rounds(twice)
    assert found["epsilon"] == pytest.approx(2 * REMEMBERS, abs=1e-3)
    assert found["delta"] == 2e-5


def test_a_stage_in_which_nothing_is_sent_costs_nothing_but_the_secret_of_the_lot() -> None:
    alone = Stage("alone", Recipe(shares=NOTHING))
    found = in_a_hundred_rounds(Recipe(aggregates=AGGREGATES, prepares=(alone,)))
    assert found["epsilon"] == pytest.approx(REMEMBERS, abs=1e-3)


@dataclass(frozen=True)
class Reads(Correction):
    names: tuple[str, ...] = ()

    @property
    def reads(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.names


@dataclass(frozen=True)
class Broadcasting(Mean):
    broadcasts = ("clock",)


@pytest.mark.parametrize(
    ("recipe", "memory"),
    [
        (Recipe(), False),
        (Recipe(begins=Own(EVERYTHING)), True),
        (Recipe(reports=(Gossip(),)), True),
        (Recipe(trains=(Phase(corrects=(Reads(("received", "lr")),)),)), False),
        (Recipe(trains=(Phase(corrects=(Reads(("own_control",)),)),)), True),
        (Recipe(trains=(Phase(corrects=(Reads(("clock",)),)),), aggregates=Broadcasting()), False),
        (Recipe(trains=(Phase(), Phase(corrects=(Reads(("x",)),), model="personal"))), False),
    ],
)
def test_whatever_a_client_has_from_earlier_rounds_is_a_memory(
    recipe: Recipe, memory: bool
) -> None:
    assert remembers(recipe) is memory


def feddisk_on_private(tmp_path: Path) -> Any:
    settings = {
        "federation": {"samples": 200, "clients": 4},
        "model": "logistic",
        "train": {"rounds": 2, "clients_per_round": 2},
        "method": {
            "name": "feddisk", "base": {"name": "private", "noise": 8.0}, "density_rounds": 1,
            "local_epochs": 1,
        },
    }  # fmt: skip
    return run(settings, out=tmp_path, draw=False)


def test_a_run_shows_in_a_sentence_why_it_has_no_epsilon(tmp_path: Path) -> None:
    done = feddisk_on_private(tmp_path)
    assert done.result["privacy"]["epsilon"] is None
    assert (
        "privacy   no epsilon: in stage 'density' clients send model parameters, neither clipped "
        "nor noised" in run_summary(done)
    )


def test_parts_that_say_they_only_keep_send_nothing_when_stages_hand_over(tmp_path: Path) -> None:
    """Two of four clients send 64·10 + 10 numbers of four bytes in both rounds, and no more."""
    stages = {stage["name"]: stage for stage in feddisk_on_private(tmp_path).result["stages"]}
    assert stages["local-density"]["bytes_up"] == 0
    assert stages["main"]["bytes_up"] == 2 * 2 * 650 * 4


def test_what_bounds_the_updates_is_the_aggregators_to_say() -> None:
    assert AGGREGATES.noising == Noising(1.0, 2.0, 1e-5)
    assert Mean().noising is None
