"""Readers of single files: exact values back, damaged and malicious files refused by name."""

from __future__ import annotations

import gzip
import os
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedskew.data.formats import (
    read_bytes,
    read_cifar_binary,
    read_csv,
    read_idx,
    read_leaf,
    read_npz,
    read_numbers,
)
from fedskew.data.pickles import read_cifar_pickle, read_pickle
from fedskew.errors import DataError


def idx(array: np.ndarray[Any, Any], kind: int = 0x08) -> bytes:
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, kind, array.ndim, *array.shape)
    return header + array.tobytes()


def test_an_idx_file_gives_its_exact_values_gzipped_or_not(tmp_path: Path) -> None:
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    (tmp_path / "plain").write_bytes(idx(pixels))
    (tmp_path / "packed.gz").write_bytes(gzip.compress(idx(pixels)))
    assert read_idx(tmp_path / "plain", 3).tolist() == pixels.tolist()
    assert read_idx(tmp_path / "packed.gz", 3).tolist() == pixels.tolist()


def test_idx_integers_are_big_endian(tmp_path: Path) -> None:
    (tmp_path / "labels").write_bytes(idx(np.array([[5, 0, 2034]], dtype=">i4"), 0x0C))
    assert read_idx(tmp_path / "labels", 2).tolist() == [[5, 0, 2034]]


@pytest.mark.parametrize("content", [b"", b"\0\0\x08", b"\0\0\x08\x01\0\0\0\0", b"PK\3\4....."])
def test_an_idx_file_with_the_wrong_magic_number_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "images").write_bytes(content)
    with pytest.raises(DataError, match=r"images does not start with the magic number"):
        read_idx(tmp_path / "images", 3)


@pytest.mark.parametrize("length", [9, 12, 21, 30])
def test_an_idx_file_cut_short_is_refused(tmp_path: Path, length: int) -> None:
    (tmp_path / "images").write_bytes(idx(np.zeros((2, 3, 4), np.uint8))[:length])
    with pytest.raises(DataError, match=rf"images holds {length} bytes where its header promises"):
        read_idx(tmp_path / "images", 3)


def test_an_idx_header_that_promises_astronomical_sizes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "images").write_bytes(struct.pack(">BBBB3I", 0, 0, 8, 3, *[2**32 - 1] * 3))
    with pytest.raises(DataError, match=f"header promises {(2**32 - 1) ** 3 + 16}"):
        read_idx(tmp_path / "images", 3)


def test_a_truncated_gzip_is_refused_by_name(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, 5000, dtype=np.uint8).tobytes()
    (tmp_path / "images.gz").write_bytes(gzip.compress(noise)[:2500])
    with pytest.raises(DataError, match=r"images\.gz is a damaged or truncated gzip"):
        read_bytes(tmp_path / "images.gz")


def test_a_gzip_with_a_flipped_byte_is_refused(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(bytes(range(256)) * 20))
    packed[-6] ^= 0xFF  # inside the checksum
    (tmp_path / "images.gz").write_bytes(packed)
    with pytest.raises(DataError, match="damaged"):
        read_bytes(tmp_path / "images.gz")


def test_a_folder_where_a_file_should_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read: Is a directory"):
        read_bytes(tmp_path)


def test_npz_returns_only_the_wanted_arrays_it_holds(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.eye(2), other=np.zeros(9))
    assert {k: v.tolist() for k, v in read_npz(tmp_path / "a.npz", ("x", "y")).items()} == {
        "x": [[1, 0], [0, 1]]
    }


def test_a_truncated_npz_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(1000))
    content = (tmp_path / "a.npz").read_bytes()
    (tmp_path / "a.npz").write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match=r"a\.npz is not a complete npz file"):
        read_npz(tmp_path / "a.npz", ("x",))


def test_an_npz_with_damaged_contents_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(1000))
    content = bytearray((tmp_path / "a.npz").read_bytes())
    content[600] ^= 0xFF
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(DataError, match=r"a\.npz is damaged: array 'x'"):
        read_npz(tmp_path / "a.npz", ("x",))


