"""Colours by client and by class: what they tell about labels, and what the test set shows."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedskew.data.build import build
from fedskew.data.colour import LEVELS, derangement
from fedskew.data.datasets import load
from fedskew.data.federation import Client, Federation, all_rows
from fedskew.data.skew import apply_skew
from fedskew.errors import ConfigError, DataError
from fedskew.rng import keyed_rng

CLASSES = 4


def federation(rows: int = 40, clients: int = 4, central: int = 200) -> Federation:
    """Clients c0.. (the last unseen) and a test set of its own; every pixel is inked."""
    total = clients * rows + central
    parts = np.arange(clients * rows).reshape(clients, rows)
    made = [Client(f"c{i}", p[:-8], p[-8:-4], p[-4:]) for i, p in enumerate(parts)]
    rng = np.random.default_rng(0)
    return Federation(
        "toy",
        torch.from_numpy(rng.uniform(0.1, 1, (total, 1, 2, 2))).float(),
        torch.from_numpy(rng.integers(0, CLASSES, total)),
        tuple("abcd"),
        tuple(made[:-1]),
        (made[-1],),
        np.arange(clients * rows, total),
    )


def coloured(before: Federation | None = None, seed: int = 3, **knobs: Any) -> Federation:
    return apply_skew(before or federation(), {"kind": "colour", **knobs}, seed)


def by_class(before: Federation | None = None, seed: int = 3, **knobs: Any) -> Federation:
    return coloured(before, seed, mode="class", **knobs)


def inks(federation: Federation, rows: Any) -> Tensor:
    """The colour of each image, as whole numbers."""
    return (federation.x[rows][:, :, 0, 0] * 255).round().long()


def shades(colours: Tensor) -> set[tuple[int, ...]]:
    return {tuple(colour) for colour in colours.tolist()}


def class_colours(federation: Federation, name: str) -> list[tuple[int, ...]]:
    """The colour most images of each class have at a client."""
    rows = all_rows(federation.by_name[name])
    counts = [Counter[tuple[int, ...]]() for _ in range(federation.classes)]
    for colour, label in zip(inks(federation, rows).tolist(), federation.y[rows], strict=True):
        counts[int(label)][tuple(colour)] += 1
    return [count.most_common(1)[0][0] for count in counts]


@pytest.mark.parametrize("mode", ["client", "class"])
@pytest.mark.parametrize("flat", [True, False])
def test_without_the_younger_knobs_colours_are_those_of_before(mode: str, flat: bool) -> None:
    before = federation()
    after = coloured(before, seed=5, mode=mode, flat=flat)
    expected = before.x.repeat(1, 3, 1, 1).numpy()
    holders = {name: all_rows(client) for name, client in before.by_name.items()}
    for name, rows in {**holders, "": before.central_test}.items():
        rng = keyed_rng(5, "colour", name)
        spurious = mode == "class" and name != ""
        palette = rng.integers(0, 255, (CLASSES if spurious else 5, 3)).astype(np.float32) / 255
        picked = rng.integers(0, 5, len(rows))
        shown = palette[before.y[rows].numpy() if spurious else picked]
        ink = np.ones_like(expected[rows]) if flat else expected[rows]
        expected[rows] = ink * shown[:, :, None, None]
    assert np.array_equal(after.x.numpy(), expected)
    assert after.environments_by == ("colour" if mode == "client" else "")


def test_an_image_has_its_classs_colour_with_the_chance_of_its_environment() -> None:
    after = by_class(federation(rows=6000), correlation=[0.9, 0.6, 0.0])
    assert (after.environments, after.environments_by) == (3, "colour")
    for name in after.by_name:
        # Strays of the third environment share out evenly: no class's colour is its own there.
        rows = all_rows(after.by_name[name])
        assert after.environment is not None
        environment, y = after.environment[rows].numpy(), after.y[rows].numpy()
        assert np.bincount(environment).tolist() == [2000, 2000, 2000]
        first = rows[environment == 0]
        palette = torch.tensor(
            [inks(after, first[after.y[first] == label]).mode(dim=0).values.tolist()
             for label in range(CLASSES)]
        )  # fmt: skip
        shown = (inks(after, rows)[:, None] == palette).all(dim=2).float().argmax(dim=1).numpy()
        for number, chance in enumerate([0.9, 0.6, 0.0]):
            here = environment == number
            share = (shown[here] == y[here]).mean()
            # Four standard deviations of a share of 2000.
            assert abs(share - chance) <= 4 * np.sqrt(chance * (1 - chance) / 2000)
            strays = here & (shown != y)
            steps = np.bincount((shown - y)[strays] % CLASSES, minlength=CLASSES)
            expected = strays.sum() / (CLASSES - 1)
            assert (abs(steps[1:] - expected) <= 4 * np.sqrt(expected)).all()


def test_environments_do_not_tell_the_label() -> None:
    after = by_class(federation(rows=3000), correlation=[0.9, 0.6])
    assert after.environment is not None
    rows = all_rows(after.by_name["c0"])
    table = np.zeros((2, CLASSES))
    np.add.at(table, (after.environment[rows].numpy(), after.y[rows].numpy()), 1)
    expected = table.sum(1, keepdims=True) * table.sum(0, keepdims=True) / table.sum()
    # Chi-square with 3 degrees of freedom: 16.3 is exceeded once in a thousand.
    assert ((table - expected) ** 2 / expected).sum() < 16.3


def test_one_correlation_makes_no_environments_and_keeps_older_ones() -> None:
    assert by_class(correlation=[0.8]).environment is None
    turned = apply_skew(federation(), {"kind": "rotation", "environments": 3}, seed=0)
    after = by_class(turned, correlation=[0.8])
    assert (after.environments, after.environments_by) == (3, "rotation")
    assert by_class(turned, correlation=[0.8, 0.9]).environments_by == "colour"


def test_shared_class_colours_are_those_of_everybody_unseen_clients_too() -> None:
    apart, shared = by_class(), by_class(shared=True)
    assert len({tuple(class_colours(apart, name)) for name in apart.by_name}) == 4
    assert len({tuple(class_colours(shared, name)) for name in shared.by_name}) == 1
    assert len(set(class_colours(shared, "c0"))) == CLASSES


@pytest.mark.parametrize("knobs", [{}, {"mode": "class"}, {"mode": "class", "shared": True}])
@pytest.mark.parametrize("channels", [1, 3])
def test_held_out_colours_are_nobodys(knobs: dict[str, Any], channels: int) -> None:
    for seed in range(20):
        after = coloured(**knobs, channels=channels, colours=6, seed=seed)
        held = np.concatenate([all_rows(client) for client in after.by_name.values()])
        central = shades(inks(after, after.central_test))
        assert len(central) == 6
        assert not central & shades(inks(after, held))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("correlation", [[1.0], [0.9, 0.6]])
def test_permuted_shared_colours_are_the_clients_own_on_other_classes(
    channels: int, correlation: list[float]
) -> None:
    before = federation(rows=400)
    for seed in range(10):
        after = by_class(
            before, seed, shared=True, test="permuted", channels=channels, correlation=correlation
        )
        clients = class_colours(after, "c0")
        central, y = inks(after, after.central_test), after.y[after.central_test]
        shown = [shades(central[y == label]) for label in range(CLASSES)]
        assert [len(colours) for colours in shown] == [1] * CLASSES
        permuted = [colours.pop() for colours in shown]
        assert sorted(permuted) == sorted(clients)
        assert all(ours != theirs for ours, theirs in zip(permuted, clients, strict=True))


def test_permuted_colours_of_seen_clients_go_by_one_derangement() -> None:
    after = by_class(test="permuted")
    palettes = {name: class_colours(after, name) for name in after.by_name}
    central, y = inks(after, after.central_test).tolist(), after.y[after.central_test].tolist()
    pairs, lenders = set(), []
    for colour, label in zip(central, y, strict=True):
        found = [
            (name, palette.index(tuple(colour)))
            for name, palette in palettes.items()
            if tuple(colour) in palette
        ]
        ((name, shown),) = found
        pairs.add((label, shown))
        lenders.append(name)
    # One wrong class for each class, each used once; the unseen c3 lends no colours.
    assert len(pairs) == CLASSES
    assert {shown for _, shown in pairs} == set(range(CLASSES))
    assert all(label != shown for label, shown in pairs)
    assert set(lenders) == {"c0", "c1", "c2"}


@pytest.mark.parametrize("count", [2, 3, 10])
def test_a_derangement_moves_everything_and_any_can_come(count: int) -> None:
    drawn = [derangement(count, np.random.default_rng(seed)) for seed in range(200)]
    assert all(sorted(order.tolist()) == list(range(count)) for order in drawn)
    assert not any((order == np.arange(count)).any() for order in drawn)
    # There are 1 and 2 derangements of two and three things, and 1,334,961 of ten.
    assert len({tuple(order.tolist()) for order in drawn}) == {2: 1, 3: 2, 10: 200}[count]


@pytest.mark.parametrize("mode", ["client", "class"])
def test_one_channel_stays_one_and_shows_visible_levels_that_differ(mode: str) -> None:
    after = coloured(mode=mode, channels=1)
    assert after.sample_shape == (1, 2, 2)
    for name in after.by_name:
        levels = {level for (level,) in shades(inks(after, all_rows(after.by_name[name])))}
        assert len(levels) == (CLASSES if mode == "class" else 5)
        assert levels <= set(LEVELS.tolist())
    assert min(LEVELS) / 255 == 0.2


def test_one_channel_can_be_shaded() -> None:
    before = federation()
    after = coloured(before, channels=1, flat=False, colours=1)
    rows = before.by_name["c0"].train
    levels = after.x[rows] / before.x[rows]
    assert torch.allclose(levels, levels[:1, :, :1, :1].expand_as(levels), atol=1e-6)


def test_as_in_the_reference_the_last_colour_is_never_used() -> None:
    before = federation(rows=400)
    ours, theirs = coloured(before), coloured(before, reference=True)
    for name in before.by_name:
        rows = all_rows(before.by_name[name])
        mine, used = shades(inks(ours, rows)), shades(inks(theirs, rows))
        last = keyed_rng(3, "colour", name).integers(0, 255, (5, 3))[-1]
        assert mine - used == {tuple(last.tolist())}
    assert (ours.environments, theirs.environments) == (5, 4)
    assert len(shades(inks(theirs, theirs.central_test))) == 4


KNOBS: list[dict[str, Any]] = [
    {"channels": 1},
    {"reference": True},
    {"mode": "class", "correlation": [0.9, 0.6]},
    {"mode": "class", "correlation": [0.9], "shared": True, "test": "permuted"},
    {"mode": "class", "test": "permuted", "channels": 1},
]


@pytest.mark.parametrize("knobs", KNOBS)
def test_the_order_of_clients_changes_nothing_and_the_seed_all(knobs: dict[str, Any]) -> None:
    before = federation()
    turned = before.with_data(clients=before.clients[::-1])
    one, other = coloured(before, **knobs), coloured(turned, **knobs)
    seeded = coloured(before, seed=4, **knobs)
    assert torch.equal(one.x, other.x)
    if one.environment is not None:
        assert other.environment is not None
        assert seeded.environment is not None
        assert torch.equal(one.environment, other.environment)
        assert not torch.equal(one.environment, seeded.environment)
    for rows in (before.clients[0].train, before.central_test):
        assert not torch.equal(one.x[rows], seeded.x[rows])


@pytest.mark.parametrize(
    ("knobs", "error", "message"),
    [
        ({"correlation": [0.9]}, ConfigError, "correlation .* set mode='class'"),
        ({"shared": True}, ConfigError, "shared .* set mode='class'"),
        ({"test": "permuted"}, ConfigError, "test='permuted' .* set mode='class'"),
        (
            {"mode": "class", "test": "permute"},
            ConfigError,
            r"test of skew 'colour' must be 'held-out' or 'permuted', not 'permute'\.",
        ),
        (
            {"mode": "class", "correlation": []},
            ConfigError,
            r"correlation of skew 'colour' must name a chance, or be left out\.",
        ),
        ({"mode": "class", "correlation": 0.9}, ConfigError, "correlation .* not 0.9"),
        ({"mode": "class", "correlation": [0.9, 1.2]}, ConfigError, "from 0 to 1"),
        ({"mode": "class", "correlation": ["much"]}, ConfigError, "from 0 to 1"),
        ({"mode": "class", "correlation": [float("nan")]}, ConfigError, "from 0 to 1"),
        ({"channels": 4}, ConfigError, "channels .* must be 1, 2 or 3, not 4"),
        ({"channels": 2}, ConfigError, r"channels=2 of skew 'colour' needs a colour per class"),
        (
            {"mode": "class", "channels": 2},
            ConfigError,
            r"channels=2 .* no colour to hold out .*: set test_correlation, or test='permuted'\.",
        ),
        (
            {"mode": "class", "channels": 2, "test": "permuted"},
            DataError,
            r"channels=2 .* each of two classes, not 4: .* federation\.classes to two groups\.",
        ),
        ({"test_correlation": 0.1}, ConfigError, "test_correlation .*: set mode='class'"),
        (
            {"mode": "class", "test": "permuted", "test_correlation": 0.1},
            ConfigError,
            r"test='permuted' .*: leave it or test_correlation out\.",
        ),
        ({"label_noise": 1.5}, ConfigError, "label_noise .* must be a number from 0 to 1, not 1.5"),
        ({"channels": 1, "colours": 103}, DataError, "204 grey levels, too few for 103 colours"),
        ({"reference": True, "colours": 1}, ConfigError, "colours must be at least 2"),
    ],
)
def test_what_cannot_be_painted_is_refused_in_one_sentence(
    knobs: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        coloured(**knobs)


def test_one_class_cannot_mislead() -> None:
    single = federation().with_data(y=torch.zeros(360, dtype=torch.int64), class_names=("only",))
    with pytest.raises(DataError, match="two classes or more"):
        by_class(single, test="permuted")
    assert len(shades(inks(by_class(single, correlation=[0.5]), single.clients[0].train))) == 1


def agreement(federation: Federation, rows: Any, palette: dict[tuple[int, ...], int]) -> float:
    """How often an image's colour is that of its class; its brightest pixel tells the colour."""
    images = (federation.x[rows] * 255).round().long()
    place = images.sum(dim=1).flatten(1).argmax(dim=1)
    colours = images.flatten(2)[torch.arange(len(rows)), :, place]
    shown = [palette.get(tuple(colour), -1) for colour in colours.tolist()]
    return float(np.mean(np.array(shown) == federation.y[rows].numpy()))


