"""A user's own data: one npz, a folder per federation, or a function that builds it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np

from fedskew.data.bounded import check_segments
from fedskew.data.dataset import Dataset, to_dataset, with_problem
from fedskew.data.datasets import DATASETS
from fedskew.data.federation import Federation
from fedskew.data.images.reading import SKIP, Wish
from fedskew.data.images.samples import read_image_folders
from fedskew.data.prepare import Preparation
from fedskew.data.problem import Wanted
from fedskew.data.raw import RawSamples, concatenate
from fedskew.data.shared_format import decided, read_undecided
from fedskew.data.tables.reading import SUFFIXES
from fedskew.data.tables.samples import Asked, read_samples
from fedskew.data.texts import holds_texts, read_text_tree, reader_of
from fedskew.errors import DataError
from fedskew.registry.knobs import Knob, declared_knobs

MANY_ROWS = 20
"""Of so many rows, two should be of one class."""
CLIENT_FILES = (".npz", *SUFFIXES)
"""What files of a user's own data are called."""


def load_own(
    source: str | Path,
    *,
    normalise: str = "standard",
    classes: Sequence[int | Sequence[int]] | None = None,
    image: Mapping[str, int] | None = None,
    task: Wanted = "auto",
    positive: str | None = None,
    columns: Mapping[str, str] | None = None,
    labels: Sequence[str] | None = None,
    partly: bool = False,
    label: Annotated[str, Knob("column of the labels in CSV and Parquet files")] = "label",
    image_size: Annotated[int | None, Knob("side that images are resized to", ge=1)] = None,
    skip: Annotated[
        float, Knob("share of image files that may be unreadable; they are left out", ge=0, lt=1)
    ] = SKIP,
    vocabulary: Annotated[
        int | None,
        Knob("token ids there are: an npz holds such ids, or words are hashed to them", ge=3),
    ] = None,
    length: Annotated[int | None, Knob("words of a text that are read; none: 128", ge=1)] = None,
    signals: Annotated[bool, Knob("samples of an npz are channels by time, no images")] = False,
) -> Dataset:
    """Samples from one npz, a folder with a file per client, or folders of images or texts.

    In folders client/class/file, and of files, each client owns its rows; in class/image nobody
    does. Images may lie inside train/ and test/. ``label`` names the label column of CSV and
    Parquet files (``labels`` several, for a multi-label problem), whose other columns are features,
    as they look or as ``columns`` says (see :mod:`fedskew.data.tables.kinds`). ``partly`` says that
    others hold more tables, so that not all ``columns`` to ignore need be here. ``image_size``
    resizes pictures to a square while they are read, so that they may differ in size, as
    ``image = {"side": 32}`` does; up to a share ``skip`` of them may be unreadable. ``vocabulary``
    and ``length`` say how texts become token ids (:class:`~fedskew.data.tokens.TextReader`),
    whether they stand in files client/class/text.txt or in a column that ``columns`` says is
    "text"; a vocabulary also says that an npz holds such ids, and ``signals`` that it holds time
    series of shape [channels, time]. An npz may say both by itself. ``task`` and
    ``positive`` say what is learned of a sample, where the labels leave it open: see
    :mod:`fedskew.data.problem`. The rest is as for named datasets: see
    :class:`~fedskew.data.prepare.Preparation`.
    """
    preparation = Preparation(normalise, classes, image)
    path = Path(source)
    try:
        wish = Wish(image_size, image=image, skip=skip)
        text = reader_of(vocabulary, length)
        asked = Asked(labels or label, task, positive, columns, partly, text)
        told = Told(vocabulary or 0, signals)
        raw = (
            _read_folder(path, asked, told, wish)
            if path.is_dir()
            else _read_file(path, asked, told)
        )
    except PermissionError as error:
        raise DataError(f"no permission to read {error.filename}.") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from error
    return with_problem(to_dataset(path.stem, raw, preparation), task, positive)