class Payload:
    """Creates a folder when unpickled by a careless reader."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.trace),)


def test_object_arrays_are_refused_and_their_payload_never_runs(tmp_path: Path) -> None:
    trace = tmp_path / "executed"
    np.savez(tmp_path / "a.npz", x=np.array([Payload(trace)], dtype=object))
    with pytest.raises(DataError, match=r"a\.npz: 'x' is an object array, which is refused"):
        read_npz(tmp_path / "a.npz", ("x",))
    assert not trace.exists()


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_malicious_pickle_is_refused_and_its_payload_never_runs(
    tmp_path: Path, protocol: int
) -> None:
    trace = tmp_path / "executed"
    (tmp_path / "batch").write_bytes(pickle.dumps({b"data": Payload(trace)}, protocol=protocol))
    with pytest.raises(DataError, match=r"batch asks for posix\.mkdir, which no array needs"):
        read_pickle(tmp_path / "batch")
    assert not trace.exists()


def test_a_pickle_may_not_reach_builtins_either(tmp_path: Path) -> None:
    (tmp_path / "batch").write_bytes(b"cbuiltins\neval\n(S'1+1'\ntR.")
    with pytest.raises(DataError, match=r"batch asks for builtins\.eval"):
        read_pickle(tmp_path / "batch")


class State:
    """Has numpy's type or array take a state that no image needs, when it is unpickled."""

    def __init__(self, *reduced: Any) -> None:
        self.reduced = reduced

    def __reduce__(self) -> tuple[Any, ...]:
        return self.reduced


FIELDS = (3, "|", None, ("f",), {"f": (np.dtype("O"), 0)}, 8, 1, 27)
RECONSTRUCT = np.empty(0).__reduce__()[0]


@pytest.mark.parametrize(
    "value",
    [
        State(np.dtype, ("V8", False, True), FIELDS),
        State(RECONSTRUCT, (np.ndarray, (0,), b"b"),
              (1, (1,), State(np.dtype, ("V8", False, True), FIELDS), False, b"A" * 8)),
        State(RECONSTRUCT, (np.ndarray, (0,), b"b"),
              (1, (1,), State(np.dtype, ("O8", False, True)), False, b"A" * 8)),
        State(RECONSTRUCT, (np.ndarray, (0,), b"b"),
              (1, (10**12,), State(np.dtype, ("u1", False, True)), False, b"A" * 8)),
        State(RECONSTRUCT, (np.ndarray, (0,), b"b"),
              (1, (-1, -8), State(np.dtype, ("u1", False, True)), False, b"A" * 8)),
    ],
    ids=["type with fields", "array of it", "objects", "huge", "negative"],
)  # fmt: skip
def test_a_pickle_cannot_give_numpy_a_state_of_its_own(tmp_path: Path, value: State) -> None:
    """A pointer in a type's state would be followed: the process died of it."""
    (tmp_path / "meta").write_bytes(pickle.dumps({b"data": value}, protocol=2))
    with pytest.raises(DataError, match="meta is a damaged or truncated pickle"):
        read_pickle(tmp_path / "meta")


def test_a_pickle_cannot_ask_for_room_it_does_not_need(tmp_path: Path) -> None:
    """Opcode r remembers an object under any number; a list that long would be 34 GB."""
    (tmp_path / "meta").write_bytes(b"\x80\x02}r\xff\xff\xff\xff.")
    assert read_pickle(tmp_path / "meta") == {}


@pytest.mark.parametrize(
    "content", [b"", b"\x80\x02}q\0(U\x04da", b"not a pickle", b"\x80\x02K\x01."]
)
def test_a_damaged_pickle_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "batch").write_bytes(content)
    with pytest.raises(DataError, match=r"batch (is a damaged|holds int)"):
        read_pickle(tmp_path / "batch")


def test_a_cifar_pickle_gives_channels_first_pixels(tmp_path: Path) -> None:
    data = np.arange(2 * 3072, dtype=np.uint32).astype(np.uint8).reshape(2, 3072)
    batch = {b"data": data, b"labels": [3, 9], b"batch_label": b"training batch 1 of 5"}
    (tmp_path / "data_batch_1").write_bytes(pickle.dumps(batch, protocol=2))
    x, y = read_cifar_pickle(tmp_path / "data_batch_1", "labels")
    assert (x.shape, y.tolist()) == ((2, 3, 32, 32), [3, 9])
    assert x[1, 2, 31, 30] == data[1, 2 * 1024 + 31 * 32 + 30]


