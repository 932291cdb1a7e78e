"""Fetching a dataset: its official files into a data folder, verified, unpacked, written down."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from fedskew.data.download import PATIENT, Failed, Patience, download
from fedskew.data.locate import cache_folder
from fedskew.data.offers import Offer, OfficialFile, sum_of
from fedskew.data.unpack import staging, unpack
from fedskew.errors import DataError

DOWNLOADS = "downloads"
"""Below a data folder: what is on its way, what users bring, and what came from where."""
UNPACKED = 3
"""Free space that an archive needs, times its size."""


class NotFetched(DataError):
    """No address gave a file; what a user may bring instead is in ``offer`` and ``folder``."""

    def __init__(self, message: str, offer: Offer, folder: Path) -> None:
        super().__init__(message)
        self.offer, self.folder = offer, folder


class Watch:
    """Who wants to know how far a fetch is; this one does not."""

    def tell(self, sentence: str) -> None:
        """Something a user should know."""

    def at(self, file: OfficialFile, got: int) -> None:
        """So many bytes of a file are there."""


@dataclass(frozen=True)
class Fetched:
    """Where a dataset is, and whether it had to be fetched."""

    place: Path
    new: bool


def target_folder(into: Path | None) -> Path:
    """Where fetched data go: the folder asked for, else FEDSKEW_DATA, else the user's cache."""
    if into is not None:
        return into
    if os.environ.get("FEDSKEW_DATA"):
        return Path(os.environ["FEDSKEW_DATA"])
    cache = cache_folder()
    if cache is None:
        raise DataError("this user has no home folder: say with --into where the data shall go.")
    return cache


def fetch(
    offer: Offer, folder: Path, watch: Watch | None = None, patience: Patience = PATIENT
) -> Fetched:
    """Make a data folder hold a dataset, of which official files may lie in its downloads.

    What is whole and right is never fetched again, and what was interrupted goes on. The dataset
    appears in its place when all of it has been verified.
    """
    watch = watch or Watch()
    place, downloads = folder / offer.place, folder / DOWNLOADS
    try:
        if _is_whole(offer, folder):
            return Fetched(place, new=False)  # nothing is written, so a folder to read from is fine
        downloads.mkdir(parents=True, exist_ok=True)
        with _alone(downloads / f"{offer.name}.lock", offer, watch):
            new = (_packed if offer.packed else _loose)(offer, folder, watch, patience)
    except OSError as error:
        raise _disk(folder, error) from error
    if lacks := offer.lacks(folder):
        raise DataError(f"{place} lacks {', '.join(lacks)} though every file was right.")
    return Fetched(place, new)


def _is_whole(offer: Offer, folder: Path) -> bool:
    """Whether all is there, and files that are used as they came are still right."""
    if offer.lacks(folder):
        return False
    paths = [(file, folder / offer.place / file.name) for file in offer.files]
    return offer.packed or not any(path.is_file() and file.wrong(path) for file, path in paths)


def _loose(offer: Offer, folder: Path, watch: Watch, patience: Patience) -> bool:
    """Files that are used as they come; a reader takes unpacked ones as well."""
    place = folder / offer.place
    wanted = []
    for file, name in zip(offer.files, offer.holds, strict=True):
        path = place / file.name
        if path.is_file() and (wrong := file.wrong(path)):
            watch.tell(f"{path} is damaged, {wrong}: it is fetched again")
            wanted.append(file)
        elif not path.is_file() and not (place / name).is_file():
            wanted.append(file)
    _check_room(folder, sum(file.size for file in wanted))
    for file in wanted:
        came = _obtain(offer, file, folder, watch, patience)
        place.mkdir(parents=True, exist_ok=True)
        os.replace(came.path, place / file.name)
        _write_down(offer, file, folder, came)
    return bool(wanted)


def _packed(offer: Offer, folder: Path, watch: Watch, patience: Patience) -> bool:
    """Archives: all of them are unpacked beside the place, which then appears at once."""
    place = folder / offer.place
    lacks = offer.lacks(folder)
    if not lacks:
        return False
    if place.exists():
        raise DataError(
            f"{place} is there but lacks {', '.join(lacks)}: move it away and repeat the command."
        )
    _check_room(folder, UNPACKED * offer.size)
    came = [(file, _obtain(offer, file, folder, watch, patience)) for file in offer.files]
    with staging(folder / DOWNLOADS / f"{offer.name}.unpacked") as beside:
        for file, one in came:
            watch.tell(f"unpacking {file.name}")
            unpack(one.path, beside / file.into, file.inner)
        unpacked = beside / offer.place
        if not unpacked.is_dir():
            raise DataError(f"{came[0][1].path} does not hold {offer.place!r}.")
        os.replace(unpacked, place)
    for file, one in came:
        _write_down(offer, file, folder, one)
        if one.source:
            one.path.unlink()
        else:
            watch.tell(f"{one.path} is not needed any more")
    return True


