"""What travels of a change: by hand, at the edges of number formats, and from hostile hands."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import torch
from helpers import assert_same_bits
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedskew.errors import ConfigError, Diverged, RunError
from fedskew.parts.packing import Half, Packing, TopK, largest

START = {"a": torch.zeros(2, 3), "b": torch.full((4,), 10.0)}
MOVED = {
    "a": torch.tensor([[0.5, -3.0, 0.0], [1.0, 0.25, -1.0]]),
    "b": torch.tensor([10.0, 12.0, 9.5, 10.125]),
}
"""Changes by size: 3 at a[1], 2 at b[1], 1 at a[3] and a[5], 0.5 at a[0] and b[2], …"""


def raw(*values: tuple[int, float]) -> list[int]:
    """Places and values as bytes, written down without torch."""
    places = b"".join(struct.pack("<i", place) for place, _ in values)
    return list(places + b"".join(struct.pack("<f", value) for _, value in values))


def test_as_they_are_parameters_are_the_very_same_tensors() -> None:
    packed = Packing().pack(MOVED, START, {})
    assert packed.sends is MOVED
    assert packed.unsent == {}
    assert Packing().unpack(packed.sends, START) is MOVED


def test_the_three_largest_of_ten_changes_travel() -> None:
    """3 and the first change of 1 among six places of ``a``: two times eight bytes are fewer than
    24. One of four places of ``b``: eight bytes of sixteen."""
    packed = TopK(0.3).pack(MOVED, START, {})
    assert packed.sends["a"].tolist() == raw((1, -3.0), (3, 1.0))
    assert packed.sends["b"].tolist() == raw((1, 2.0))
    came = TopK(0.3).unpack(packed.sends, START)
    assert came["a"].tolist() == [[0, -3, 0], [1, 0, 0]]
    assert came["b"].tolist() == [10, 12, 10, 10]


def test_what_did_not_travel_stays_behind_and_joins_the_next_change() -> None:
    part = TopK(0.3)
    packed = part.pack(MOVED, START, {})
    assert packed.unsent["a"].tolist() == [[0.5, 0, 0], [0, 0.25, -1]]
    assert packed.unsent["b"].tolist() == [0, 0, -0.5, 0.125]
    again = part.pack(START, START, packed.unsent)
    assert again.sends["a"].tolist() == raw((0, 0.5), (5, -1.0))
    assert again.sends["b"].tolist() == raw((2, -0.5))
    assert again.unsent["b"].tolist() == [0, 0, 0, 0.125]


def test_without_feedback_nothing_stays_behind_and_nothing_is_added() -> None:
    part = TopK(0.3, feedback=False)
    packed = part.pack(MOVED, START, {"a": torch.full((2, 3), 7.0)})
    assert packed.unsent == {}
    assert packed.sends["a"].tolist() == raw((1, -3.0), (3, 1.0))


def test_a_tensor_travels_whole_where_that_is_no_longer() -> None:
    """Half of its places in eight bytes each are all of its places in four."""
    packed = TopK(0.5).pack({"w": torch.tensor([1.0, 0.5, 3.0, 0.1])}, {"w": torch.zeros(4)}, {})
    assert packed.sends["w"].tolist() == [1, 0, 3, 0]
    assert packed.sends["w"].dtype == torch.float32


def test_of_one_parameter_one_travels_and_zeros_never_do() -> None:
    few = TopK(0.001).pack({"w": torch.tensor([1.0, 2.0, -4.0])}, {"w": torch.zeros(3)}, {})
    assert few.sends["w"].tolist() == raw((2, -4.0))
    none = TopK(1.0).pack({"w": torch.ones(5)}, {"w": torch.ones(5)}, {})
    assert none.sends["w"].numel() == 0
    assert TopK().unpack(none.sends, {"w": torch.ones(5)})["w"].tolist() == [1] * 5


def test_a_share_is_a_number_above_zero_and_at_most_one() -> None:
    for share in (0.0, 1.5, float("nan")):
        with pytest.raises(ConfigError, match="share must be a number above 0"):
            TopK(share)


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=30), st.integers(1, 30))
def test_the_largest_are_those_a_stable_sort_puts_first(values: list[int], count: int) -> None:
    count = min(count, len(values))
    sizes = np.abs(np.array(values, dtype=np.float32))
    first = np.argsort(-sizes, kind="stable")[:count]
    wanted = np.zeros(len(values), dtype=bool)
    wanted[first] = True
    assert largest(torch.from_numpy(sizes), count).tolist() == (wanted & (sizes > 0)).tolist()


@given(st.integers(0, 2**31), st.sampled_from([0.01, 0.2, 0.5, 1.0]))
def test_all_is_sent_in_the_end(seed: int, share: float) -> None:
    """After any rounds, what came and what is left are all changes; in whole numbers exactly."""
    rng = np.random.default_rng(seed)
    part, unsent = TopK(share), {}
    moved, came = np.zeros((3, 7)), torch.zeros(3, 7)
    start = {"w": torch.zeros(3, 7)}
    for _ in range(4):
        change = rng.integers(-9, 10, (3, 7))
        moved += change
        packed = part.pack({"w": torch.from_numpy(change).float()}, start, unsent)
        unsent = packed.unsent
        came += part.unpack(packed.sends, start)["w"]
    assert (came + unsent["w"]).tolist() == moved.tolist()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_types_of_numbers_keep_theirs(dtype: torch.dtype) -> None:
    moved = {"w": torch.arange(10).to(dtype)}
    start = {"w": torch.zeros(10, dtype=dtype)}
    packed = TopK(0.3).pack(moved, start, {})
    assert packed.sends["w"].numel() == 3 * (4 + dtype.itemsize)
    came = TopK(0.3).unpack(packed.sends, start)["w"]
    assert came.dtype == dtype
    assert came.tolist() == [0, 0, 0, 0, 0, 0, 0, 7, 8, 9]


def test_half_rounds_the_change_and_not_the_parameter() -> None:
    """1000.1 alone would become 1000, for halves are half a unit apart there; its change 0.1 keeps
    eleven digits: 0.1·2¹⁴ = 1638.4, and 1638/2¹⁴ = 0.0999755859375."""
    sent = {"w": torch.tensor([1000.0, 0.0])}
    packed = Half().pack({"w": torch.tensor([1000.0, 0.1])}, sent, {})
    assert packed.sends["w"].dtype == torch.float16
    assert packed.sends["w"].tolist() == [0, 1638 / 2**14]
    near = {"w": torch.tensor([1000.1, 0.0])}
    came = Half().unpack(Half().pack(near, sent, {}).sends, sent)["w"]
    assert float(came[0]) == pytest.approx(1000.1, abs=1e-4)
    assert packed.unsent == {}


def test_what_no_half_holds_is_refused_and_what_is_tiny_becomes_zero() -> None:
    start = {"w": torch.zeros(2)}
    kept = Half().pack({"w": torch.tensor([-65504.0, 2e-8])}, start, {})
    assert kept.sends["w"].tolist() == [-65504, 0]
    with pytest.raises(Diverged, match=r"^w changed by more than 65504, the most that half"):
        Half().pack({"w": torch.tensor([0.0, 65520.0])}, start, {})


def test_changes_that_are_no_numbers_are_no_memory_for_later() -> None:
    with pytest.raises(Diverged, match="its changes are not finite"):
        TopK().pack({"w": torch.tensor([3e38])}, {"w": torch.tensor([-3e38])}, {})


WRONG = {
    "half a place": torch.zeros(12, dtype=torch.uint8),
    "a shape": torch.zeros(1, 8, dtype=torch.uint8),
    "a type": torch.zeros(8, dtype=torch.int64),
    "another shape": torch.zeros(3),
    "a place too far": torch.tensor(raw((4, 1.0)), dtype=torch.uint8),
    "a place below zero": torch.tensor(raw((-1, 1.0)), dtype=torch.uint8),
    "a place twice": torch.tensor(raw((1, 1.0), (1, 2.0)), dtype=torch.uint8),
    "no order": torch.tensor(raw((2, 1.0), (1, 2.0)), dtype=torch.uint8),
}


@pytest.mark.parametrize("came", WRONG.values(), ids=WRONG.keys())
def test_what_nobody_packed_is_not_unpacked(came: Tensor) -> None:
    with pytest.raises(RunError, match=r"^w (did not come|came with)"):
        TopK().unpack({"w": came}, {"w": torch.zeros(4)})


@pytest.mark.parametrize("came", [torch.zeros(4), torch.zeros(2, 2, dtype=torch.float16)])
def test_what_is_no_half_of_that_shape_is_not_unpacked(came: Tensor) -> None:
    with pytest.raises(RunError, match=r"^w did not come as changes in half precision"):
        Half().unpack({"w": came}, {"w": torch.zeros(4)})


def test_packing_twice_gives_the_same_bits() -> None:
    rng = torch.Generator().manual_seed(0)
    moved = {"w": torch.randn(400, generator=rng).round(decimals=1)}
    start = {"w": torch.zeros(400)}
    first, again = (TopK(0.1).pack(moved, start, {}) for _ in range(2))
    assert_same_bits(first.sends, again.sends)
    assert_same_bits(first.unsent, again.unsent)
