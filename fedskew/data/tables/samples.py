"""From tables to samples: labels and owners are told apart from the columns to learn from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np

from fedskew.data.formats import Array
from fedskew.data.label_cells import is_number, word_of
from fedskew.data.problem import Wanted, labels_of, many_labels_of
from fedskew.data.raw import RawSamples
from fedskew.data.tables.cells import coded
from fedskew.data.tables.kinds import KINDS, recognised
from fedskew.data.tables.reading import Table, joined, read_table, table_of
from fedskew.data.tokens import TEXTS, TextReader
from fedskew.errors import ConfigError, DataError, unknown

IGNORED = "as you say"
MOST_NAMED = 16
"""So many columns are named where the label is not found: the first, and the last."""
NO_LABEL = frozenset({"na", "n/a", "#n/a", "nan", "null", "?", "<na>"})
"""What is no label; '-' may be one, beside '+'."""


@dataclass(frozen=True)
class Asked:
    """What a user says of tables: the columns of labels, what is learned, what columns are."""

    label: str | Sequence[str] = "label"
    task: Wanted = "auto"
    positive: str | None = None
    columns: Mapping[str, str] | None = None
    partly: bool = False
    """Whether these are some of the tables only: columns to ignore may be in others."""
    text: TextReader = TEXTS

    @property
    def labels(self) -> tuple[str, ...]:
        return (self.label,) if isinstance(self.label, str) else tuple(self.label)

    @property
    def client(self) -> str | None:
        """The column that says whose a row is."""
        named = [name for name, kind in (self.columns or {}).items() if kind == "client"]
        if len(named) > 1:
            raise ConfigError(
                f"federation.columns names two columns of clients, {named[0]!r} and {named[1]!r}: "
                "keep to one."
            )
        return named[0] if named else None

    def text_in(self, table: Table) -> TextReader | None:
        """How the column of texts is read, if there is one; then it is all that is learned from."""
        kinds = dict(self.columns or {})
        texts = [name for name, kind in kinds.items() if kind == "text"]
        if not texts:
            return None
        others = [
            name for name in table.columns if name != texts[0] and kinds.get(name) != "client"
        ]
        if others:
            raise DataError(
                f"{table.origin}: a column of texts must be the only one to learn from: keep "
                f"{texts[0]!r}, and ignore {', '.join(map(repr, others))} in federation.columns."
            )
        return replace(self.text, column=texts[0])


def words_in(cells: Array) -> list[str]:
    """Texts in a column; where there is none it is empty."""
    return ["" if cell is None or cell != cell else str(cell) for cell in cells.tolist()]


def read_samples(origin: Path, files: Sequence[Path], asked: Asked) -> RawSamples:
    """The samples of a file, or of files below one another, each of which is a client."""
    tables = [read_table(path) for path in files]
    if len(files) == 1 and origin == files[0]:
        return samples_of(origin, tables, asked)
    if asked.client is not None:
        raise ConfigError(
            f"federation.columns names {asked.client!r} as the column of clients, but in a folder "
            f"each file is a client: leave it out, or join the files of {origin}."
        )
    return _owned(samples_of(origin, tables, asked), tables, [path.stem for path in files])


def samples_of_frames(frames: Mapping[str, Any], asked: Asked) -> RawSamples:
    """The samples of clients' tables that are in memory, by client.

    A table is a data frame of pandas or polars, or a mapping of names to columns: arrays or lists,
    in which None and NaN stand for what is missing. Each client owns its rows.

    >>> ann, bob = {"age": [30, None], "label": ["a", "b"]}, {"label": ["b"], "age": [50]}
    >>> made = samples_of_frames({"ann": ann, "bob": bob}, Asked())
    >>> made.owner.tolist(), made.owner_names, [column.name for column in made.table.used]
    ([0, 0, 1], ('ann', 'bob'), ['age'])
    """
    if not frames:
        raise DataError("there is no client's table: give at least one, by the client's name.")
    if asked.client is not None:
        raise ConfigError(
            f"columns names {asked.client!r} as the column of clients, but each table is a "
            "client: leave it out, or give one table."
        )
    tables = [table_of(f"the table of client {name!r}", frame) for name, frame in frames.items()]
    return _owned(samples_of("the clients' tables", tables, asked), tables, list(frames))


def _owned(made: RawSamples, tables: Sequence[Table], names: Sequence[str]) -> RawSamples:
    owner = np.repeat(np.arange(len(tables)), [table.rows for table in tables]).astype(np.int64)
    return replace(made, owner=owner, owner_names=tuple(names))


def samples_of(origin: Path | str, tables: Sequence[Table], asked: Asked) -> RawSamples:
    """Samples and labels of tables with the same columns."""
    if len(asked.labels) > 1:
        _check_many(asked)
    tables, ignored = _without_ignored(tables, asked)
    for table in tables:
        _check(table, asked)
    for name in asked.labels:
        if name in (asked.columns or {}):
            raise ConfigError(
                f"federation.columns names {name!r}, which is the label: leave it out."
            )
    words = {
        name: [word for table in tables for word in _words(table, name)] for name in asked.labels
    }
    whole = joined(origin, tables)
    if len(words) == 1:
        ((name, only),) = words.items()
        problem, y, class_names = labels_of(whole.places, only, asked.task, asked.positive, name)
    else:
        problem, y, class_names = many_labels_of(whole.places, words)
    table = whole.without(asked.labels)
    owner, names = _owners(table, asked.client)
    if (text := asked.text_in(table)) is not None:
        return RawSamples(
            origin, text.tokens(words_in(table.columns[text.column])), y, class_names, owner=owner,
            owner_names=names, problem=problem, label=asked.labels, vocabulary=text.vocabulary,
            text=text,
        )  # fmt: skip
    told = {name: kind for name, kind in (asked.columns or {}).items() if kind != "ignore"}
    columns = recognised(table, told)
    columns = replace(columns, ignored={**ignored, **columns.ignored})
    for column in columns.used:
        column.fits(np.arange(table.rows))  # what is most likely a mistake is told at once
    return RawSamples(
        origin, columns.numbers, y, class_names, owner=owner, owner_names=names, problem=problem,
        table=columns, label=asked.labels,
    )  # fmt: skip


def _without_ignored(tables: Sequence[Table], asked: Asked) -> tuple[list[Table], dict[str, str]]:
    """Tables without the columns that the user wants left out, which not all of them need have."""
    names = {name: None for table in tables for name in table.columns}
    told = asked.columns or {}
    for name, kind in told.items():
        if kind not in KINDS:
            raise unknown("kind of column", kind, KINDS)
        if name not in names and not (asked.partly and kind == "ignore"):
            raise unknown("column in federation.columns", name, names)
    gone = [name for name, kind in told.items() if kind == "ignore"]
    return [table.without(gone) for table in tables], dict.fromkeys(gone, IGNORED)


def _check(table: Table, asked: Asked) -> None:
    for name in asked.labels:
        if name not in table.columns:
            near = get_close_matches(name, table.columns, n=1, cutoff=0.5)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            if all(map(is_number, table.columns)):
                hint = " Its first row holds numbers: does it lack a header with names?"
            listed = list(table.columns)
            if len(listed) > MOST_NAMED:
                listed = [*listed[: MOST_NAMED - 5], "…", *listed[-4:]]
            raise DataError(
                f"{table.origin} has no label column {name!r}; its columns: "
                f"{', '.join(listed)}. Name one with --label or federation.label.{hint}"
            )
    if not table.rows:
        raise DataError(f"{table.origin} has no rows: a client needs at least one sample.")
    if len(table.columns) == len(asked.labels):
        raise DataError(
            f"{table.origin} has no column besides the label {', '.join(map(repr, asked.labels))}."
        )


def _words(table: Table, label: str) -> list[str]:
    words = [
        word_of(table.origin, label, row, cell)
        for row, cell in enumerate(table.columns[label].tolist())
    ]
    for word in set(words):
        if word.lower() in NO_LABEL:
            row = words.index(word)
            raise DataError(
                f"{table.places.at(row)} has no label in column {label!r}, only {word!r}: leave "
                "the row out."
            )
    return words


def _check_many(asked: Asked) -> None:
    if len(set(asked.labels)) < len(asked.labels):
        raise ConfigError("federation.label names a column twice.")
    if asked.task not in ("auto", "multi-label"):
        raise ConfigError(
            f"federation.label names {len(asked.labels)} columns, which is 'multi-label' and not "
            f"federation.task = {asked.task!r}: name one column."
        )
    if asked.positive is not None:
        raise ConfigError("federation.positive is for one label of two classes: leave it out.")


def _owners(table: Table, client: str | None) -> tuple[np.ndarray | None, tuple[str, ...]]:
    """The owner of each row by a column's words, in the order of names."""
    if client is None:
        return None, ()
    index, words = coded(table.columns[client])
    if (index < 0).any():
        row = int((index < 0).argmax())
        raise DataError(f"{table.places.at(row)} names no client in column {client!r}.")
    names = tuple(sorted(words))
    place = np.array([names.index(word) for word in words])
    return place[index], names
