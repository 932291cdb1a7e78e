"""What names a run: everything that decides its numbers, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from helpers import toy_federation

import fedskew
from fedskew.comparisons.crossing import label
from fedskew.config import Named, make_config
from fedskew.data.datasets import DATASETS
from fedskew.data.environments import ENVIRONMENTS
from fedskew.data.federation import Federation
from fedskew.data.fingerprint import fingerprint
from fedskew.data.partition import PARTITIONS
from fedskew.data.skew import SKEWS
from fedskew.federate.holdings import roster_of
from fedskew.federate.recipe import Recipe
from fedskew.methods import METHODS, find
from fedskew.models.registry import MODELS
from fedskew.registry.entries import Registry
from fedskew.runs import identity as identity_module
from fedskew.runs.identity import Identity, identify, resolve

QUICK: dict[str, Any] = {"model": "logistic", "train": {"rounds": 1}}
TOY = toy_federation()


def identified(**settings: Any) -> Identity:
    return identify(
        resolve(make_config({**QUICK, **settings})), lambda: roster_of(TOY), fingerprint(TOY)
    )


def name(**settings: Any) -> str:
    return identified(**settings).name


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ({"model": "mlp"}, {"model": {"name": "mlp", "hidden": [200, 200]}}),
        ({"method": "fedprox"}, {"method": {"name": "fedprox", "mu": 0.01}}),
        (
            {"method": {"name": "private", "base": "fedprox"}},
            {"method": {"name": "private", "base": {"name": "fedprox", "mu": 0.01}}},
        ),
        (
            {"method": {"name": "irm"}},
            {"method": {"name": "irm", "base": {"name": "fedavg", "weights": "size"}}},
        ),
        (
            {"federation": {"partition": "dirichlet"}},
            {"federation": {"partition": {"name": "dirichlet", "alpha": 0.5, "cap": False}}},
        ),
        (
            {"federation": {"skew": ["noise"]}},
            {"federation": {"skew": [{"name": "noise", "level": 0.3}]}},
        ),
        (
            {"federation": {"environments": "random"}},
            {"federation": {"environments": {"name": "random", "count": 2}}},
        ),
        (
            {"federation": {"dataset": "mnist"}},
            {"federation": {"dataset": "mnist", "options": {"writers": False}}},
        ),
        (
            {"federation": {"dataset": "fe-rotmnist"}},
            {"federation": {"dataset": "mnist", "skew": ["rotation"]}},
        ),
        ({"federation": {"features": {}}}, {"federation": {"features": None}}),
        (
            {"federation": {"features": {"top": 3}}},
            {"federation": {"features": {"top": 3, "scale": None}}},
        ),
        ({"seed": 3}, {"seed": 3, "federation": {"seed": 3}}),
        ({"train": {}}, {"train": {"lr": 0.1, "epochs": 1}}),
        ({"train": {"rounds": 20}}, {"train": {"rounds": 60}}),
        ({}, {"secure": False}),
        ({"secure": True}, {"secure": {"bits": 24}}),
        ({"federation": {"dataset": "there/own.csv"}}, {"federation": {"dataset": "own.csv"}}),
    ],
)
def test_two_ways_to_say_the_same_are_one_run(short: dict[str, Any], long: dict[str, Any]) -> None:
    assert name(**short) == name(**long)


@pytest.mark.parametrize(
    "settings",
    [
        {"seed": 1},
        {"executor": "threads"},
        {"device": "meta"},
        {"evaluate": {"every": 2}},
        {"secure": True},
        {"train": {"rounds": 1, "lr": 0.2}},
        {"federation": {"seed": 5}},
        {"method": {"name": "private", "base": {"name": "fedprox", "mu": 0.1}}},
    ],
)
def test_other_settings_are_another_run(settings: dict[str, Any]) -> None:
    assert name(**settings) != name()


def test_every_default_there_is_is_written_down() -> None:
    for known, section in ((PARTITIONS, "partition"), (ENVIRONMENTS, "environments")):
        for each, choice in known.items():
            config = resolve(make_config({"federation": {section: each}}))
            assert getattr(config.federation, section).knobs == choice.defaults
    for each, choice in SKEWS.items():
        (skew,) = resolve(make_config({"federation": {"skew": [each]}})).federation.skew
        assert skew.knobs == choice.defaults
    for each, entry in DATASETS.items():
        section = {"dataset": each, "partition": "iid"}
        assert resolve(make_config({"federation": section})).federation.options == entry.defaults
    for each, model in MODELS.items():
        written = resolve(make_config({"model": each})).model.knobs
        assert {n: tuple(v) if isinstance(v, list) else v for n, v in written.items()} == (
            model.defaults
        )
    for each, method in METHODS.items():
        written = resolve(make_config({"method": each})).method.knobs
        assert written.keys() == method.defaults.keys()
        if "base" in written:
            assert written["base"].keys() == {"name", *find("fedavg").defaults}


def test_what_is_written_down_is_read_back_and_written_down_alike() -> None:
    for each in METHODS:
        config = resolve(make_config({"method": each, "model": "mlp"}))
        assert resolve(make_config(json.loads(json.dumps(config.resolved())))) == config


def test_a_method_is_labelled_as_it_was_given_however_much_is_written_down() -> None:
    for given, expected in (
        ({"name": "private"}, "private"),
        ({"name": "private", "base": "fedprox"}, "private (base=fedprox)"),
        ({"name": "irm", "base": {"name": "fedprox", "mu": 0.1}}, "irm × fedprox (mu=0.1)"),
        (
            {"name": "feddisk", "base": {"name": "fedreptile", "base": "fedavg", "eta": 0.5}},
            "feddisk (base={'name': 'fedreptile', 'eta': 0.5})",
        ),
    ):
        written = resolve(make_config({"method": given})).method
        assert label(Named(**given)) in (expected, label(written))
        assert label(written) == expected


def _noise(federation: Federation, seed: int, *, level: float = 0.4, clip: bool = True) -> None: ...
def _iid(pool: Any, clients: Any, rng: Any, *, more: int = 1) -> None: ...
def _random(federation: Federation, seed: int, *, count: int = 3) -> None: ...
def _mlp(shape: Any, classes: int, *, hidden: tuple[int, ...] = (100,)) -> None: ...
def _made(shape: Any, classes: int, *, hidden: tuple[int, ...] = (31,)) -> None: ...
def _fedprox(mu: float = 0.02, weights: str = "size", server_lr: float = 1.0) -> Recipe:
    return Recipe()


for _stand_in in (_noise, _iid, _random, _mlp, _made, _fedprox):
    _stand_in.__module__ = "fedskew.changed"  # a default of the package, not a user's code


@pytest.mark.parametrize(
    ("registry", "entry", "function", "settings"),
    [
        (SKEWS, "noise", _noise, {"federation": {"skew": ["noise"]}}),
        (PARTITIONS, "iid", _iid, {"federation": {"partition": "iid"}}),
        (ENVIRONMENTS, "random", _random, {"federation": {"environments": "random"}}),
        (MODELS, "mlp", _mlp, {"model": "mlp"}),
        (MODELS, "gaussian-made", _made, {"method": "feddisk"}),
        (METHODS, "fedprox", _fedprox, {"method": "fedprox"}),
        (METHODS, "fedprox", _fedprox, {"method": {"name": "private", "base": "fedprox"}}),
    ],
)
def test_a_changed_default_is_another_run(
    registry: Registry[Any],
    entry: str,
    function: Callable[..., Any],
    settings: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before, beside = name(**settings), name()
    old = registry[entry]
    monkeypatch.setitem(registry.entries, entry, replace(old, function=function))
    assert name(**settings) != before
    assert name() == beside


def test_a_default_of_a_base_that_was_given_another_value_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = {"method": {"name": "private", "base": {"name": "fedprox", "mu": 0.5}}}
    before = name(**settings)
    monkeypatch.setitem(METHODS.entries, "fedprox", replace(METHODS["fedprox"], function=_fedprox))
    assert name(**settings) == before


def test_another_format_is_another_run_and_another_version_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = name()
    monkeypatch.setattr(fedskew, "__version__", "99.0")
    assert name() == before
    monkeypatch.setattr(identity_module, "FORMAT", 99)
    assert name() != before


def test_rounds_count_where_an_earlier_stage_lasts_as_long_as_the_run() -> None:
    settings: dict[str, Any] = {"model": "beta-vae", "method": "latent-weights"}
    few, more = (identified(**settings, train={"rounds": rounds}) for rounds in (2, 3))
    assert few.name != more.name
    assert [stage["rounds"] for stage in few.stages] == [2]
    settings = {"method": "feddisk"}
    assert name(**settings, train={"rounds": 2}) == name(**settings, train={"rounds": 3})


def test_stages_are_shared_by_runs_that_make_them_alike() -> None:
    def made_by(method: dict[str, Any], **settings: Any) -> str:
        found = identified(method=method, **settings)
        knobs = {k: v for k, v in method.items() if k != "name"}
        recipe = find(method["name"]).recipe(**knobs)
        return found.of_stage(recipe.prepares[:1])

    feddisk = {"name": "feddisk"}
    same = made_by(feddisk)
    assert made_by({**feddisk, "estimator": "sampled"}) == same
    assert made_by({**feddisk, "density_rounds": 7}) != same
    assert made_by(feddisk, seed=1) != same
    assert made_by(feddisk, train={"rounds": 9}) == same
    latent = {"name": "latent-weights"}
    assert made_by(latent, model="beta-vae", train={"rounds": 9}) != made_by(
        latent, model="beta-vae"
    )
