"""Tables and other samples on a common scale, or each client's own: whose rows decide it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import given as each
from hypothesis import strategies as st
from sklearn.preprocessing import StandardScaler

from fedskew.data.build import build
from fedskew.data.dataset import to_dataset
from fedskew.data.federation import Federation
from fedskew.data.own_scale import OwnScale
from fedskew.data.prepare import Preparation
from fedskew.data.tables.samples import Asked, samples_of_frames
from fedskew.errors import DataError

NAMES = ("ann", "bob", "cleo")
Frames = dict[str, dict[str, Any]]


def frames(seed: int = 0, rows: int = 30) -> Frames:
    rng = np.random.default_rng(seed)
    return {
        name: {
            "dose": [None if rng.random() < 0.1 else v for v in rng.normal(k, 1 + k, rows)],
            "ward": list(rng.choice(["x", "y", "z"], rows)),
            "seen": [f"2024-0{1 + k}-{day:02}" for day in rng.integers(1, 28, rows)],
            "smokes": list(rng.choice(["yes", "no"] if k else ["1", "0"], rows)),
            "label": list(rng.integers(0, 2, rows)),
        }
        for k, name in enumerate(NAMES)
    }


def federation(made: Frames, normalise: str = "standard", unseen: Any = ("cleo",)) -> Federation:
    dataset = to_dataset("wards", samples_of_frames(made, Asked()), Preparation(normalise))
    return build(dataset, partition="owner", clients=None, seed=3, unseen=unseen)


def deciding(made: Federation) -> set[int]:
    """The rows that may decide how others are encoded."""
    return {int(row) for client in made.clients for row in client.train}


BEFORE = frames()
KNOWN = federation(BEFORE)
OTHERS = sorted(set(range(90)) - deciding(KNOWN))
CELLS = {
    "dose": st.sampled_from([None, "NA", "1e6", -3.5, "007"]),
    "ward": st.sampled_from(["new", "", "y", "1"]),
    "seen": st.sampled_from(["1999-01-01", "", "31.12.2030", "2024-03-01 12:30"]),
    "smokes": st.sampled_from(["TRUE", "0", "", "no"]),
}


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@each(st.lists(st.tuples(st.sampled_from(OTHERS), st.sampled_from(sorted(CELLS)), st.data()),
               max_size=6))  # fmt: skip
def test_no_row_but_training_rows_of_seen_clients_decides_how_rows_are_encoded(
    changes: list[tuple[int, str, Any]],
) -> None:
    after = {name: {n: list(cells) for n, cells in made.items()} for name, made in BEFORE.items()}
    for row, column, data in changes:
        after[NAMES[row // 30]][column][row % 30] = data.draw(CELLS[column])
    made = federation(after)
    assert made.encoder == KNOWN.encoder
    rows = sorted(deciding(KNOWN))
    assert torch.equal(made.x[rows], KNOWN.x[rows])


def test_a_cell_of_a_test_row_that_does_not_fit_is_named() -> None:
    after = frames()
    row = next(row for row in OTHERS if row < 30)
    after["ann"]["smokes"][row] = "2"
    sentence = f"client 'ann': row {row + 1}, column 'smokes' holds '2', which is not yes or no"
    with pytest.raises(DataError, match=sentence):
        federation(after)


def test_a_word_of_test_rows_only_has_no_feature() -> None:
    after = frames()
    row = next(row for row in OTHERS if row < 30)
    after["ann"]["ward"][row] = "new"
    made = federation(after)
    places = [i for i, n in enumerate(made.encoder.outputs) if n.startswith("ward=")]  # type: ignore[union-attr]
    assert not made.x[row, places].any()


def test_one_missing_cell_of_a_test_row_does_not_change_how_plain_numbers_are_scaled() -> None:
    rng = np.random.default_rng(1)
    plain = {n: {"a": list(rng.normal(size=30)), "label": [0, 1] * 15} for n in NAMES}
    before = federation(plain)
    row = next(row for row in sorted(set(range(90)) - deciding(before)) if row < 30)
    plain["ann"]["a"][row] = None
    after = federation(plain)
    assert after.encoder == before.encoder
    assert after.x[row].item() == 0.0, "the mean stands for it"
    pooled = np.concatenate([before.x.numpy()[c.train] for c in before.clients])
    np.testing.assert_allclose(StandardScaler().fit_transform(pooled), pooled, atol=1e-5)


def test_a_client_scales_its_numbers_by_its_own_training_rows() -> None:
    """Everything at bob ten times as large, and moved: his samples stay as they were."""
    moved = frames()
    moved["bob"]["dose"] = [None if v is None else 10 * v + 100 for v in moved["bob"]["dose"]]
    one, other = (federation(made, "client") for made in (frames(), moved))
    assert torch.allclose(one.x, other.x, atol=1e-4)
    common = federation(moved)
    assert not torch.allclose(federation(frames()).x, common.x, atol=0.1)
    bob = other.by_name["bob"]
    held = other.x[bob.train, 0][other.x[bob.train, 1] == 0]
    assert held.median().item() == pytest.approx(0.0, abs=0.2)
    low, high = held.quantile(torch.tensor([0.25, 0.75])).tolist()
    assert (high - low) / 1.349 == pytest.approx(1.0, abs=1e-4)


def test_unseen_clients_scale_by_their_own_rows_and_nobody_elses_change() -> None:
    moved = frames()
    moved["cleo"]["dose"] = [None if v is None else 10 * v for v in moved["cleo"]["dose"]]
    one, other = (federation(made, "client") for made in (frames(), moved))
    assert torch.allclose(one.x, other.x, atol=1e-4)
    assert set(other.scales) == {*NAMES, ""}


def test_a_client_with_no_value_of_a_column_has_its_common_value() -> None:
    gone = frames()
    gone["bob"]["dose"] = [None] * 30
    made = federation(gone, "client")
    bob = made.by_name["bob"]
    assert made.x[bob.train, 0].tolist() == [0.0] * len(bob.train)
    assert made.x[bob.train, 1].tolist() == [1.0] * len(bob.train)


def test_plain_samples_are_scaled_by_mean_and_deviation_of_each_client() -> None:
    x = torch.from_numpy(np.random.default_rng(2).normal(5, 3, (20, 4)).astype(np.float32))
    made = OwnScale.of(x, [np.arange(10)]).scaled(x)
    expected = StandardScaler().fit(x[:10].numpy()).transform(x.numpy())
    np.testing.assert_allclose(made.numpy(), expected, atol=1e-5)


def test_a_table_in_files_of_another_order_makes_the_same_samples(tmp_path: Path) -> None:
    turned = {name: dict(reversed(list(cells.items()))) for name, cells in frames().items()}
    made = federation({**frames(), "bob": turned["bob"]})
    assert torch.equal(made.x, KNOWN.x)