def test_a_cifar_pickle_written_by_an_old_numpy_is_read(tmp_path: Path) -> None:
    batch = {b"data": np.full((1, 3072), 7, np.uint8), b"labels": [4]}
    old = pickle.dumps(batch, protocol=2).replace(b"numpy._core", b"numpy.core")
    assert b"numpy.core.multiarray" in old
    (tmp_path / "data_batch_1").write_bytes(old)
    x, y = read_cifar_pickle(tmp_path / "data_batch_1", "labels")
    assert (x.min(), x.max(), y.tolist()) == (7, 7, [4])


def test_a_cifar_pickle_with_too_few_labels_is_refused(tmp_path: Path) -> None:
    batch = {b"data": np.zeros((2, 3072), np.uint8), b"labels": [4]}
    (tmp_path / "b").write_bytes(pickle.dumps(batch, protocol=2))
    with pytest.raises(DataError, match=r"'data' should be uint8 \[1, 3072\]"):
        read_cifar_pickle(tmp_path / "b", "labels")
    with pytest.raises(DataError, match="b has no 'fine_labels'"):
        read_cifar_pickle(tmp_path / "b", "fine_labels")


def test_cifar_binary_records_start_with_their_labels(tmp_path: Path) -> None:
    (tmp_path / "ten.bin").write_bytes(bytes([6]) + bytes(3072) + bytes([2]) + b"\xff" * 3072)
    x, y = read_cifar_binary(tmp_path / "ten.bin", 1)
    assert (y.tolist(), x[0].max(), x[1].min()) == ([6, 2], 0, 255)
    (tmp_path / "hundred.bin").write_bytes(bytes([11, 49]) + bytes(3071) + b"\x05")
    x, y = read_cifar_binary(tmp_path / "hundred.bin", 2)
    assert (y.tolist(), x[0, 2, 31, 31]) == ([49], 5)


def test_a_cut_cifar_binary_is_refused(tmp_path: Path) -> None:
    (tmp_path / "b.bin").write_bytes(bytes(3072))
    with pytest.raises(DataError, match=r"b\.bin holds 3072 bytes, not a multiple of 3073"):
        read_cifar_binary(tmp_path / "b.bin", 1)


def test_leaf_users_come_with_their_samples(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(
        '{"users": ["ann"], "num_samples": [2],'
        ' "user_data": {"ann": {"x": [[1.0, 0.5], [0.25, 1]], "y": [3, 61]}}}'
    )
    [(name, x, y)] = read_leaf(tmp_path / "a.json", 2)
    assert (name, x.tolist(), y.tolist()) == ("ann", [[1.0, 0.5], [0.25, 1.0]], [3, 61])


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("{", "is not a LEAF file"),
        ("[]", "is not a LEAF file"),
        ('{"user_data": {"ann": {"x": []}}}', "is not a LEAF file"),
        ('{"user_data": {"ann": {"x": [[1, 2], [3]], "y": [0, 1]}}}', "user 'ann' needs samples"),
        ('{"user_data": {"ann": {"x": [[1, 2]], "y": [0, 1]}}}', "user 'ann' needs samples"),
        ('{"user_data": {"ann": {"x": [[1, 2]], "y": ["?"]}}}', "user 'ann' needs samples"),
    ],
)
def test_broken_leaf_files_are_refused(tmp_path: Path, content: str, sentence: str) -> None:
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(DataError, match=rf"a\.json.* ?{sentence}"):
        list(read_leaf(tmp_path / "a.json", 2))


def test_text_tables_may_be_padded_with_blanks(tmp_path: Path) -> None:
    (tmp_path / "X.txt").write_text("  2.5e-001 -1.0000000e+000\n  0.0 3\n")
    assert read_numbers(tmp_path / "X.txt").tolist() == [[0.25, -1.0], [0.0, 3.0]]


@pytest.mark.parametrize("content", ["1 2\n3\n", "1 two\n", " \n"])
def test_broken_text_tables_are_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "X.txt").write_text(content)
    with pytest.raises(DataError, match=r"X\.txt is (not a table of numbers|empty)"):
        read_numbers(tmp_path / "X.txt")


def test_a_csv_row_of_the_wrong_length_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n1,2\n3\n")
    with pytest.raises(DataError, match=r"a\.csv: row 2 has 1 cells where the header has 2"):
        read_csv(tmp_path / "a.csv")


def test_a_csv_saved_by_a_spreadsheet_loses_its_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"\xef\xbb\xbflabel,b\r\n1,2\r\n")
    assert read_csv(tmp_path / "a.csv") == (["label", "b"], [["1", "2"]])
