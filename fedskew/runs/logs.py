"""The logs of a run folder: lines are added, never changed, and a hash tells if they were."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedskew.errors import RunError
from fedskew.store import damaged, disk_error

PORTION = 1 << 20


@dataclass(frozen=True)
class Extent:
    """How much of a log counts, and the SHA-256 of it; runs of earlier versions have no hash."""

    length: int = 0
    sha256: str | None = None


def extents(book: Mapping[str, Any]) -> dict[str, Extent]:
    """By log, what counts of it by a checkpoint's book."""
    hashes = book.get("hashes", {})
    return {name: Extent(int(n), hashes.get(name)) for name, n in book.get("lengths", {}).items()}


class Log:
    """One log. It is read once, when it is taken up, and hashed further as lines are added."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._length = 0
        self._hash = hashlib.sha256()

    @property
    def extent(self) -> Extent:
        return Extent(self._length, self._hash.hexdigest())

    def check(self, extent: Extent) -> None:
        """Read what counts of the log and refuse it if it is not what was written."""
        self._read(extent.length)
        refuse_other(self.path, extent, self.extent)

    def cut(self, length: int) -> None:
        """Wipe what stands beyond a length: an interrupted round wrote it."""
        if self._length != length:
            self._read(length)
        if self.path.exists():
            os.truncate(self.path, length)

    def add(self, lines: Sequence[bytes]) -> Extent:
        """Add lines; they only count once a checkpoint says so."""
        text = b"".join(lines)
        try:
            with open(self.path, "ab") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
                self._length = file.tell()
        except OSError as error:
            raise disk_error(self.path, error) from error
        self._hash.update(text)
        return self.extent

    def lines(self, extent: Extent) -> list[bytes]:
        """The lines that count, as they were written; a log that was damaged is refused."""
        text = b"".join(_portions(self.path, extent.length))
        refuse_other(self.path, extent, Extent(len(text), hashlib.sha256(text).hexdigest()))
        return text.splitlines(keepends=True)

    def _read(self, length: int) -> None:
        self._length, self._hash = 0, hashlib.sha256()
        for portion in _portions(self.path, length):
            self._length += len(portion)
            self._hash.update(portion)


def refuse_other(path: Path, wanted: Extent, found: Extent) -> None:
    """Refuse a log of which something else was found than is wanted."""
    if found.length < wanted.length:
        raise damaged(
            path, f"is damaged at its end: it has {found.length} of {wanted.length} bytes"
        )
    if wanted.sha256 is not None and found.sha256 != wanted.sha256:
        where = f"in its first {wanted.length or found.length} bytes"
        raise damaged(path, f"is damaged {where}, which are not those that were written")


def _portions(path: Path, length: int) -> Iterator[bytes]:
    if not length:
        return
    try:
        with open(path, "rb") as file:
            while portion := file.read(min(PORTION, length)):
                length -= len(portion)
                yield portion
    except FileNotFoundError:
        return
    except OSError as error:
        raise RunError(f"could not read {path}: {error.strerror or error}.") from error