@pytest.mark.real_data
@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "digits"])
@pytest.mark.parametrize(
    ("partition", "knobs"), [("shards", {"shards_per_client": 3}), ("dirichlet", {"alpha": 0.3})]
)
def test_real_images_are_coloured_under_label_skew(
    name: str, partition: str, knobs: dict[str, Any], data_dir: Path
) -> None:
    skew = {
        "kind": "colour", "mode": "class", "correlation": [0.95, 0.7], "shared": True,
        "test": "permuted",
    }  # fmt: skip
    data = load(name, data_dir, normalise="unit")
    test_samples = None if name == "digits" else 1000
    settings: dict[str, Any] = {
        "partition": partition, "knobs": knobs, "clients": 10, "seed": 0, "samples": 1700,
        "test_samples": test_samples,
    }  # fmt: skip
    plain, made = build(data, **settings), build(data, **settings, skew=[skew])
    assert made.sample_shape == (3, *plain.sample_shape[1:])
    assert np.array_equal(made.class_counts(), plain.class_counts())
    assert (made.class_counts() > 0).sum(axis=1).min() < 10
    seed = int(keyed_rng(0, "skew", "0").integers(2**63))
    drawn = keyed_rng(seed, "shared colours").integers(0, 255, (10, 3)).tolist()
    palette = {tuple(colour): label for label, colour in enumerate(drawn)}
    rows = np.concatenate([client.train for client in made.clients])
    assert made.environment is not None
    for number, chance in enumerate([0.95, 0.7]):
        here = rows[made.environment[rows].numpy() == number]
        # Five standard deviations; clients deal their own images, in halves.
        slack = 5 * np.sqrt(chance * (1 - chance) / len(here))
        assert agreement(made, here, palette) == pytest.approx(chance, abs=slack)
    assert agreement(made, made.central_test, palette) == 0
    inked = plain.x[plain.clients[0].train] > 0
    painted = made.x[made.clients[0].train].amax(dim=1, keepdim=True) > 0
    assert torch.equal(inked, painted)


