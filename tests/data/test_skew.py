"""Feature skews change each client's samples in its own way, and nobody else's."""

import math
import time

import numpy as np
import pytest
import torch
from toy_data import samples

from fedskew.data.federation import Client, Federation
from fedskew.data.skew import SKEWS, apply_skew, rotate
from fedskew.errors import ConfigError, DataError


def images(rows, size=9, channels=1, seed=0):
    """Random squares in the middle of a black background."""
    x = torch.zeros(rows, channels, size, size)
    drawn = np.random.default_rng(seed).uniform(0.1, 1, (rows, channels, size - 4, size - 4))
    x[..., 2:-2, 2:-2] = torch.from_numpy(drawn).float()
    return x


def federation(clients=4, rows=30, size=9, x=None, central=True):
    """Clients of equal size whose test rows are also in the central test set."""
    total = clients * rows
    parts = np.arange(total).reshape(clients, rows)
    made = [Client(f"c{i}", p[: rows - 8], p[rows - 8 : -4], p[-4:]) for i, p in enumerate(parts)]
    return Federation(
        "toy",
        images(total, size) if x is None else x,
        torch.from_numpy(np.arange(total) % 3),
        ("a", "b", "c"),
        tuple(made[:-1]),
        (made[-1],),
        np.concatenate([client.test for client in made[:-1]]) if central else parts[0, :0],
    )


ROTATION = {"kind": "rotation"}
COLOUR = {"kind": "colour"}
NOISE = {"kind": "noise", "level": 0.3}


@pytest.mark.parametrize("size", [8, 9])
@pytest.mark.parametrize("turns", [1, 2, 3])
def test_rotating_by_right_angles_is_rot90(size, turns):
    x = images(5, size, channels=3)
    turned = rotate(x, torch.full((5,), 90.0 * turns))
    assert torch.allclose(turned, torch.rot90(x, turns, dims=(2, 3)), atol=1e-4)


def test_each_image_turns_by_its_own_angle():
    x = images(3)
    turned = rotate(x, torch.tensor([0.0, 90.0, 180.0]))
    wanted = torch.stack([torch.rot90(image, k, dims=(1, 2)) for k, image in enumerate(x)])
    assert torch.allclose(turned, wanted, atol=1e-4)


def test_an_oblong_image_keeps_its_proportions():
    x = torch.zeros(2, 1, 5, 9)
    x[0, 0, 2, 6] = x[1, 0, 1, 4] = 1.0
    # A quarter turn counter-clockwise takes two pixels right of the centre to two above it, and
    # one above it to one left of it.
    turned = rotate(x, torch.full((2,), 90.0))
    assert turned[0, 0, 0, 4].item() == pytest.approx(1, abs=1e-4)
    assert turned[1, 0, 2, 3].item() == pytest.approx(1, abs=1e-4)


def test_uncovered_corners_show_the_background():
    white = 1 - images(4)
    turned = rotate(white, torch.full((4,), 45.0))
    assert torch.allclose(turned[..., 0, 0], torch.ones(4, 1), atol=1e-6)
    assert torch.allclose(rotate(white, torch.full((4,), 45.0), fill=0.5)[..., 0, 0].max(),
                          torch.tensor(0.5), atol=1e-6)  # fmt: skip
    assert turned.min() >= white.min() - 1e-6


def test_fixed_angles_go_round_the_clients_in_the_order_of_their_names():
    before = federation()
    after = apply_skew(before, {**ROTATION, "angles": [0, 90, 180]}, seed=0)
    for i, turns in enumerate([0, 1, 2, 0]):
        wanted = torch.rot90(samples(before, f"c{i}"), turns, dims=(2, 3))
        assert torch.allclose(samples(after, f"c{i}"), wanted, atol=1e-4)
    assert after.environment is None


def test_drawn_angles_stay_in_range_and_their_bins_are_environments():
    # One bright pixel off the centre tells the angle each image was turned by.
    x = torch.zeros(120, 1, 41, 41)
    x[:, 0, 19:22, 34:37] = 1
    after = apply_skew(federation(x=x), {**ROTATION, "low": 30, "high": 40}, seed=3)
    grid = torch.arange(41.0) - 20
    for name in ("c0", "c1", "c2", "c3"):
        turned = samples(after, name)[:, 0]
        mass = turned.sum(dim=(1, 2))
        right = (turned.sum(dim=1) * grid).sum(dim=1) / mass
        up = -(turned.sum(dim=2) * grid).sum(dim=1) / mass
        angle = torch.rad2deg(torch.atan2(up, right))
        assert angle.min() > 19.5
        assert angle.max() < 50.5
        assert 8 < angle.max() - angle.min() < 20.5
        client = after.by_name[name]
        rows = np.concatenate([client.train, client.validation, client.test])
        bins = after.environment[rows]
        assert set(bins.tolist()) == {0, 1}
        assert angle[bins == 0].max() < angle[bins == 1].min() + 0.5