FILE_KNOBS = {n: knob for n, knob in declared_knobs(load_own).items() if knob.knob.text}
"""What federation.options says of a user's own files."""


class Told(NamedTuple):
    """What a user tells of the samples in an npz, beside what it says itself."""

    vocabulary: int
    signals: bool

    def read(self, path: Path) -> RawSamples:
        found = read_undecided(path)
        if self.vocabulary and found.vocabulary not in (0, self.vocabulary):
            raise DataError(
                f"{path} has a vocabulary of {found.vocabulary}, not {self.vocabulary}: leave "
                "federation.options.vocabulary out."
            )
        return replace(
            found,
            vocabulary=self.vocabulary or found.vocabulary,
            signals=self.signals or found.signals,
        )


def _read_file(path: Path, asked: Asked, told: Told) -> RawSamples:
    if not path.exists():
        raise DataError(f"{path} does not exist.")
    if path.suffix.lower() in SUFFIXES:
        return read_samples(path, [path], asked)
    return decided(told.read(path), asked.task, asked.positive)


def _read_folder(folder: Path, asked: Asked, told: Told, wish: Wish) -> RawSamples:
    listed = [folder / name for name in sorted(os.listdir(folder)) if not name.startswith(".")]
    files = [path for path in listed if path.suffix.lower() in CLIENT_FILES and path.is_file()]
    if not files and holds_texts(folder):
        if told.signals:
            raise DataError(f"{folder} holds texts, which are no signals: leave signals out.")
        return read_text_tree(folder, asked.text)
    if not files and any(path.is_dir() for path in listed):
        return read_image_folders(folder, wish)
    if not files:
        raise DataError(
            f"{folder} has neither a .npz, .csv or .parquet file per client nor folders of images "
            "or texts."
        )
    kinds = {path.suffix.lower() for path in files}
    if len(kinds) > 1:
        raise DataError(f"{folder} mixes {' and '.join(sorted(kinds))} files; keep to one kind.")
    if kinds <= set(SUFFIXES):
        return read_samples(folder, files, asked)
    parts = [told.read(path) for path in files]
    if any(part.class_names for part in parts):
        parts = _same_classes([decided(part, asked.task, asked.positive) for part in parts])
    whole = decided(concatenate(folder, parts), asked.task, asked.positive)
    return _owned_by_file(whole, files, [len(p.y) for p in parts])


def _owned_by_file(raw: RawSamples, files: Sequence[Path], sizes: Sequence[int]) -> RawSamples:
    owner = np.repeat(np.arange(len(files)), sizes).astype(np.int64)
    return replace(raw, owner=owner, owner_names=tuple(path.stem for path in files))


def _same_classes(parts: Sequence[RawSamples]) -> list[RawSamples]:
    """Clients that only number their classes may each lack the last ones: take the longest list."""
    longest = max((part.class_names for part in parts), key=len)
    return [
        replace(part, class_names=longest)
        if part.class_names == longest[: len(part.class_names)]
        else part
        for part in parts
    ]


def check_learnable(source: str, data: Dataset) -> None:
    """Refuse samples that nothing can be learned from, and classes of one row each."""
    check_segments(source, data.segment)
    if bool((data.x == data.x[0]).all()):
        raise DataError(f"{source}: all samples are the same; nothing can be learned from them.")
    names, rows = data.class_names, len(data.y)
    if rows > MANY_ROWS and len(names) == rows:
        raise DataError(
            f"{source}: all {rows} labels differ, so they are no classes: name the right column "
            "with --label or federation.label."
        )


def load_function(target: str, **knobs: Any) -> Federation:
    """The federation that a user's ``module:function`` returns when called with these knobs."""
    entry = DATASETS.find(target)
    made = entry.make(**knobs)
    if not isinstance(made, Federation):
        hint = " Hand it to fedskew.federation_from." if isinstance(made, Mapping) else ""
        raise DataError(
            f"{entry.title} returned {type(made).__name__}, not a fedskew Federation.{hint} "
            f"{entry.contract}"
        )
    return made
