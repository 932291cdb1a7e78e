"""How images are sorted into folders: by client, by class, by training and test."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fedskew.data.images.one import IMAGE_SUFFIXES, OTHER_IMAGES
from fedskew.errors import DataError

IS_TEST = {
    "train": False, "training": False, "val": False, "valid": False, "validation": False,
    "test": True, "testing": True,
}  # fmt: skip
"""Folders that split a dataset rather than name a client."""
DEEPEST = 4
"""Folders inside folders that are looked into: one more than any tree needs."""

Folders = tuple[str, ...]


@dataclass(frozen=True)
class Tree:
    """Images by the folders they lie in: of each its path, its class, and whose it is.

    ``clients`` is None where no folder says whose images are, ``test`` where none says which are to
    be tested on. ``misplaced`` are images outside the folders of all others, ``others`` counts
    files that are no images by how their names end, and ``empty`` are folders of classes without
    an image.
    """

    paths: tuple[Path, ...]
    classes: tuple[str, ...]
    clients: tuple[str, ...] | None = None
    test: tuple[bool, ...] | None = None
    misplaced: tuple[Path, ...] = ()
    others: Counter[str] | None = None
    empty: tuple[str, ...] = ()


def found_tree(folder: Path) -> Tree:
    """Images in CLASS/, CLIENT/CLASS/, either of them inside train/ and test/, or CLIENT/train/."""
    entries = [*_entries(folder, ())]
    folders = [inside for inside, name in entries if name is None]
    files = [(inside, name) for inside, name in entries if name is not None]
    images = [(inside, name) for inside, name in files if inside and _is_image(name)]
    counts = Counter(len(inside) for inside, _ in images if len(inside) < DEEPEST)
    depth = max(sorted(counts), key=lambda each: (counts[each], each == 2), default=2)
    held = [(inside, name) for inside, name in images if len(inside) == depth]
    place = _place_of_split(folder, held, depth)
    _refuse_empty(folder, folders, held, depth, place)
    kept = {inside for inside, _ in held}
    named = [_without(inside, place) for inside, _ in held]
    return Tree(
        tuple(folder.joinpath(*inside, name) for inside, name in held),
        tuple(inside[-1] for inside in named),
        tuple(inside[0] for inside in named) if len(named[0]) == 2 else None,
        None if place is None else tuple(IS_TEST[inside[place].lower()] for inside, _ in held),
        tuple(folder.joinpath(*inside, name) for inside, name in images if len(inside) != depth),
        Counter(_ending(name) for inside, name in files if not inside or not _is_image(name)),
        tuple("/".join(each) for each in folders if len(each) == depth and each not in kept),
    )


def _entries(folder: Path, inside: Folders) -> Iterator[tuple[Folders, str | None]]:
    """Every folder (without a name) and file below, sorted; hidden ones and Mac's copies are not
    looked at."""
    with os.scandir(folder) as found:
        listed = sorted(found, key=lambda entry: entry.name)
    for entry in listed:
        if entry.name.startswith(".") or entry.name == "__MACOSX":
            continue
        # Of a link that leads to itself an entry would raise what it is.
        if os.path.isdir(entry.path) if entry.is_symlink() else entry.is_dir():
            yield (*inside, entry.name), None
            if len(inside) < DEEPEST:
                yield from _entries(Path(entry.path), (*inside, entry.name))
        else:
            yield inside, entry.name


def _ending(name: str) -> str:
    return os.path.splitext(name)[1].lower() or name


def _is_image(name: str) -> bool:
    return _ending(name) in IMAGE_SUFFIXES | OTHER_IMAGES


def _place_of_split(folder: Path, held: list[tuple[Folders, str]], depth: int) -> int | None:
    """Which of the folders around the images are train and test."""
    for place in range(min(depth - 1, 2)):
        names = {inside[place].lower() for inside, _ in held}
        if names <= IS_TEST.keys() and not all(IS_TEST[name] for name in names):
            return place
    if depth > 2:
        inside, name = held[0]
        raise DataError(
            f"{folder}: {'/'.join((*inside, name))} lies in {depth} folders, none of which are "
            "train and test: sort images into CLIENT/CLASS/ or CLASS/ folders."
        )
    return None


def _without(inside: Folders, place: int | None) -> Folders:
    return inside if place is None else (*inside[:place], *inside[place + 1 :])


def _refuse_empty(
    folder: Path,
    folders: list[Folders],
    held: list[tuple[Folders, str]],
    depth: int,
    place: int | None,
) -> None:
    """Refuse no images at all, and a client without any."""
    if not held:
        raise DataError(
            f"{folder} has no images in folders CLIENT/CLASS/ or CLASS/: sort them into such."
        )
    levels = [level for level in range(depth - 1) if level != place]
    if not levels:
        return
    width = levels[0] + 1
    filled = {inside[:width] for inside, _ in held}
    for each in folders:
        if len(each) == width and each not in filled:
            path = folder.joinpath(*each)
            raise DataError(f"{path} has no images in class folders ({each[-1]}/class/image).")