def test_noise_turns_that_share_of_labels_everywhere_and_colours_follow_the_new_ones() -> None:
    before = federation(rows=400, central=1000)
    after = by_class(before, label_noise=0.3, shared=True, test_correlation=0.2)
    held = np.concatenate([all_rows(client) for client in before.by_name.values()])
    for rows in (held, before.central_test):
        moved = (after.y[rows] != before.y[rows]).float()
        assert float(moved.mean()) == pytest.approx(0.3, abs=0.05)
    for label in range(CLASSES):
        own = held[(after.y[held] == label).numpy()]
        assert len(shades(inks(after, own))) == 1, "a colour for each label as it is now"
    # An image shows its label's colour with the chance given, and else another label's.
    colours = class_colours(after, "c0")
    central = before.central_test
    shown = [colours.index(tuple(ink)) for ink in inks(after, central).tolist()]
    right = np.mean(np.array(shown) == after.y[central].numpy())
    assert right == pytest.approx(0.2, abs=0.04)


def test_without_noise_no_label_changes() -> None:
    before = federation()
    after = by_class(before)
    assert torch.equal(after.y[: len(before.y)], before.y)
    quiet = coloured(before, label_noise=0.0)
    assert torch.equal(quiet.y[: len(before.y)], before.y)


def test_noise_belongs_to_a_client_whoever_else_takes_part() -> None:
    before = federation()
    fewer = before.with_data(clients=before.clients[1:])
    one, other = (coloured(each, label_noise=0.5) for each in (before, fewer))
    rows = all_rows(before.clients[1])
    assert torch.equal(one.y[rows], other.y[rows])
    assert not torch.equal(one.y[rows], before.y[rows])


def test_two_channels_hold_one_class_each() -> None:
    two = federation().with_data(y=federation().y % 2, class_names=("a", "b"))
    after = by_class(two, channels=2, test_correlation=1.0, shared=True)
    inked = (after.x.sum(dim=(2, 3)) > 0).long()
    held = np.concatenate([all_rows(c) for c in after.by_name.values()])
    rows = np.concatenate([held, after.central_test])
    assert (inked[rows].sum(dim=1) == 1).all()
    channel = inked.argmax(dim=1)[rows]
    assert len(set(zip(channel.tolist(), after.y[rows].tolist(), strict=True))) == 2