@dataclass(frozen=True)
class _Came:
    """A verified file, its SHA-256 and its address; without one it lay in the downloads."""

    path: Path
    sha256: str
    source: str


def _obtain(
    offer: Offer, file: OfficialFile, folder: Path, watch: Watch, patience: Patience
) -> _Came:
    """A file that somebody brought, else from its addresses."""
    path = folder / DOWNLOADS / file.name
    source = ""
    if path.is_file():
        if wrong := file.wrong(path):
            raise DataError(f"{path} is not the official file, {wrong}: remove it and repeat.")
        watch.at(file, file.size)
    else:
        part = path.with_name(f"{path.name}.part")
        try:
            source = download(file, part, lambda got: watch.at(file, got), patience)
        except Failed as failed:
            raise NotFetched(
                f"{file.name} of {offer.name!r} could not be fetched: {failed}; bring the files "
                f"that 'fedskew data list {offer.name}' names from a machine with a network, put "
                f"them into {folder / DOWNLOADS} and repeat the command, which checks them.",
                offer,
                folder,
            ) from failed
        _to_disk(part)
        os.replace(part, path)
    return _Came(path, _known(offer, file, folder, path, watch), source)


def _known(offer: Offer, file: OfficialFile, folder: Path, path: Path, watch: Watch) -> str:
    """The SHA-256 of a verified file; where none is published, that of the first fetch counts."""
    if file.sha256:
        watch.tell(f"{file.name}: {file.size} bytes, SHA-256 as published")
        return file.sha256
    found = sum_of(path)
    before = _written(offer, folder).get(file.name, {}).get("sha256", found)
    if before != found:
        raise DataError(
            f"{path} has the published MD5 sum but another SHA-256 ({found}) than the file that "
            f"was fetched before ({before}): do not trust it."
        )
    watch.tell(
        f"{file.name}: {file.size} bytes, MD5 as published; no SHA-256 is known, so this one is "
        f"kept to compare with: {found}"
    )
    return found


def _written(offer: Offer, folder: Path) -> dict[str, dict[str, str]]:
    """What is written down of a dataset's files."""
    try:
        found = json.loads((folder / DOWNLOADS / f"{offer.name}.json").read_text())
        return {str(name): dict(facts) for name, facts in found["files"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _write_down(offer: Offer, file: OfficialFile, folder: Path, came: _Came) -> None:
    """Keep what came from where, checked by what, under which licence."""
    files = _written(offer, folder)
    files[file.name] = {
        "sha256": came.sha256,
        "checked by": file.sum[0],
        "from": came.source or DOWNLOADS,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    terms = {
        "licence": offer.licence_in_full,
        "cite": offer.cite,
        "home": offer.home,
    }
    path = folder / DOWNLOADS / f"{offer.name}.json"
    beside = path.with_name(f"{path.name}.part")
    beside.write_text(json.dumps({**terms, "files": files}, indent=2) + "\n")
    os.replace(beside, path)


@contextmanager
def _alone(lock: Path, offer: Offer, watch: Watch) -> Iterator[None]:
    """Only one command fetches a dataset into a folder; others wait, and then find it there."""
    with open(lock, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            watch.tell(f"another command is fetching {offer.name} to the same folder: waiting")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _to_disk(path: Path) -> None:
    with open(path, "rb+") as file:
        os.fsync(file.fileno())


def _check_room(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise DataError(
            f"{folder} has {free / 1e6:.0f} MB free and this needs {needed / 1e6:.0f}: free some "
            "space, or name another folder with --into."
        )


def _disk(folder: Path, error: OSError) -> DataError:
    place = error.filename or folder
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DataError(
            f"the disk is full: could not write {place}; free some space and repeat the command, "
            "which goes on where it stopped."
        )
    return DataError(
        f"could not write {place}: {(error.strerror or str(error)).lower()}; name a folder of "
        "yours with --into."
    )