def test_noise_has_variance_k_level_over_clients():
    flat = torch.full((800, 1, 10, 10), 0.5)
    before = federation(rows=200, x=flat)
    after = apply_skew(before, {**NOISE, "clip": False}, seed=0)
    for k in range(4):
        drawn = samples(after, f"c{k}") - 0.5
        wanted = k * 0.3 / 4
        # 20,000 values: the relative error of a variance is sqrt(2 / 20000) = 1 %; allow five.
        assert drawn.var().item() == pytest.approx(wanted, rel=0.05)
        assert abs(drawn.mean().item()) <= 5 * math.sqrt(wanted / 20_000)


def test_noise_is_clipped_to_the_unit_interval():
    after = apply_skew(federation(), NOISE, seed=0)
    assert after.x.min() == 0
    assert after.x.max() == 1


def test_client_colours_do_not_depend_on_the_label_and_are_the_environment():
    after = apply_skew(federation(rows=600), {**COLOUR, "colours": 3}, seed=1)
    client = after.by_name["c1"]
    rows = np.concatenate([client.train, client.validation, client.test])
    table = np.zeros((3, 3))
    np.add.at(table, (after.environment[rows].numpy(), after.y[rows].numpy()), 1)
    # Chi-square with 4 degrees of freedom: 18.5 is exceeded once in a thousand.
    expected = table.sum(1, keepdims=True) * table.sum(0, keepdims=True) / table.sum()
    assert ((table - expected) ** 2 / expected).sum() < 18.5
    for colour in range(3):
        inked = after.x[rows][after.environment[rows] == colour][..., 4, 4]
        assert len(torch.unique(inked, dim=0)) == 1
    assert after.x[rows][..., 0, 0].max() == 0


def test_class_colours_give_the_label_away_inside_a_client_but_not_in_the_central_test():
    after = apply_skew(federation(rows=100), {**COLOUR, "mode": "class", "colours": 4}, seed=1)
    for name in ("c0", "c1", "c3"):
        client = after.by_name[name]
        pairs = torch.cat([after.x[client.train][..., 4, 4], after.y[client.train][:, None]], dim=1)
        assert len(torch.unique(pairs, dim=0)) == 3
    central = after.x[after.central_test][..., 4, 4]
    assert len(torch.unique(central, dim=0)) == 4
    assert after.environment is None


def test_clients_and_the_central_test_draw_colours_of_their_own():
    after = apply_skew(federation(), COLOUR, seed=0)
    inks = [samples(after, f"c{i}")[..., 4, 4] for i in range(4)]
    inks.append(after.x[after.central_test][..., 4, 4])
    # Five colours for each of five parties: 255 ** 3 possibilities leave no room for chance.
    assert len(torch.unique(torch.cat(inks), dim=0)) == 25


def test_shaded_colours_keep_the_strength_of_each_pixel():
    before = federation()
    after = apply_skew(before, {**COLOUR, "colours": 1, "flat": False}, seed=0)
    grey, painted = samples(before, "c0"), samples(after, "c0")
    colour = (painted / grey.clamp(min=1e-9))[..., 4, 4]
    assert torch.allclose(painted, grey * colour[:1, :, None, None], atol=1e-6)


@pytest.mark.parametrize("skew", [ROTATION, COLOUR, NOISE])
def test_the_order_of_clients_changes_nobodys_data(skew):
    # c0 and c1 share rows, so who comes first decides whose copies are appended.
    before = federation()
    first, second, third = before.clients
    second = Client(second.name, np.concatenate([second.train, first.train[:5]]), second.validation)
    one = before.with_data(clients=(first, second, third))
    other = before.with_data(clients=(third, second, first))
    one, other = apply_skew(one, skew, seed=5), apply_skew(other, skew, seed=5)
    for name in ("c0", "c1", "c2", "c3"):
        assert torch.equal(samples(one, name), samples(other, name))
    assert torch.equal(one.x[one.central_test], other.x[other.central_test])


@pytest.mark.parametrize("skew", [ROTATION, NOISE])
def test_the_central_test_stays_as_it_was_though_clients_test_on_the_same_rows(skew):
    before = federation()
    after = apply_skew(before, skew, seed=0)
    assert torch.equal(after.x[after.central_test], before.x[before.central_test])
    # Twelve test rows of three seen clients are shared with the central test set.
    assert len(after.x) == len(before.x) + 12
    client = after.by_name["c2"]
    assert not torch.allclose(after.x[client.test], before.x[before.by_name["c2"].test])
    assert after.y[client.test].tolist() == before.y[before.by_name["c2"].test].tolist()


