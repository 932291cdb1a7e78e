"""Which round counts: the rules by hand, and runs that leave one client out."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from helpers import method_holdings
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up import results_of

from fedskew.api import run
from fedskew.comparisons.selection import (
    MEANING,
    RULES,
    Curves,
    Members,
    chosen,
    curves_of,
    folds,
    left_out_of,
)
from fedskew.config import Config, make_config
from fedskew.data.federation import Federation
from fedskew.errors import ConfigError
from fedskew.federate.metrics import Row
from fedskew.federate.rounds import Choice, Score
from fedskew.federate.rows import validation_score
from fedskew.runs.experiment import Run, make_federation
from fedskew.runs.identity import resolve
from fedskew.runs.results import Results

CLIENTS = 5
FEDERATION: dict[str, Any] = {
    "clients": CLIENTS, "unseen": 1, "partition": {"name": "dirichlet", "alpha": 0.5},
}  # fmt: skip
UNIT = {**FEDERATION, "normalise": "unit"}
BASE = {"model": "logistic", "train": {"rounds": 3}, "federation": FEDERATION}


def rows(values: dict[int, float], **where: Any) -> list[Row]:
    """One row a round; ``where`` says of whom."""
    row = Row("main", 0, "global", "seen", "ann", "none", "test", "accuracy", 0.0, 1)
    return [replace(row, round=at, value=value, **where) for at, value in values.items()]


@dataclass(frozen=True)
class MadeUp:
    """A run that is nothing but its rows."""

    measured: list[Row]
    changes: dict[str, Any] = field(default_factory=dict)
    left_out: str = ""

    @property
    def result(self) -> dict[str, Any]:
        return {
            "primary_model": "global", "primary_metric": "accuracy", "higher_is_better": True,
            **self.changes,
        }  # fmt: skip

    @property
    def config(self) -> Config:
        return make_config({"federation": {"unseen": ["zoe", self.left_out]}})

    @property
    def results(self) -> Results:
        return results_of(self.measured)


def curves(measured: list[Row], *folded: MadeUp, **changes: Any) -> Curves:
    return curves_of(cast(Run, MadeUp(measured, changes)), [cast(Run, fold) for fold in folded])


def scores(values: dict[int, float]) -> dict[int, Score]:
    return {number: Score(value) for number, value in values.items()}


def test_every_rule_picks_the_round_it_says() -> None:
    found = Curves(
        validation=scores({2: 0.5, 4: 0.7, 6: 0.6, 8: 0.6}),
        ood=scores({2: 0.3, 4: 0.2, 6: 0.1, 8: 0.25}),
        left_out=scores({2: 0.4, 4: 0.3, 6: 0.45, 8: 0.2}),
        environment=scores({2: 0.6, 4: 0.5, 6: 0.55, 8: 0.65}),
    )
    assert {rule: chosen(rule, found) for rule in RULES} == {
        "last": 8, "validation": 4, "environment": 8, "left-out": 6, "oracle": 2,
    }  # fmt: skip
    lower = replace(found, higher_is_better=False)
    assert {rule: chosen(rule, lower) for rule in RULES} == {
        "last": 8, "validation": 2, "environment": 4, "left-out": 8, "oracle": 6,
    }  # fmt: skip
    assert MEANING.keys() == set(RULES)
    assert "peeks" in MEANING["oracle"]


def test_of_equal_rounds_the_latest_is_taken_and_unknown_scores_are_passed_over() -> None:
    validation = scores({5: 0.5, 3: 0.5, 1: 0.4, 6: math.nan})
    assert chosen("validation", Curves(validation, {})) == 5
    assert chosen("validation", Curves(scores({1: math.nan}), scores({1: 0.5}))) is None


def test_every_rule_breaks_ties_by_the_loss_it_sees_on_the_data_it_looks_at() -> None:
    def tied(best: int) -> dict[int, Score]:
        return {n: Score(0.5, loss=0.1 if n == best else 0.2) for n in (1, 2, 3, 4)}

    found = Curves(tied(1), ood=tied(3), left_out=tied(2), environment=tied(4))
    assert {rule: chosen(rule, found) for rule in RULES} == {
        "last": 4, "validation": 1, "environment": 4, "left-out": 2, "oracle": 3,
    }  # fmt: skip


def test_losses_and_the_number_of_clients_are_read_from_the_rows() -> None:
    """Round 2 is as good as round 1 and has less loss; in round 3 bob is missing."""
    measured = [
        *rows({1: 0.5, 2: 1.0, 3: 1.0}, split="validation"),
        *rows({1: 1.0, 2: 0.5}, split="validation", client="bob"),
        *rows({1: 0.9, 2: 0.7, 3: 0.1}, split="validation", metric="loss"),
        *rows({1: 0.1, 2: 0.2}, split="validation", client="bob", metric="loss"),
        *rows({1: 9.0, 2: 9.0, 3: 9.0}, metric="loss"),
    ]
    found = curves(measured)
    assert found.validation == {
        1: Score(0.75, pytest.approx(0.5), 2),
        2: Score(0.75, pytest.approx(0.45), 2),
        3: Score(1.0, 0.1, 1),
    }
    assert chosen("validation", found) == 2


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_without_data_picks_nothing(rule: str) -> None:
    assert chosen(rule, Curves(validation={}, ood={})) is None


tie = st.sampled_from([0.0, 1 / 3, 0.5, 2 / 3, 1.0])
answer = st.tuples(tie, tie | st.just(math.nan)) | st.none()


@settings(max_examples=60)
@given(
    st.dictionaries(st.integers(1, 30), st.lists(answer, min_size=3, max_size=3), max_size=10),
    st.booleans(),
)
def test_the_rule_reads_off_the_rows_what_the_server_chose_round_by_round(
    told: dict[int, list[tuple[float, float] | None]], higher: bool
) -> None:
    """Every client may be silent in any round; scores and losses tie often."""
    plan = method_holdings("fedavg").plan
    choice, measured = Choice(), []
    for number in sorted(told):
        here = [
            row
            for client, said in zip("abc", told[number], strict=True)
            for metric, value in zip(("loss", "accuracy"), reversed(said or ()), strict=False)
            for row in rows({number: value}, client=client, split="validation", metric=metric)
        ]
        choice = choice.see(number, validation_score(here, plan), higher)
        measured += here
    found = curves(measured, higher_is_better=higher)
    assert chosen("validation", found) == (choice.round or None)


def test_curves_are_means_over_clients_of_models_as_trained() -> None:
    measured = [
        *rows({1: 0.2, 2: 0.4}, split="validation"),
        *rows({1: 0.6, 2: 1.0}, split="validation", client="bob"),
        *rows({1: 0.1, 2: 0.9}),
        *rows({1: 0.3, 2: 0.1}, split="environment"),
        *rows({1: 0.5, 2: 0.2}, split="environment", client="bob"),
        *rows({1: 0.5, 2: 0.75}, on="unseen", client="zoe"),
        *rows({1: 0.0, 2: 0.25}, on="unseen", client="yan"),
        # None of these concern the rules.
        *rows({1: 9.0}, on="unseen", client="zoe", split="validation"),
        *rows({1: 9.0}, on="unseen", client="zoe", adapted="fine-tuned 1"),
        *rows({1: 9.0}, on="unseen", client="zoe", model="personal"),
        *rows({1: 9.0}, on="unseen", client="zoe", metric="loss"),
        *rows({1: 9.0}, on="unseen", client="zoe", stage="before"),
        *rows({1: 9.0}, on="central", client=""),
    ]
    found = curves(measured)
    assert found.validation == {1: Score(0.4, clients=2), 2: Score(0.7, clients=2)}
    assert {n: score.value for n, score in found.ood.items()} == {1: 0.25, 2: 0.5}
    assert found.in_domain == {1: 0.1, 2: 0.9}
    assert found.left_out == {}
    environment = {n: score.value for n, score in found.environment.items()}
    assert environment == {1: pytest.approx(0.4), 2: pytest.approx(0.15)}


def test_without_unseen_clients_the_target_is_the_global_model_on_the_central_test_set() -> None:
    measured = [
        *rows({1: 0.3}, on="central", client=""),
        *rows({1: 9.0}, on="central", client="ann", model="personal"),
        *rows({1: 0.7}, model="personal"),
    ]
    assert curves(measured, primary_model="personal").ood == {1: Score(0.3)}


def test_the_left_out_curve_is_the_mean_of_left_out_clients_on_their_validation_data() -> None:
    whole = rows({1: 0.5, 2: 0.5, 3: 0.5}, on="unseen", client="zoe")

    def without(name: str, values: dict[int, float]) -> MadeUp:
        measured = [
            *rows(values, on="unseen", client=name, split="validation"),
            *rows(dict.fromkeys(values, 9.0), on="unseen", client=name),
            *rows(dict.fromkeys(values, 9.0), on="unseen", client="zoe", split="validation"),
        ]
        return MadeUp(measured, left_out=name)

    ann, bob = without("ann", {1: 0.2, 2: 0.6, 3: 0.7}), without("bob", {1: 0.4, 2: 0.8})
    found = curves(whole, ann, bob)
    # Round 3 is not among those that all runs scored.
    means = {n: (score.value, score.clients) for n, score in found.left_out.items()}
    assert means == {1: (pytest.approx(0.3), 2), 2: (pytest.approx(0.7), 2)}
    assert chosen("left-out", found) == 2
    mute = MadeUp(rows({1: 9.0}, on="unseen", client="cat"), left_out="cat")
    assert curves(whole, ann, bob, mute).left_out.keys() == {1, 2}


def held(federation: Federation) -> dict[str, tuple[Any, ...]]:
    """All that every client holds, by name."""
    environment = federation.environment
    return {
        name: tuple(
            values[client.split(split)].numpy().tobytes()
            for split in ("train", "validation", "test")
            for values in (federation.x, federation.y, environment)
            if values is not None
        )
        for name, client in federation.by_name.items()
    }


@pytest.mark.parametrize(
    "federation",
    [
        UNIT,
        {**UNIT, "unseen": 0, "skew": [{"name": "rotation", "low": 0, "high": 90}]},
        {
            **UNIT,
            "skew": [{"name": "colour", "mode": "class", "correlation": [0.9, 0.6]}],
        },
    ],
    ids=["labels", "turned", "coloured"],
)
def test_a_fold_leaves_one_client_out_and_everybody_holds_what_they_held(
    federation: dict[str, Any],
) -> None:
    config = resolve(make_config({**BASE, "federation": federation}))
    whole = make_federation(config)
    seen, unseen = ({c.name for c in group} for group in (whole.clients, whole.unseen))
    made = folds(config, whole, "all")
    assert {left_out_of(fold) for fold in made} == seen
    assert len(made) == len(seen)
    for fold in made:
        built = make_federation(fold)
        assert {c.name for c in built.unseen} == unseen | {left_out_of(fold)}
        assert {c.name for c in built.clients} == seen - {left_out_of(fold)}
        assert held(built) == held(whole)


def test_who_is_left_out_has_no_say_in_how_samples_are_scaled() -> None:
    config = resolve(make_config({**BASE, "federation": FEDERATION}))
    whole = make_federation(config)
    for fold in folds(config, whole, "all"):
        built = make_federation(fold)
        assert not torch.equal(built.x, whole.x)
        training = built.x[np.concatenate([client.train for client in built.clients])].double()
        assert float(training.mean()) == pytest.approx(0, abs=1e-6)
        assert float(training.std(correction=0)) == pytest.approx(1, abs=1e-6)


def test_who_is_left_out_follows_the_split_and_more_folds_only_add() -> None:
    members = Members(tuple("abcdefgh"), ("z",), tuple("abcdefg"))

    def left(count: int, **changes: Any) -> list[str]:
        config = resolve(make_config({**BASE, **changes}))
        return [left_out_of(fold) for fold in folds(config, members, count)]

    assert left(0) == []
    assert sorted(left(7)) == list("abcdefg")
    assert left(3) == left(7)[:3] == left(3, method="scaffold") == left(3, train={"rounds": 9})
    assert left(7) != left(7, seed=1)
    assert members.silent == ("h",)


def test_a_fold_asks_for_no_more_clients_than_are_left_and_adapts_nothing() -> None:
    values = {
        **BASE, "train": {"clients_per_round": 4, "min_clients": 4, "rounds": 3},
        "evaluate": {"fine_tune_epochs": 2, "shots": [1, "all"], "every": 2},
    }  # fmt: skip
    config = resolve(make_config(values))
    members = Members(tuple("abcd"), (), tuple("abcd"))
    (fold,) = folds(config, members, 1)
    assert (fold.train.clients_per_round, fold.train.min_clients) == (3, 3)
    assert (fold.evaluate.fine_tune_epochs, fold.evaluate.shots) == (0, ["all"])
    assert fold.evaluate.every == 2
    assert make_config(fold.resolved()) == fold
    larger = Members(tuple("abcde"), (), tuple("abcd"))
    assert folds(config, larger, 1)[0].train == config.train


@pytest.mark.parametrize(
    ("members", "count", "dataset", "complaint"),
    [
        (Members(("a",), (), ("a",)), 1, "digits", "at least two training clients"),
        (Members(("a", "b"), (), ()), "all", "digits", "set federation.validation above 0"),
        (Members(("a", "b"), (), ("a", "b")), 3, "digits", "from 0 to 2"),
        (Members(("a", "b"), (), ("a", "b")), -1, "digits", "from 0 to 2"),
        (Members(("a", "b"), (), ("a", "b")), 1, "mine:make", "whose function decides"),
    ],
)
def test_folds_that_cannot_be_are_refused(
    members: Members, count: Any, dataset: str, complaint: str
) -> None:
    config = make_config({"federation": {"dataset": dataset}})
    with pytest.raises(ConfigError, match=complaint):
        folds(config, members, count)


@pytest.mark.parametrize("method", ["fedavg", "local", "feddisk"])
def test_the_rule_and_the_server_agree_on_a_plateau(method: str, tmp_path: Path) -> None:
    """Steps too small to move an answer: accuracies tie, and losses tell rounds apart."""
    unit = {**FEDERATION, "normalise": "unit"}
    train = {"rounds": 4, "lr": 1e-6}
    values = {**BASE, "method": method, "train": train, "federation": unit}
    done = run(values, out=tmp_path, draw=False)
    found = curves_of(done)
    assert len({score.value for score in found.validation.values()}) == 1
    losses = {number: score.loss for number, score in found.validation.items()}
    smallest = min(losses, key=lambda number: (losses[number], -number))
    assert chosen("validation", found) == done.result["selected_round"] == smallest


def test_a_finished_run_tells_its_members_and_the_round_it_selected(tmp_path: Path) -> None:
    values = {**BASE, "train": {"rounds": 6, "lr": 0.3}}
    config = resolve(make_config(values))
    federation = make_federation(config)
    done = run(config, out=tmp_path, federation=federation, draw=False)
    assert Members.found_in(done.results.rows) == Members.of(federation)
    found = curves_of(done)
    assert chosen("validation", found) == done.result["selected_round"]
    assert chosen("last", found) == 6
    unseen = federation.unseen[0].test
    model = done.model(round="last")
    right = model(federation.x[unseen]).argmax(dim=1) == federation.y[unseen]
    assert found.ood[6].value == pytest.approx(float(right.float().mean()))


def test_the_left_out_curve_of_real_runs_is_the_left_out_clients_validation_accuracy(
    tmp_path: Path,
) -> None:
    config = resolve(make_config(BASE))
    whole = make_federation(config)
    done = run(config, out=tmp_path, federation=whole, draw=False)
    made = folds(config, whole, 2)
    without = [run(fold, out=tmp_path, draw=False) for fold in made]
    accuracies = []
    for fold, finished in zip(made, without, strict=True):
        kept = whole.by_name[left_out_of(fold)].validation
        right = finished.model(round="last")(whole.x[kept]).argmax(dim=1) == whole.y[kept]
        accuracies.append(float(right.float().mean()))
    found = curves_of(done, without)
    assert found.left_out.keys() == {1, 2, 3}
    assert found.left_out[3].value == pytest.approx(np.mean(accuracies))
