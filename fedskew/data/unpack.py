"""Unpacking archives from elsewhere: plain files inside one folder, and no more than fits them."""

from __future__ import annotations

import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from lzma import LZMAError
from pathlib import Path, PurePosixPath
from typing import IO

from fedskew.errors import DataError

RATIO = 20
"""No archive of the table unpacks to more than this many times its size."""
LEFTOVERS = frozenset({"__MACOSX", ".DS_Store"})
BLOCK = 1 << 20


def unpack(archive: Path, folder: Path, inner: str = "") -> None:
    """Unpack a zip or tar file into a folder; ``inner`` names the archive in it that counts."""
    try:
        _unpack(archive, folder)
        if inner:
            nested = folder / inner
            if not nested.is_file():
                raise DataError(f"{archive} does not hold {inner!r}; it is not the official file.")
            _unpack(nested, folder)
            nested.unlink()
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, LZMAError) as error:
        raise DataError(f"{archive} is a damaged archive: {error}.") from error
    except (NotImplementedError, RuntimeError, ValueError) as error:
        raise DataError(f"{archive} cannot be unpacked: {error}.") from error
    except (FileExistsError, IsADirectoryError, NotADirectoryError) as error:
        raise DataError(f"{archive} holds a file and a folder of one name.") from error


def _unpack(archive: Path, folder: Path) -> None:
    most = RATIO * archive.stat().st_size + BLOCK
    members = _zip(archive) if zipfile.is_zipfile(archive) else _tar(archive)
    for name, stream in members:
        target = folder / _harmless(archive, name)
        target.parent.mkdir(parents=True, exist_ok=True)
        with stream, open(target, "wb") as out:  # no link is ever made here to write through
            while block := stream.read(BLOCK):
                most -= len(block)
                if most < 0:
                    raise DataError(f"{archive} unpacks to far more than its size: it is refused.")
                out.write(block)


def _harmless(archive: Path, name: str) -> PurePosixPath:
    """A member's path, which must lead into the folder it is unpacked to."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name or not path.parts:
        raise DataError(f"{archive} holds {name!r}, which leads out of its folder: it is refused.")
    return path


def _zip(path: Path) -> Iterator[tuple[str, IO[bytes]]]:
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            kind = member.external_attr >> 28
            if member.is_dir() or _is_leftover(member.filename):
                continue
            if kind not in (0, 0o10):
                raise _no_plain_file(path, member.filename)
            yield member.filename, archive.open(member)


def _tar(path: Path) -> Iterator[tuple[str, IO[bytes]]]:
    with tarfile.open(path) as archive:
        for member in archive:
            if member.isdir() or _is_leftover(member.name):
                continue
            stream = archive.extractfile(member) if member.isreg() else None
            if stream is None:
                raise _no_plain_file(path, member.name)
            yield member.name, stream


def _is_leftover(name: str) -> bool:
    return not LEFTOVERS.isdisjoint(PurePosixPath(name).parts)


def _no_plain_file(archive: Path, name: str) -> DataError:
    return DataError(f"{archive} holds {name!r}, which is no plain file: it is refused.")


@contextmanager
def staging(folder: Path) -> Iterator[Path]:
    """An empty folder to unpack into, which is gone afterwards whatever happens."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
