"""Where a dataset's files are: which folders are searched, and what counts as found."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedskew.data.raw import RawSamples
from fedskew.errors import DataError


@dataclass(frozen=True)
class Layout:
    """One form a dataset comes in: where under a data folder, which files, and their reader.

    Without ``files`` a place is itself the file wanted. A file may be gzipped, or a glob.
    """

    places: tuple[str, ...]
    files: tuple[str, ...]
    read: Callable[[Path], RawSamples]

    @property
    def wanted(self) -> tuple[str, ...]:
        """What to tell a user to provide: every single file, or all files of the first place."""
        if not self.files:
            return self.places
        files = self.files[0] if len(self.files) == 1 else f"{{{','.join(self.files)}}}"
        return (f"{self.places[0]}/{files}",)

    def missing(self, folder: Path) -> tuple[str, ...]:
        """Which of the wanted files a folder lacks."""
        return tuple(name for name in self.files if find_file(folder, name) is None)


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


def data_folders(data_dir: Path | None) -> Iterator[Path]:
    """Data folders in the order they are searched; one the user named must be readable."""
    if data_dir is not None:
        yield _readable("data folder", Path(data_dir))
    if os.environ.get("FEDSKEW_DATA"):
        yield _readable("FEDSKEW_DATA", Path(os.environ["FEDSKEW_DATA"]))
    yield Path("data")


def _readable(what: str, folder: Path) -> Path:
    try:
        os.listdir(folder)
    except OSError as error:
        reason = (error.strerror or "cannot be read").lower()
        raise DataError(f"{what} {folder} is not a readable folder: {reason}.") from error
    return folder


@dataclass(frozen=True)
class Missing:
    """Nothing complete was found: where was looked, and which folders were nearly right."""

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
