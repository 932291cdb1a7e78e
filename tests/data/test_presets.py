"""FeCMNIST and FeRotMNIST: names that stand for a base dataset under a skew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedskew.data.build import build
from fedskew.data.datasets import REGISTRY, describe, load
from fedskew.data.federation import Federation
from fedskew.data.presets import BASES, PRESETS, expanded
from fedskew.data.skew import SKEWS, apply_skew, rotate
from fedskew.errors import ConfigError


def built(
    name: str,
    options: dict[str, Any],
    data_dir: Path | None = None,
    normalise: str = "standard",
    **settings: Any,
) -> Federation:
    """The federation of a preset, put together by hand."""
    found = expanded(name, options, normalise)
    knobs = dict(found.skew)
    data = load(found.dataset, data_dir, normalise=found.normalise)
    fixed: dict[str, Any] = {"partition": "iid", "clients": 4, "seed": 2}
    skew = [{"kind": knobs.pop("name"), **knobs}]
    return build(data, **{**fixed, **settings}, skew=skew)


def test_a_preset_without_options_is_mnist_as_published() -> None:
    colour = expanded("fe-cmnist", {}, "standard")
    assert (colour.dataset, colour.normalise, colour.skew) == ("mnist", "unit", {"name": "colour"})
    turned = expanded("fe-rotmnist", {}, "standard")
    assert (turned.dataset, turned.normalise) == ("mnist", "standard")
    assert turned.skew == {"name": "rotation"}


def test_class_mode_has_two_environments_of_different_correlation_unless_told() -> None:
    by_class = expanded("fe-cmnist", {"mode": "class"}, "unit").skew
    assert by_class == {"name": "colour", "mode": "class", "correlation": [0.95, 0.7]}
    told = expanded("fe-cmnist", {"mode": "class", "correlation": [1.0]}, "unit").skew
    assert told["correlation"] == [1.0]
    assert "correlation" not in expanded("fe-cmnist", {"mode": "client"}, "unit").skew
    first = built("fe-cmnist", {"base": "digits", "mode": "class"})
    assert (first.environments, first.environments_by) == (2, "colour")


@pytest.mark.parametrize("normalise", ["standard", "unit"])
def test_coloured_images_lie_in_the_unit_interval_whatever_the_scale(normalise: str) -> None:
    federation = built("fe-cmnist", {"base": "digits"}, normalise=normalise)
    assert federation.sample_shape == (3, 8, 8)
    assert float(federation.x.min()) == 0
    assert float(federation.x.max()) <= 254 / 255 + 1e-6
    assert (federation.environments, federation.environments_by) == (5, "colour")


def test_a_preset_gives_the_samples_of_its_base_under_its_skew() -> None:
    options = {"low": 20, "high": 60, "environments": 3, "test_angle": 90.0}
    ours = built("fe-rotmnist", {"base": "digits", **options}, unseen=1)
    theirs = build(
        load("digits"), partition="iid", clients=4, seed=2, unseen=1,
        skew=[{"kind": "rotation", **options}],
    )  # fmt: skip
    assert torch.equal(ours.x, theirs.x)
    assert (ours.environments, ours.environments_by) == (3, "rotation")


@pytest.mark.parametrize("angle", [90.0, -30.0])
def test_the_central_test_set_turns_by_its_angle_and_nothing_else_does(angle: float) -> None:
    data = load("digits", normalise="unit")
    before = build(data, partition="iid", clients=4, seed=2)
    upright = apply_skew(before, {"kind": "rotation"}, seed=1)
    turned = apply_skew(before, {"kind": "rotation", "test_angle": angle}, seed=1)
    central = before.central_test
    assert torch.equal(upright.x[central], before.x[central])
    if angle == 90.0:
        wanted = torch.rot90(before.x[central], dims=(2, 3))
        assert torch.allclose(turned.x[central], wanted, atol=1e-4)
    wanted = rotate(before.x[central], torch.full((len(central),), angle))
    assert torch.equal(turned.x[central], wanted)
    others = np.setdiff1d(np.arange(len(turned.y)), central)
    assert torch.equal(turned.x[others], upright.x[others])


def test_a_whole_number_of_degrees_will_do_and_a_word_will_not() -> None:
    before = build(load("digits"), partition="iid", clients=2, seed=0)
    turn = {"kind": "rotation", "angles": [0.0]}
    one, other = (apply_skew(before, {**turn, "test_angle": a}, seed=0) for a in (45, 45.0))
    assert torch.equal(one.x, other.x)
    for wrong, message in (("up", "must be a float, not 'up'"), (float("inf"), "in degrees")):
        with pytest.raises(ConfigError, match=f"test_angle .*{message}"):
            apply_skew(before, {**turn, "test_angle": wrong}, seed=0)


@pytest.mark.real_data
@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("name", list(PRESETS))
@pytest.mark.parametrize("partition", ["shards", "dirichlet"])
def test_presets_work_on_every_base_with_label_skew_on_top(
    name: str, base: str, partition: str, data_dir: Path
) -> None:
    thin = None if base == "digits" else 500
    federation = built(
        name, {"base": base}, data_dir, partition=partition, clients=10, samples=1500,
        test_samples=thin, unseen=2,
    )  # fmt: skip
    side = 8 if base == "digits" else 28
    assert federation.sample_shape == (3 if name == "fe-cmnist" else 1, side, side)
    assert federation.environments == (5 if name == "fe-cmnist" else 2)
    assert len(federation.clients) == 8
    counts = federation.environment_counts()
    assert (counts > 0).all()
    labels = (federation.class_counts() > 0).sum(axis=1)
    assert labels.max() <= (2 if partition == "shards" else 10)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("fe-cmnist", {"base": "cifar10"}, "unknown base of dataset 'fe-cmnist' 'cifar10'"),
        ("fe-cmnist", {"base": "minst"}, "did you mean 'mnist'"),
        ("fe-cmnist", {"colour": 3}, "unknown option of dataset 'fe-cmnist' .* 'colours'"),
        ("fe-cmnist", {"angles": [0.0]}, "unknown option of dataset 'fe-cmnist'"),
        ("fe-cmnist", {"colours": "many"}, "colours of skew 'colour' must be a int, not 'many'"),
        ("fe-rotmnist", {"hihg": 9}, "did you mean 'high'"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_read(
    name: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        expanded(name, options, "unit")


def test_signed_images_cannot_be_coloured_but_turned() -> None:
    with pytest.raises(ConfigError, match=r"leave federation\.normalise out or set it to 'unit'"):
        expanded("fe-cmnist", {}, "signed")
    assert expanded("fe-rotmnist", {}, "signed").normalise == "signed"


def test_presets_are_listed_with_their_options_but_not_loaded_without_clients() -> None:
    listed = {row.name: row for row in describe()}
    assert list(listed) == [*REGISTRY, *PRESETS]
    for name, preset in PRESETS.items():
        assert set(preset.options) <= set(SKEWS[preset.skew].knobs)
        assert list(listed[name].options) == ["base", *preset.options]
        assert set(REGISTRY["mnist"].files) <= set(listed[name].files)
        assert listed[name].summary.endswith(".")
        with pytest.raises(ConfigError, match=f"{name}.* name it in federation.dataset"):
            load(name)
    assert listed["fe-cmnist"].options["colours"].endswith("(default 5)")
    assert listed["fe-cmnist"].options["flat"].endswith("(default true)")
    assert listed["fe-cmnist"].options["correlation"].endswith("(default [0.95, 0.7])")
