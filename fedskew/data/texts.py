"""Texts in files: a tree client/class/text.txt, or the files of a newcomer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedskew.data.formats import read_text
from fedskew.data.images.one import IMAGE_SUFFIXES
from fedskew.data.raw import RawSamples
from fedskew.data.tokens import TEXTS, TextReader
from fedskew.errors import DataError

SUFFIX = ".txt"


def reader_of(vocabulary: int | None, length: int | None) -> TextReader:
    """The usual way to read texts, with another vocabulary or length."""
    return replace(TEXTS, vocabulary=vocabulary or TEXTS.vocabulary, length=length or TEXTS.length)


def holds_texts(folder: Path) -> bool:
    """Whether a folder's trees client/class hold texts and no images."""
    suffixes = {path.suffix.lower() for path in folder.glob("*/*/*")}
    return SUFFIX in suffixes and not suffixes & IMAGE_SUFFIXES


def texts_in(paths: Sequence[Path], reader: TextReader) -> np.ndarray:
    """The token ids of text files."""
    return reader.tokens([read_text(path) for path in paths])


def read_text_tree(folder: Path, reader: TextReader) -> RawSamples:
    """A tree client/class/text.txt in sorted order; the text is the whole file."""
    paths = sorted(path for path in folder.glob("*/*/*") if path.suffix.lower() == SUFFIX)
    names = [path.parent.parent.name for path in paths]
    for group in sorted(p for p in folder.iterdir() if p.is_dir() and p.name[0] != "."):
        if group.name not in names:
            raise DataError(f"{group} has no texts in class folders ({group.name}/class/text.txt).")
    owners, owner = np.unique(names, return_inverse=True)
    classes, y = np.unique([path.parent.name for path in paths], return_inverse=True)
    return RawSamples(
        folder, texts_in(paths, reader), y, tuple(map(str, classes)), owner=owner,
        owner_names=tuple(map(str, owners)), vocabulary=reader.vocabulary, text=reader,
    )  # fmt: skip
