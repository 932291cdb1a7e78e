"""Finding files, and reading them: a function per format, each refusing damaged files by name."""

from __future__ import annotations

import csv
import io
import json
import math
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedskew.data.bounded import check_npz, check_regular, unzipped
from fedskew.errors import DataError

Array = NDArray[Any]

_IDX_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def find_file(folder: Path, name: str) -> Path | None:
    """A file by its name, its name with .gz, or the first match of a glob."""
    if "*" in name:
        return min(folder.glob(name), default=None)
    return next((p for p in (folder / name, folder / f"{name}.gz") if p.is_file()), None)


def existing(folder: Path, name: str) -> Path:
    """A file that must be there."""
    path = find_file(folder, name)
    if path is None:
        raise DataError(f"{folder / name} is missing.")
    return path


def read_bytes(path: Path) -> bytes:
    """A file's content, unpacked if it is gzip whatever its name says."""
    check_regular(path)
    try:
        data = path.read_bytes()
        return unzipped(path, data) if data[:2] == b"\x1f\x8b" else data
    except (EOFError, zlib.error) as error:
        raise DataError(f"{path} is a damaged or truncated gzip file; fetch it again.") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from error


def read_text(path: Path) -> str:
    """A UTF-8 text file, with or without the mark spreadsheets put in front."""
    try:
        return read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text.") from error


def read_idx(path: Path, dimensions: int) -> Array:
    """An array in the idx format of MNIST, without copying its bytes."""
    data = read_bytes(path)
    kind, found = (data[2], data[3]) if len(data) >= 4 and data[:2] == b"\0\0" else (0, 0)
    if kind not in _IDX_TYPES or found != dimensions:
        raise DataError(
            f"{path} does not start with the magic number of an idx file of "
            f"{dimensions} dimensions; it is not the file its name says."
        )
    start, dtype = 4 + 4 * dimensions, np.dtype(_IDX_TYPES[kind])
    shape = struct.unpack(f">{dimensions}I", data[4:start].ljust(4 * dimensions, b"\0"))
    expected = start + math.prod(shape) * dtype.itemsize
    if len(data) != expected:
        raise DataError(
            f"{path} holds {len(data)} bytes where its header promises {expected}; fetch it again."
        )
    return np.frombuffer(data, dtype=dtype, offset=start).reshape(shape)


def read_npz(path: Path, wanted: Sequence[str]) -> dict[str, Array]:
    """Those of the wanted arrays an npz holds; never unpickles, so a stranger's file is safe."""
    if not path.is_file():
        raise DataError(f"{path} is not a file.")
    if not zipfile.is_zipfile(path):
        raise DataError(f"{path} is not a complete npz file; it may be truncated.")
    arrays: dict[str, Array] = {}
    key = ""
    try:
        check_npz(path, set(wanted))
        with np.load(path, allow_pickle=False) as archive:
            for key in wanted:
                if key in archive.files:
                    arrays[key] = archive[key]
    except DataError:
        raise
    except Exception as error:  # a damaged archive can fail in any way at all
        if "allow_pickle" in str(error):
            raise DataError(
                f"{path}: {key!r} is an object array, which is refused because reading it could "
                "run code; store plain numbers or fixed-width strings."
            ) from error
        raise DataError(f"{path} is damaged: array {key!r} cannot be read.") from error
    return arrays


def read_cifar_binary(path: Path, label_bytes: int) -> tuple[Array, Array]:
    """Pixels [N, 3, 32, 32] and the last label byte of each record of one binary batch."""
    data = read_bytes(path)
    record = label_bytes + 3072
    if not data or len(data) % record:
        raise DataError(
            f"{path} holds {len(data)} bytes, not a multiple of {record}; fetch it again."
        )
    rows = np.frombuffer(data, dtype=np.uint8).reshape(-1, record)
    labels = rows[:, label_bytes - 1].astype(np.int64)
    return rows[:, label_bytes:].reshape(-1, 3, 32, 32), labels


def read_leaf(path: Path, features: int) -> Iterator[tuple[str, Array, Array]]:
    """Each user of a LEAF JSON file: name, samples [n, features] and labels [n]."""
    try:
        users = json.loads(read_text(path))["user_data"]
        items = [(str(name), data["x"], data["y"]) for name, data in users.items()]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(
            f"{path} is not a LEAF file: it needs 'user_data' with 'x' and 'y' for every user."
        ) from error
    for name, pixels, labels in items:
        try:
            x = np.asarray(pixels, dtype=np.float32).reshape(len(pixels), features)
            y = np.asarray(labels, dtype=np.int64).reshape(len(pixels))
        except (ValueError, TypeError) as error:
            raise DataError(
                f"{path}: user {name!r} needs samples of {features} numbers and one whole-number "
                "label each."
            ) from error
        yield name, x, y


def read_numbers(path: Path, dtype: type[np.generic] = np.float32) -> Array:
    """A text file of numbers between blanks, one row per line."""
    lines = read_text(path).splitlines()
    if not any(line.strip() for line in lines):
        raise DataError(f"{path} is empty.")
    try:
        return np.loadtxt(lines, dtype=dtype, ndmin=2)
    except ValueError as error:
        raise DataError(f"{path} is not a table of numbers: {error}.") from error


def read_csv(path: Path, delimiter: str = ",") -> tuple[list[str], list[list[str]]]:
    """Header and rows of a CSV file, every row as long as the header."""
    lines = io.StringIO(read_text(path), newline="")
    try:
        rows = [row for row in csv.reader(lines, delimiter=delimiter) if row]
    except csv.Error as error:
        raise DataError(f"{path} is not a CSV file: {error}.") from error
    if not rows:
        raise DataError(f"{path} is empty: it needs a header row.")
    header = [name.strip() for name in rows[0]]
    for number, row in enumerate(rows[1:], start=1):
        if len(row) != len(header):
            raise DataError(
                f"{path}: row {number} has {len(row)} cells where the header has {len(header)}."
            )
    return header, rows[1:]
