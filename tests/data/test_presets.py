"""FeCMNIST and FeRotMNIST: names that stand for a base dataset under a skew."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedskew.config import make_config
from fedskew.data.build import build
from fedskew.data.datasets import load
from fedskew.data.federation import Federation
from fedskew.data.presets import BASES, PRESETS, expanded
from fedskew.data.skew import SKEWS, apply_skew, rotate
from fedskew.errors import ConfigError
from fedskew.runs.experiment import make_federation
from fedskew.runs.identity import resolve


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
    prepared: dict[str, Any] = {"classes": found.classes, "image": found.image}
    data = load(found.dataset, data_dir, normalise=found.normalise, **prepared)
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
    for wrong, message in (
        ("up", "must be a number, not 'up'"),
        (float("inf"), "must be a number, not inf"),
    ):
        with pytest.raises(ConfigError, match=f"test_angle .*{message}"):
            apply_skew(before, {**turn, "test_angle": wrong}, seed=0)


@pytest.mark.real_data
@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("name", ["fe-cmnist", "fe-rotmnist"])
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
        (
            "fe-cmnist",
            {"base": "cifar10"},
            r"base of dataset 'fe-cmnist' must be 'mnist', 'fashion-mnist' or "
            r"'digits', not 'cifar10'\.",
        ),
        (
            "fe-cmnist",
            {"base": "minst"},
            r"base of dataset 'fe-cmnist' must be 'mnist', 'fashion-mnist' or "
            r"'digits', not 'minst'\.",
        ),
        (
            "fe-cmnist",
            {"colour": 3},
            r"unknown knob 'colour' of dataset 'fe-cmnist': did you mean 'colours'\?",
        ),
        (
            "fe-cmnist",
            {"angles": [0.0]},
            r"unknown knob 'angles' of dataset 'fe-cmnist': did you mean 'channels'\?",
        ),
        (
            "fe-cmnist",
            {"colours": "many"},
            r"colours of dataset 'fe-cmnist' must be a whole number of at least 1, not 'many'\.",
        ),
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
    for name, preset in PRESETS.items():
        declared = SKEWS[preset.skew].knobs
        assert list(preset.knobs) == ["base", *preset.takes]
        for knob in preset.takes:
            default = preset.sets.get(knob, declared[knob].default)
            assert preset.knobs[knob] == replace(declared[knob], default=default)
        assert preset.summary.endswith(".")
        with pytest.raises(ConfigError, match=f"{name}.* name it in federation.dataset"):
            load(name)
    assert PRESETS["fe-cmnist"].knobs["colours"].default == 5


def test_colored_mnist_is_the_classical_problem_unless_told() -> None:
    """Arjovsky et al. 2019: digit < 5, a quarter mislabelled, flips of .1, .2 and, tested, .9."""
    found = expanded("colored-mnist", {}, "standard")
    assert (found.dataset, found.normalise, found.image) == ("mnist", "unit", {"side": 14})
    assert found.classes == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    assert found.skew == {
        "name": "colour", "mode": "class", "correlation": [0.9, 0.8], "label_noise": 0.25,
        "test_correlation": 0.1, "channels": 2, "shared": True, "flat": False,
    }  # fmt: skip
    told = expanded("colored-mnist", {"correlation": [0.9, 0.8, 0.5], "label_noise": 0.0}, "unit")
    assert told.skew["correlation"] == [0.9, 0.8, 0.5]
    assert told.skew["label_noise"] == 0.0


def test_colored_mnist_has_the_shares_of_colours_and_labels_it_says() -> None:
    base = load("digits", normalise="unit", classes=[[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]])
    made = built("colored-mnist", {"base": "digits"}, test=0.5, validation=0.0)
    assert made.sample_shape == (2, 14, 14)
    assert made.class_names == ("0+1+2+3+4", "5+6+7+8+9")
    assert (made.environments, made.environments_by) == (2, "colour")
    sums = made.x.sum(dim=(2, 3))
    assert bool(((sums > 0).sum(dim=1) == 1).all()), "an image stands in one channel"
    channel = sums.argmax(dim=1)
    train = np.concatenate([client.train for client in made.clients])
    assert made.environment is not None
    first = made.environment[train] == 0
    with_label = (channel == made.y).float()
    # Which channel is whose is drawn once for all clients.
    if with_label[train].mean() < 0.5:
        with_label = 1 - with_label
    assert float(with_label[train][first].mean()) == pytest.approx(0.9, abs=0.03)
    assert float(with_label[train][~first].mean()) == pytest.approx(0.8, abs=0.04)
    assert float(with_label[made.central_test].mean()) == pytest.approx(0.1, abs=0.04)
    for rows in (train, made.central_test):
        # The first rows of the storage are the dataset's own; copies stand behind them.
        own = rows[rows < len(base.y)]
        kept = (made.y[own] == base.y[own]).float().mean()
        assert float(kept) == pytest.approx(0.75, abs=0.04)


def test_a_federation_of_a_preset_may_have_classes_and_images_of_its_own() -> None:
    section = {"dataset": "colored-mnist", "options": {"base": "digits"}, "clients": 2}
    usual = resolve(make_config({"federation": section})).federation
    assert (usual.classes, usual.image) == ([[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]], {"side": 14})
    other = {"classes": [[1, 7], [3, 8]], "image": {"side": 8}}
    made = make_federation(make_config({"federation": {**section, **other}}))
    assert made.class_names == ("1+7", "3+8")
    assert made.sample_shape == (2, 8, 8)
