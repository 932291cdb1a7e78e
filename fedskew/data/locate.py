"""Where a dataset's files are: which folders are searched, and what counts as found."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedskew.data.formats import find_file
from fedskew.data.raw import RawSamples
from fedskew.data.sources import QMNIST_FILES
from fedskew.errors import DataError


@dataclass(frozen=True)
class Layout:
    """One form a dataset comes in: where under a data folder, which files, and their reader.

    Without ``files`` a place is itself the file. A file may be gzipped, or a glob.
    """

    places: tuple[str, ...]
    files: tuple[str, ...]
    read: Callable[[Path], RawSamples]

    @property
    def wanted(self) -> tuple[str, ...]:
        """The files to ask a user for: every single file, or all files of the first place."""
        if not self.files:
            return self.places
        files = self.files[0] if len(self.files) == 1 else f"{{{','.join(self.files)}}}"
        return (f"{self.places[0]}/{files}",)

    def missing(self, folder: Path) -> tuple[str, ...]:
        """Which of the wanted files a folder lacks."""
        return tuple(name for name in self.files if find_file(folder, name) is None)


def cache_folder() -> Path | None:
    """Where fetched data go unless FEDSKEW_DATA says so; None for users without a home."""
    home = os.path.expanduser("~")
    if sys.platform == "darwin":
        base = os.path.join(home, "Library", "Caches")
    elif sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA", "")
    else:
        base = os.environ.get("XDG_CACHE_HOME", "")
        base = base if os.path.isabs(base) else os.path.join(home, ".cache")
    return Path(base) / "fedskew" if os.path.isabs(base) else None


def data_folders(data_dir: Path | None) -> Iterator[Path]:
    """Data folders in the order they are searched; one the user named must be readable.

    The cache folder, which nobody named, is searched last and may be absent.
    """
    if data_dir is not None:
        yield _readable("data folder", Path(data_dir))
    if os.environ.get("FEDSKEW_DATA"):
        yield _readable("FEDSKEW_DATA", Path(os.environ["FEDSKEW_DATA"]))
    yield Path("data")
    cache = cache_folder()
    if cache is not None and cache.is_dir() and os.access(cache, os.R_OK | os.X_OK):
        yield cache


def _readable(what: str, folder: Path) -> Path:
    try:
        os.listdir(folder)
    except OSError as error:
        reason = (error.strerror or "cannot be read").lower()
        raise DataError(f"{what} {folder} is not a readable folder: {reason}.") from error
    return folder


@dataclass(frozen=True)
class Missing:
    """Nothing complete was found: which folders were searched, and which lack only some files."""

    looked: tuple[str, ...]
    incomplete: tuple[str, ...]


def locate(
    data_dir: Path | None, layouts: Sequence[Layout], elsewhere: Sequence[Path] = ()
) -> tuple[Layout, Path] | Missing:
    """The first complete layout, in the order of data folders, then layouts, then places."""
    looked: list[str] = []
    incomplete: list[str] = []
    for root in _chain(data_dir, elsewhere):
        looked.append(str(root))
        for layout in layouts:
            for place in (root / name for name in layout.places):
                missing = layout.missing(place)
                if place.exists() and not missing:
                    return layout, place
                if 0 < len(missing) < len(layout.files):
                    incomplete.append(f"{place} lacks {', '.join(missing)}")
    return Missing(tuple(looked), tuple(incomplete))


def _chain(data_dir: Path | None, elsewhere: Sequence[Path]) -> Iterator[Path]:
    yield from data_folders(data_dir)
    yield from elsewhere


def read_first(
    name: str,
    layouts: Sequence[Layout],
    elsewhere: Sequence[Path],
    get: str,
    data_dir: Path | None,
) -> RawSamples:
    """The samples of a dataset in the first complete layout; ``get`` says where to get it."""
    found = locate(data_dir, layouts, elsewhere)
    if isinstance(found, Missing):
        files = " or ".join(file for layout in layouts for file in layout.wanted)
        wanted = "; ".join(found.incomplete) or f"it wants {files}"
        raise DataError(
            f"dataset {name!r} was not found: {wanted} (looked in {', '.join(found.looked)}); "
            f"{get}, then set FEDSKEW_DATA or pass --data-dir."
        )
    layout, place = found
    return layout.read(place)


def qmnist_folder(data_dir: Path | None) -> Path:
    """The folder with both QMNIST label files, which name the writer of every MNIST image."""
    looked = []
    for root in data_folders(data_dir):
        looked.append(str(root))
        for place in ("QMNIST-labels", "QMNIST/raw", "MNIST/raw", "."):
            if all(find_file(root / place, name) for name in QMNIST_FILES):
                return root / place
    raise DataError(
        f"dataset 'mnist' with writers=true wants QMNIST-labels/{QMNIST_FILES[0]}.gz and "
        f"{QMNIST_FILES[1]}.gz (looked in {', '.join(looked)}); run 'fedskew data get "
        "qmnist-labels', or get them from the QMNIST repository of Facebook Research, then set "
        "FEDSKEW_DATA or pass --data-dir."
    )
