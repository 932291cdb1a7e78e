"""Bounds on what files may hold: no pipes, no bombs, no headers or labels that promise too much."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import BinaryIO

import numpy as np

from fedskew.errors import DataError
from fedskew.types import Indices

ALWAYS = 2**28
"""Bytes that may always be unpacked."""
RATIO = 250
"""Above that, no file unpacks to more than this many times its size; pixels stay below 20."""
PIXELS = 2**26
"""An image of more is refused; X-rays have a quarter of that."""


MOST_CLASSES = 65_536
"""Of data that only number them: one more class is one more output of every model."""


def check_class_number(path: Path, largest: int) -> None:
    """Refuse a label so large that counting classes up to it would fill the memory."""
    if largest >= MOST_CLASSES:
        raise DataError(
            f"{path}: label {largest} is too large for a class number: number classes from 0 on, "
            f"up to {MOST_CLASSES - 1}."
        )


def check_segments(origin: Path | str, segment: Indices | None) -> None:
    """Refuse one segment for all rows: no split could part them."""
    if segment is not None and segment.size > 1 and bool((segment == segment[0]).all()):
        raise DataError(
            f"{origin}: all rows share one 'segment', so no split can part them: give rows that "
            "overlap a number of their own, or leave 'segment' out."
        )


def check_regular(path: Path) -> None:
    """Refuse pipes and devices, which may never end."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise DataError(f"{path} is no plain file: a pipe or a device cannot be read.")


def most_unpacked(packed: int) -> int:
    """The most bytes that so many compressed ones may become."""
    return max(ALWAYS, RATIO * packed)


def unzipped(path: Path, data: bytes) -> bytes:
    """The content of gzip data, unless it is a bomb."""
    most, found = most_unpacked(len(data)), bytearray()
    while data:
        unpacker = zlib.decompressobj(wbits=31)
        found += unpacker.decompress(data, most + 1 - len(found))
        if len(found) > most:
            raise DataError(
                f"{path} unpacks to more than {RATIO} times its size: no data are packed so well, "
                "so it is refused."
            )
        if not unpacker.eof:
            raise EOFError
        data = unpacker.unused_data.lstrip(b"\0")
    return bytes(found)


def check_npz(path: Path, wanted: set[str]) -> None:
    """Refuse an archive whose arrays would be larger than what it holds."""
    packed = path.stat().st_size
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            if name not in wanted:
                continue
            if member.file_size > most_unpacked(packed):
                raise DataError(f"{path}: array {name!r} unpacks to far more than the file holds.")
            with archive.open(member) as file:
                promised = _promised(file)
            if promised > member.file_size:
                raise DataError(
                    f"{path} is damaged: array {name!r} promises {promised} bytes and has "
                    f"{member.file_size}."
                )


def _promised(file: object) -> int:
    """How many bytes an array's header says that there are."""
    stream: BinaryIO = file  # type: ignore[assignment]
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0
    if version != (1, 0):
        read = np.lib.format.read_array_header_2_0
    shape, _, dtype = read(stream)
    if dtype.hasobject:
        return 0  # numpy refuses these by itself, without reading them
    return int(np.prod([int(n) for n in shape], dtype=object)) * dtype.itemsize