def test_no_row_is_copied_where_nothing_is_shared():
    before = federation(central=False)
    original = before.x.clone()
    after = apply_skew(before, NOISE, seed=0)
    assert len(after.x) == len(before.x)
    assert torch.equal(before.x, original)
    assert after.clients[0].train.tolist() == before.clients[0].train.tolist()


@pytest.mark.parametrize("skew", [ROTATION, COLOUR, NOISE])
def test_the_seed_decides_the_skew_and_unseen_clients_get_one_too(skew):
    before = federation()
    first, again, other = (apply_skew(before, skew, seed) for seed in (1, 1, 2))
    assert torch.equal(first.x, again.x)
    assert not torch.equal(samples(first, "c3"), samples(other, "c3"))
    assert not torch.equal(
        samples(first, "c3"), samples(before, "c3").expand_as(samples(first, "c3"))
    )


def test_skews_add_up_and_later_ones_keep_the_environments():
    turned = apply_skew(federation(), ROTATION, seed=0)
    after = apply_skew(turned, COLOUR, seed=0)
    noisy = apply_skew(after, NOISE, seed=0)
    assert noisy.sample_shape == (3, 9, 9)
    assert torch.equal(noisy.environment, after.environment)
    assert len(noisy.x) == len(turned.x)


def test_sixty_thousand_digits_turn_in_a_few_seconds():
    x = torch.rand(60_000, 1, 28, 28)
    begin = time.process_time()
    rotate(x, torch.linspace(0, 180, 60_000))
    assert time.process_time() - begin < 15


@pytest.mark.parametrize(
    ("skew", "error", "message"),
    [
        (
            {"low": 3},
            ConfigError,
            "a skew needs its kind, one of colour, noise, rotation, selection",
        ),
        ({"kind": "rotate"}, ConfigError, "did you mean 'rotation'"),
        ({**NOISE, "levle": 1.0}, ConfigError, "did you mean 'level'"),
        ({**NOISE, "level": -0.1}, ConfigError, "level .* at least 0"),
        (
            {**COLOUR, "mode": "clas"},
            ConfigError,
            r"mode of skew 'colour' must be 'client' or 'class', not 'clas'\.",
        ),
        (
            {**COLOUR, "colours": 0},
            ConfigError,
            r"colours of skew 'colour' must be a whole number of at least 1, not 0\.",
        ),
        ({**ROTATION, "low": 5, "high": 4}, ConfigError, "low .* must not exceed high"),
        ({**ROTATION, "angles": []}, ConfigError, "angles of skew 'rotation' must "),
        ({**ROTATION, "angles": ["up"]}, ConfigError, "angles of skew 'rotation' must "),
        ({**ROTATION, "spread": -1.0}, ConfigError, "spread .* at least 0"),
        ({**ROTATION, "spread": "wide"}, ConfigError, "spread .* not 'wide'"),
        ({**ROTATION, "fill": "white"}, ConfigError, "fill .* must be a number"),
        (
            {**ROTATION, "environments": 0},
            ConfigError,
            r"environments of skew 'rotation' must be a whole number of at least 1, not 0\.",
        ),
    ],
)
def test_bad_knobs_are_refused_in_one_sentence(skew, error, message):
    with pytest.raises(error, match=message):
        apply_skew(federation(), skew, seed=0)


@pytest.mark.parametrize(
    ("skew", "x", "message"),
    [
        (ROTATION, torch.zeros(120, 7), r"'rotation' needs images, but .* shape \(7,\)"),
        (COLOUR, torch.zeros(120, 3, 4, 4), "grey images"),
        (COLOUR, torch.full((120, 1, 4, 4), -1.0), r"\[0, 1\], but they span -1 to -1"),
        (NOISE, torch.full((120, 4), 2.0), "normalise='unit' or set clip to false"),
    ],
)
def test_samples_a_skew_cannot_change_are_refused(skew, x, message):
    with pytest.raises(DataError, match=message):
        apply_skew(federation(x=x), skew, seed=0)


def test_every_skew_says_what_it_does_and_which_knobs_it_has():
    assert set(SKEWS) == {"rotation", "colour", "noise", "selection"}
    assert SKEWS["noise"].defaults == {"level": 0.3, "clip": True}
    assert all(choice.summary.endswith(".") for choice in SKEWS.values())
