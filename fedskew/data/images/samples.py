"""From folders of images to samples: whose each is, of which class, and whether it is tested on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedskew.data.formats import Array
from fedskew.data.images.folders import Tree, found_tree
from fedskew.data.images.reading import Read, Wish, read_images
from fedskew.data.raw import RawSamples
from fedskew.data.remarks import Remarks
from fedskew.errors import DataError

MOST_NAMED = 5
"""So many folders, or kinds of files, are named in a sentence."""


def read_image_folders(folder: Path, wish: Wish) -> RawSamples:
    """Images in CLIENT/CLASS/ or CLASS/ folders, perhaps inside train/ and test/."""
    tree = found_tree(folder)
    found = read_images(folder, tree.paths, wish, tree.misplaced)
    classes, y = np.unique(_kept(folder, "class", tree.classes, found), return_inverse=True)
    raw = RawSamples(
        folder, found.x, y, tuple(map(str, classes)), remarks=_remarks(folder, tree, found)
    )
    if tree.test is not None:
        raw = replace(raw, test=np.array(tree.test)[found.kept])
    if tree.clients is None:
        return raw
    owners, owner = np.unique(_kept(folder, "client", tree.clients, found), return_inverse=True)
    return replace(raw, owner=owner, owner_names=tuple(map(str, owners)))


def _kept(folder: Path, what: str, names: Sequence[str], found: Read) -> Array:
    """The names of the images that were read, if none lost all of its own."""
    left = np.array(names)[found.kept]
    if lost := sorted(set(names) - set(left.tolist())):
        raise DataError(
            f"{folder}: none of the images of {what} {lost[0]!r} can be read: mend them, or remove "
            "its folder."
        )
    return left


def _remarks(folder: Path, tree: Tree, found: Read) -> Remarks:
    """What a user should know of how a folder of images was read."""
    said = [*found.said]
    if tree.clients is None:
        said.append(
            f"the images of {folder} lie in folders of classes, so nobody owns them: "
            "federation.partition deals them to clients"
        )
    if tree.test is not None:
        tested = int(np.array(tree.test)[found.kept].sum())
        said.append(
            f"{folder} is sorted into training and test: clients train on "
            f"{len(found.kept) - tested} images and are tested on {tested} others"
        )
    if tree.empty:
        said.append(f"folders without images: {', '.join(tree.empty[:MOST_NAMED])}")
    if tree.others:
        kinds = ", ".join(sorted(tree.others)[:MOST_NAMED])
        said.append(f"files of {folder} that are no images: {tree.others.total()} ({kinds})")
    return Remarks(tuple(said), found.skipped)
