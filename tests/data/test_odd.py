"""Clients turned by an angle of their own on purpose: who they are, and that nobody else moves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from toy_data import samples

from fedskew import make_config, make_federation
from fedskew.data.federation import Client, Federation
from fedskew.data.fingerprint import fingerprint
from fedskew.data.skew import apply_skew, rotate
from fedskew.errors import ConfigError, DataError


def federation(clients: int = 6, unseen: int = 2, rows: int = 8) -> Federation:
    """Clients c0, c1, ... of noise images, the last ones unseen."""
    total = clients * rows
    drawn = np.random.default_rng(0).random((total, 1, 9, 9), dtype=np.float32)
    parts = np.arange(total).reshape(clients, rows)
    made = tuple(Client(f"c{i}", p[:4], p[4:6], p[6:]) for i, p in enumerate(parts))
    return Federation(
        "toy", torch.from_numpy(drawn), torch.from_numpy(np.arange(total) % 2), ("a", "b"),
        made[: clients - unseen], made[clients - unseen :],
    )  # fmt: skip


def turned(before: Federation, seed: int = 0, **knobs: Any) -> Federation:
    return apply_skew(before, {"kind": "rotation", **knobs}, seed)


def by(before: Federation, name: str, degrees: float) -> Tensor:
    x = samples(before, name)
    return rotate(x, torch.full((len(x),), degrees))


def test_one_client_is_odd_and_the_others_keep_the_angles_they_had() -> None:
    before = federation()
    settings: dict[str, Any] = {"low": 0, "high": 90, "spread": 0}
    plain, after = turned(before, **settings), turned(before, **settings, odd_angle=250)
    (odd,) = after.odd
    assert odd in {client.name for client in after.clients}
    for name in before.by_name:
        wanted = by(before, name, 250.0) if name == odd else samples(plain, name)
        assert torch.equal(samples(after, name), wanted)
    assert plain.odd == ()


def test_all_at_zero_but_one() -> None:
    before = federation()
    after = turned(before, angles=[0], odd_angle=250)
    (odd,) = after.odd
    for name in before.by_name:
        wanted = by(before, name, 250.0 if name == odd else 0.0)
        assert torch.equal(samples(after, name), wanted)
        assert torch.allclose(samples(after, name), samples(before, name), atol=1e-5) == (
            name != odd
        )
    assert after.environment is None


@pytest.mark.parametrize("others", [{"low": 0, "high": 90, "spread": 0}, {"angles": [0]}])
def test_unseen_clients_are_odd_and_nobody_else(others: dict[str, Any]) -> None:
    before = federation()
    plain, after = turned(before, **others), turned(before, **others, odd_angle=250, odd="unseen")
    assert after.odd == ("c4", "c5")
    for name in before.by_name:
        wanted = by(before, name, 250.0) if name in after.odd else samples(plain, name)
        assert torch.equal(samples(after, name), wanted)


def test_the_seed_draws_who_is_odd_and_the_order_of_clients_does_not_matter() -> None:
    before = federation()
    shuffled = before.with_data(clients=tuple(before.clients[i] for i in (2, 0, 3, 1)))
    drawn: list[str] = []
    for seed in range(40):
        first = turned(before, seed, odd_angle=250, odd=2)
        again = turned(shuffled, seed, odd_angle=250, odd=2)
        assert first.odd == again.odd
        assert torch.equal(first.x, again.x)
        assert len(set(first.odd)) == 2
        drawn += first.odd
    # 80 draws of four clients: 20 each, give or take four standard deviations of 3.2.
    assert set(drawn) == {"c0", "c1", "c2", "c3"}
    assert max(drawn.count(name) for name in set(drawn)) < 33


def test_odd_images_are_spread_only_where_a_spread_is_given() -> None:
    # One bright spot off the centre tells the angle each image was turned by.
    x = torch.zeros(60, 1, 41, 41)
    x[:, 0, 19:22, 34:37] = 1
    before = federation(rows=10).with_data(x=x)
    grid = torch.arange(41.0) - 20

    def angles(after: Federation, name: str) -> Tensor:
        spots = samples(after, name)[:, 0]
        mass = spots.sum(dim=(1, 2))
        right = (spots.sum(dim=1) * grid).sum(dim=1) / mass
        up = -(spots.sum(dim=2) * grid).sum(dim=1) / mass
        return torch.rad2deg(torch.atan2(up, right)) % 360

    unspread = turned(before, low=40, high=50, odd_angle=250)
    (odd,) = unspread.odd
    assert torch.allclose(angles(unspread, odd), torch.tensor(250.0), atol=0.5)
    assert all(np.ptp(angles(unspread, n).numpy()) > 5 for n in before.by_name if n != odd)
    spread = turned(before, low=40, high=50, odd_angle=250, spread=20)
    found = angles(spread, odd)
    assert 15 < np.ptp(found.numpy()) < 40.5
    assert abs(found - 250).max() < 20.5


def test_an_odd_client_without_spread_is_of_one_environment() -> None:
    after = turned(federation(rows=40), odd_angle=250)
    assert after.environment is not None
    for name, client in after.by_name.items():
        bins = set(after.environment[np.concatenate([client.train, client.test])].tolist())
        assert bins == ({0} if name in after.odd else {0, 1})


def test_odd_names_outlast_other_data_and_later_skews() -> None:
    first = turned(federation(), angles=[0], odd_angle=250)
    later = apply_skew(first, {"kind": "noise"}, seed=0)
    assert later.odd == first.odd != ()
    assert later.with_data(x=later.x + 1).odd == first.odd
    both = turned(later, angles=[0], odd_angle=90, odd="unseen")
    assert both.odd == tuple(sorted((*first.odd, "c4", "c5")))


def test_only_clients_can_be_odd() -> None:
    with pytest.raises(DataError, match="'toy' has no client 'zoe', which is said to be odd"):
        federation().with_data(odd=("c0", "zoe"))


@pytest.mark.parametrize(
    ("knobs", "says"),
    [
        ({"odd": 2}, "odd of skew 'rotation' needs odd_angle"),
        (
            {"odd_angle": "left"},
            r"odd_angle of skew 'rotation' must be a number or none, not 'left'\.",
        ),
        (
            {"odd_angle": float("nan")},
            r"odd_angle of skew 'rotation' must be a number or none, not nan\.",
        ),
        (
            {"odd_angle": 250, "odd": 0},
            r"odd of skew 'rotation' must be a whole number of at least 1, 'unseen' "
            r"or none, not 0\.",
        ),
        ({"odd_angle": 250, "odd": 5}, "number of seen clients from 1 to 4, not 5"),
        (
            {"odd_angle": 250, "odd": True},
            r"odd of skew 'rotation' must be a whole number of at least 1, 'unseen' "
            r"or none, not True\.",
        ),
        (
            {"odd_angle": 250, "odd": "seen"},
            r"odd of skew 'rotation' must be a whole number of at least 1, 'unseen' "
            r"or none, not 'seen'\.",
        ),
    ],
)
def test_odd_knobs_that_cannot_work_are_refused(knobs: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        turned(federation(), **knobs)


def test_odd_unseen_clients_need_unseen_clients() -> None:
    with pytest.raises(ConfigError, match=r"odd='unseen' .* needs federation\.unseen above 0"):
        turned(federation(unseen=0), odd_angle=250, odd="unseen")


@pytest.mark.real_data
def test_digits_of_25_writers_and_25_unseen_ones_turn_as_the_four_scenarios_say(
    data_dir: Path,
) -> None:
    fixed = {
        "dataset": "femnist", "options": {"digits_only": True}, "normalise": "unit",
        "partition": {"name": "owner", "min_samples": 80}, "clients": 50, "unseen": 25,
        "test": 0.4, "validation": 0.1,
    }  # fmt: skip

    def made(*skew: dict[str, Any]) -> Federation:
        config = make_config({"federation": {**fixed, "skew": list(skew)}})
        return make_federation(config, data_dir)

    upright = made()
    seen, unseen = ({c.name for c in group} for group in (upright.clients, upright.unseen))
    assert (len(seen), len(unseen), upright.classes) == (25, 25, 10)
    between = {"name": "rotation", "low": 0, "high": 90, "spread": 0, "odd_angle": 250}
    zero = {"name": "rotation", "angles": [0], "odd_angle": 250}
    prints = set()
    for settings in (between, zero, {**between, "odd": "unseen"}, {**zero, "odd": "unseen"}):
        after = made(settings)
        prints.add(fingerprint(after))
        assert set(after.odd) == unseen if "odd" in settings else len(seen & set(after.odd)) == 1
        for name in sorted(seen | unseen):
            found = samples(after, name)
            at_250 = torch.equal(found, by(upright, name, 250.0))
            assert at_250 == (name in after.odd)
            if "angles" in settings and name not in after.odd:
                assert torch.equal(found, by(upright, name, 0.0))
        assert float(after.x.min()) > -1e-5
        assert float(after.x.max()) < 1 + 1e-5
    assert len(prints) == 4
