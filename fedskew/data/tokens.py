"""Texts as samples: words become whole numbers below a vocabulary, 0 fills up the end."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedskew.data.formats import Array
from fedskew.errors import DataError
from fedskew.types import Indices

PADDING = 0
FEWEST = 3
"""The smallest vocabulary: padding, and two words."""
MOST_TOKENS = 2**24
_WORD = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True)
class TextReader:
    """How texts become token ids: all that is needed to read new ones in the same way.

    A word is a run of letters, digits and underscores, in lower case; any other mark stands by
    itself. Its id is 1 + crc32(word in UTF-8) mod (vocabulary - 1), so that nobody has to know
    the words of anybody else: some share an id. A text is cut after ``length`` words, or filled
    up with 0. ``column`` is that of the texts, where they stand in a table.

    >>> TextReader(100, 4).tokens(["A pull: a pull."]).tolist()
    [[46, 34, 56, 46]]
    """

    vocabulary: int
    length: int
    column: str = ""

    def tokens(self, texts: Sequence[str]) -> Indices:
        """The ids [texts, length]; a text without a word reads as the empty word."""
        found = np.zeros((len(texts), self.length), dtype=np.int64)
        known: dict[str, int] = {}
        for row, text in enumerate(texts):
            words = _WORD.findall(text.lower())[: self.length] or [""]
            for word in words:
                if word not in known:
                    known[word] = 1 + zlib.crc32(word.encode()) % (self.vocabulary - 1)
            found[row, : len(words)] = [known[word] for word in words]
        return found

    def to_plain(self) -> dict[str, Any]:
        """As JSON holds it."""
        return asdict(self)


TEXTS = TextReader(4096, 128)
"""How texts are read unless a user says otherwise."""


def check_tokens(origin: Path | str, x: Array, vocabulary: int) -> None:
    """Refuse what are no ids below a vocabulary, saying which and where."""
    if not FEWEST <= vocabulary <= MOST_TOKENS:
        raise DataError(
            f"{origin}: the vocabulary must be from {FEWEST} to {MOST_TOKENS}, not {vocabulary}."
        )
    if x.dtype.kind not in "ui" or x.ndim != 2:
        raise DataError(
            f"{origin}: token ids must be whole numbers of shape [samples, length], not {x.dtype} "
            f"of shape {list(x.shape)}."
        )
    bad = ((x < 0) | (x >= vocabulary)).any(axis=1)
    if bad.any():
        row = int(bad.argmax())
        wrong = x[row][(x[row] < 0) | (x[row] >= vocabulary)][0]
        raise DataError(
            f"{origin}: sample {row} holds the token id {wrong}, which is outside "
            f"0..{vocabulary - 1}."
        )
    empty = (x == PADDING).all(axis=1)
    if empty.any():
        raise DataError(f"{origin}: sample {int(empty.argmax())} is nothing but padding (0).")
