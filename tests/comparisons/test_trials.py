"""What settings methods try: combinations of given values, or draws from declared ranges."""

from __future__ import annotations

from typing import Any

import pytest

from fedskew.comparisons.trials import Given, Setting, Tuning, check_known, settings_of, tuning_of
from fedskew.config import Config, Named, make_config
from fedskew.errors import ConfigError


def config(method: str, **knobs: Any) -> Config:
    return make_config({"method": {"name": method, **knobs}, "train": {"lr": 0.2}})


def tuning(given: Given, trials: int | None = None) -> Tuning:
    found = tuning_of(given, trials)
    assert found is not None
    return found


def tried(method: Config, given: Given, trials: int | None = None) -> list[str]:
    return [str(setting) for setting in settings_of(method, tuning(given, trials), seed=0)]


def test_given_values_are_tried_in_all_combinations_that_a_method_has() -> None:
    given = "lr=0.1,1 mu=0,0.5"
    assert tried(config("fedavg"), given) == ["lr=0.1", "lr=1"]
    assert tried(config("fedprox"), given) == [
        "lr=0.1, mu=0", "lr=0.1, mu=0.5", "lr=1, mu=0", "lr=1, mu=0.5",
    ]  # fmt: skip
    assert tried(config("fedavg"), "mu=1") == ["as configured"]


@pytest.mark.parametrize(
    "given",
    [
        "lr=0.1,1 mu=0,0.5", ["lr=0.1,1", "mu=0,0.5"], {"lr": [0.1, 1], "mu": (0, 0.5)},
        {"train.lr": [0.1, 1], "method.mu": [0, 0.5]},
    ],
)  # fmt: skip
def test_what_to_tune_may_be_said_in_several_ways(given: Given) -> None:
    assert dict(tuning(given).values) == {"lr": (0.1, 1), "mu": (0, 0.5)}


def test_a_name_alone_stands_for_the_values_its_knob_declares() -> None:
    assert tried(config("fedprox"), "mu") == ["mu=0.001", "mu=0.01", "mu=0.1", "mu=1.0"]
    with pytest.raises(ConfigError, match="lr needs values to try"):
        tried(config("fedprox"), "lr")
    with pytest.raises(ConfigError, match="declares no values to try"):
        tried(config("fedprox"), "weights")


def test_fewer_trials_than_combinations_are_drawn_and_stay_in_order() -> None:
    given = {"lr": [0.1, 0.2, 0.3, 0.4], "mu": [0.0, 0.1, 0.2]}
    whole, some = tried(config("fedprox"), given), tried(config("fedprox"), given, 5)
    assert len(whole) == 12
    assert len(some) == 5
    assert [each for each in whole if each in some] == some
    assert tried(config("fedavg"), given, 5) == tried(config("fedavg"), given)


def test_without_a_name_rates_and_declared_ranges_are_drawn_beside_what_is_configured() -> None:
    found = settings_of(config("fedprox", mu=0.3), tuning(True), seed=0)
    assert len(found) == 8
    assert str(found[0]) == "lr=0.2, mu=0.3, server_lr=1.0"
    for setting in found:
        drawn = {name: value for _, name, value in setting.changes}
        assert 0.02 <= drawn["lr"] <= 2.0
        assert 0.3 <= drawn["server_lr"] <= 3.0
        assert 0.001 <= drawn["mu"] <= 1.0
    assert len({value for s in found for _, name, value in s.changes if name == "lr"}) > 5


def test_draws_are_the_same_for_all_methods_and_more_trials_add_to_fewer() -> None:
    def rates(method: str, trials: int, seed: int = 0) -> list[float]:
        found = settings_of(config(method), tuning("all", trials), seed)
        return [value for s in found for _, name, value in s.changes if name == "lr"]

    assert rates("fedprox", 5) == rates("local", 5)
    assert rates("local", 9)[:5] == rates("local", 5)
    assert rates("local", 5, seed=1)[1:] != rates("local", 5)[1:]


def test_what_a_score_does_not_count_is_not_tuned_unless_it_is_named() -> None:
    names = {
        name
        for method in ("private", "compressed", "fedshibu")
        for s in settings_of(config(method), tuning(True), 0)
        for _, name, _ in s.changes
    }
    assert {"clip", "lr", "sharpen"} <= names
    assert not {"noise", "share", "mode"} & names
    assert tried(config("private"), "noise=1,2") == ["noise=1", "noise=2"]


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ("muu=1", "unknown knob 'muu' of any compared method: did you mean 'mu'"),
        ("rounds=1,2", "train.rounds is not tuned: it is part of the budget"),
    ],
)
def test_a_knob_that_no_method_has_is_refused(given: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        check_known(tuning(given), [Named(name="fedavg"), Named(name="fedprox")])
    check_known(tuning("mu=1"), [Named(name="fedprox")])


@pytest.mark.parametrize(
    ("given", "trials", "complaint"),
    [
        ("=1", None, "--tune wants name=value,value, not '=1'"),
        ("lr=", None, "--tune wants name=value,value, not 'lr='"),
        ("lr=0.1,,1", None, "--tune lr has an empty value"),
        ({"lr": []}, None, "--tune lr has an empty value"),
        (False, 3, "trials are of settings that are tuned"),
        (True, 0, "trials must be at least 1"),
    ],
)
def test_what_cannot_be_meant_is_refused(given: Given, trials: int | None, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        tuning_of(given, trials)


def test_a_setting_is_checked_when_it_is_applied() -> None:
    good = Setting((("train", "lr", 1), ("method", "mu", 0.5))).applied(config("fedprox", mu=0.1))
    assert (good.train.lr, good.method.knobs) == (1.0, {"mu": 0.5})
    with pytest.raises(ConfigError, match="--tune lr=0: lr: input should be greater than 0"):
        Setting((("train", "lr", 0),)).applied(config("fedprox"))
    with pytest.raises(ConfigError, match="mu of method 'fedprox' must be a number of at least 0"):
        Setting((("method", "mu", -1),)).applied(config("fedprox"))
