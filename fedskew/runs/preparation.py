"""How a run's data were prepared, so that new samples can be prepared in the same way.

New samples come in the shape and scale in which the dataset is stored. A run's models take
numbers that were shifted and scaled by statistics of the run's own training data, which cannot be
estimated from a few new samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import TypeAdapter
from torch import Tensor

from fedskew.config import Config
from fedskew.data.features import Range
from fedskew.data.federation import Federation
from fedskew.data.formats import Array
from fedskew.data.label_cells import alike, target_of, word_of, yes_or_no
from fedskew.data.own_scale import OwnScale
from fedskew.data.prepare import as_floats
from fedskew.data.raw import check_values
from fedskew.data.tables.encoder import TableEncoder
from fedskew.data.tables.reading import Table
from fedskew.data.tokens import TextReader, check_tokens
from fedskew.errors import DataError, RunError
from fedskew.problem import CLASSIFICATION, Problem
from fedskew.runs.identity import spelled_out
from fedskew.runs.summary import checked
from fedskew.store import read_json, write_json
from fedskew.types import Indices

FILE = "preparation.json"
FEWEST_TO_SCALE = 10
"""Fewer rows do not tell a client's own scale; docs/how-to/tables.md has figures."""
SLACK = 0.5
"""Pixels may lie outside the run's range by this share of it before they are refused."""


@dataclass(frozen=True)
class SamplePreparation:
    """From samples as stored to samples as a run's models take them.

    ``taken`` is the shape after ``image`` was applied (see ``federation.image``), ``shape`` that
    of the run's samples. Of every channel or feature ``shift`` is subtracted, and what is left
    divided by ``spread``. ``numbers`` are the numbers the files have for the classes (a list for
    several that are one here), ``span`` the smallest and largest value of the run's images before
    scaling (None for features). Rows of a table go through ``encoder`` instead.

    Where clients scale by themselves (``federation.normalise = "client"``), ``scale_by`` is that of
    all seen clients together. Where a run chose or scaled features (``federation.features``),
    ``kept`` are their places and ``low`` and ``high`` the range that becomes 0..1, of all seen
    clients together. Both are another's if the samples are those of one of the ``clients``, or of
    a new one (see ``of_client``, ``of_new``).

    With a ``vocabulary`` samples are token ids, which ``text`` makes of texts where a run did.
    """

    scale: str
    class_names: tuple[str, ...]
    numbers: tuple[int | list[int], ...]
    shape: tuple[int, ...]
    taken: tuple[int, ...]
    image: dict[str, int] | None = None
    shift: tuple[float, ...] = (0.0,)
    spread: tuple[float, ...] = (1.0,)
    span: tuple[float, float] | None = None
    kept: tuple[int, ...] = ()
    scaled_by: str | None = None
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    clients: dict[str, Any] = field(default_factory=dict)
    problem: Problem = CLASSIFICATION
    encoder: TableEncoder | None = None
    scale_by: OwnScale | None = None
    own_scales: dict[str, OwnScale] = field(default_factory=dict)
    vocabulary: int = 0
    text: TextReader | None = None

    def samples(self, x: Array | Table, origin: Path | str = "the samples") -> Tensor:
        """Samples as the run's models take them: float32, channels first, scaled."""
        made = self._before_ranges(x, origin)
        if self.scaled_by is None:
            return made
        return Range(torch.tensor(self.low), torch.tensor(self.high)).scaled(made)

    def _before_ranges(self, x: Array | Table, origin: Path | str) -> Tensor:
        made = self._on_own_scale(self._before_scales(x, origin))
        if self.kept:
            made = made[:, list(self.kept)]
        # In a run whose clients have coloured images, grey images are grey in three channels.
        return made.expand(-1, *self.shape).contiguous()

    def _on_own_scale(self, made: Tensor) -> Tensor:
        return made if self.scale_by is None else self.scale_by.scaled(made)

    def _before_scales(self, x: Array | Table, origin: Path | str) -> Tensor:
        """Samples on the scale that all clients share."""
        if isinstance(x, Table):
            if self.encoder is None:
                raise DataError(f"{origin} is a table, but the run was not made of one.")
            return torch.from_numpy(self.encoder.encode(x))
        if self.encoder is not None and not self.encoder.plain:
            raise DataError(
                f"{origin}: the run takes the columns of a table, which have names: give a CSV or "
                "Parquet file, or a data frame."
            )
        if self.vocabulary:
            return self._tokens(x, origin)
        check_values(origin, x)
        if len(self.taken) == 2:  # signals are as they are
            made = np.ascontiguousarray(x, dtype=np.float32)
        else:
            made = as_floats(origin, x, self.image if x.ndim > 2 else None)
        fitting = {self.taken, self.shape} if len(self.shape) == 3 else {self.taken}
        if tuple(made.shape[1:]) not in fitting:
            raise DataError(
                f"{origin}: a sample has shape {list(made.shape[1:])}, but the run takes "
                f"{list(self.taken)}."
            )
        self._check_span(origin, made)
        places = (-1,) + (1,) * (made.ndim - 2)
        # Not in place: it may be the caller's own array.
        made = made - np.array(self.shift, np.float32).reshape(places)
        made /= np.array(self.spread, np.float32).reshape(places)
        return torch.from_numpy(made)

    def _tokens(self, x: Array, origin: Path | str) -> Tensor:
        """Token ids, or those of texts, filled up or cut like those of the run."""
        if self.text is not None and x.dtype.kind in "UO":
            x = self.text.tokens([str(text) for text in x.reshape(-1)])
        check_tokens(origin, x, self.vocabulary)
        made = np.zeros((len(x), *self.taken), dtype=np.int64)
        made[:, : x.shape[1]] = x[:, : self.taken[0]]
        return torch.from_numpy(made)

    def of_client(self, client: str) -> SamplePreparation:
        """The same preparation for the samples of a client that took part."""
        made = self
        if self.scale_by is not None and client in self.own_scales:
            made = replace(made, scale_by=self.own_scales[client], own_scales={})
        if self.scaled_by is not None and client in self.clients:
            low, high = self.clients[client]
            made = replace(made, low=tuple(low), high=tuple(high), clients={})
        return made

    def of_new(self, x: Array | Table, origin: Path | str = "the samples") -> SamplePreparation:
        """The same preparation for a client that has only these samples: they set its scale."""
        made = self._scaled_by(x, origin)
        if self.scaled_by is None:
            return made
        low, high = Range.of(made._before_ranges(x, origin), self.scaled_by).ends
        return replace(made, low=low, high=high, clients={})

    def settled(self, x: Array | Table, origin: Path | str = "the samples") -> SamplePreparation:
        """The same preparation where it is open whose samples these are: they set their scale."""
        return self._scaled_by(x, origin) if self.own_scales else self

    def _scaled_by(self, x: Array | Table, origin: Path | str) -> SamplePreparation:
        if self.scale_by is None:
            return self
        before = self._before_scales(x, origin)
        if len(before) < FEWEST_TO_SCALE:
            raise DataError(
                f"{origin} has {len(before)} rows, but clients of this run scale samples by their "
                f"own (federation.normalise = 'client'): give {FEWEST_TO_SCALE} rows of one client "
                "at once, better 40; or adapt the run once, and use what that makes."
            )
        scale = OwnScale.of(before, [np.arange(len(before))], self.encoder)
        return replace(self, scale_by=scale, own_scales={})

    def _check_span(self, origin: Path | str, made: Array) -> None:
        """Refuse pixels of 0..255 where 0..1 are expected: they would be answered wrongly."""
        if self.span is None:
            return
        low, high = self.span
        slack = SLACK * (high - low)
        least, most = float(made.min()), float(made.max())
        if least < low - slack or most > high + slack:
            raise DataError(
                f"{origin}: pixels span {least:g} to {most:g}, but those of the run {low:g} to "
                f"{high:g}: store bytes of 0..255, or numbers on that scale."
            )

    def truths(self, y: Sequence[Any] | Array, origin: Path | str = "the samples") -> Array:
        """True answers as models are scored by: class numbers, targets in their units, or 0 and 1
        for each label.
        """
        if self.problem.classifies:
            return self.labels(y, origin)
        given = np.asarray(y)
        if self.problem.kind == "regression":
            cells = [word_of(origin, "label", row, cell) for row, cell in enumerate(given.tolist())]
            targets = [target_of(origin, "label", row, cell) for row, cell in enumerate(cells)]
            return np.array(targets, np.float64)
        if given.ndim != 2 or given.shape[1] != len(self.class_names):
            raise DataError(
                f"{origin}: labels must have a column for each of {', '.join(self.class_names)}."
            )
        found = [
            [
                yes_or_no(origin, name, row, cell)
                for row, cell in enumerate(given[:, place].tolist())
            ]
            for place, name in enumerate(self.class_names)
        ]
        return np.array(found, np.float64).T

    def labels(self, y: Sequence[Any] | Array, origin: Path | str = "the samples") -> Indices:
        """The run's number of each class, given its name, or its number in the dataset's files."""
        given = np.asarray(y)
        if given.ndim != 1:
            raise DataError(f"{origin}: labels must be a list, not of shape {list(given.shape)}.")
        if given.dtype.kind in "UO":
            spelled = {alike(name): name for name in self.class_names}
            words = [str(label) for label in given]
            words = [w if w in self.class_names else spelled.get(alike(w), w) for w in words]
            return self._placed(origin, words, self.class_names)
        if given.dtype.kind not in "bui":
            raise DataError(f"{origin}: labels must be whole numbers or names, not {given.dtype}.")
        return self._placed(origin, [int(label) for label in given], self.numbers)

    def _placed(self, origin: Path | str, given: Sequence[Any], known: Sequence[Any]) -> Indices:
        groups = [one if isinstance(one, list) else [one] for one in known]
        place = {label: number for number, group in enumerate(groups) for label in group}
        for row, label in enumerate(given):
            if label not in place:
                listed = ", ".join(str(each) for each in known)
                raise DataError(
                    f"{origin}: label {label!r} of sample {row} is none of the run's classes: "
                    f"{listed}."
                )
        return np.array([place[label] for label in given], dtype=np.int64)

    def save(self, folder: Path) -> None:
        write_json(folder / FILE, asdict(self))


def load_preparation(folder: Path) -> SamplePreparation:
    """The preparation that was saved in a folder."""
    path = folder / FILE
    made = checked(path, read_json(path), TypeAdapter(SamplePreparation), "how to prepare samples")
    figures = (*made.shift, *made.spread, *made.low, *made.high, *(made.span or ()))
    fits = {len(made.shift), len(made.spread)} <= {1, made.taken[0] if made.taken else 1}
    if not fits or not np.isfinite(figures).all() or 0 in made.spread:
        raise RunError(f"{path} is damaged: its figures do not fit the samples.")
    if made.encoder is not None and any(column.spread == 0 for column in made.encoder.columns):
        raise RunError(f"{path} is damaged: it divides a column by 0.")
    return made


def described(config: Config, federation: Federation) -> SamplePreparation:
    """The preparation that made a federation's samples, of samples as its dataset stores them."""
    section = spelled_out(config.federation)
    names, shape = federation.class_names, federation.sample_shape
    stored = federation.stored
    if stored is None or ":" in section.dataset:
        numbers = tuple(range(len(names)))
        return SamplePreparation(
            "own", names, numbers, shape, taken=shape, problem=federation.problem,
            encoder=federation.encoder, vocabulary=federation.vocabulary, text=federation.text,
            **_by_clients(config, federation),
        )  # fmt: skip
    return SamplePreparation(
        scale=section.normalise,
        class_names=names,
        numbers=tuple(section.classes or range(len(names))),
        shape=shape,
        taken=stored.taken,
        image=section.image,
        shift=stored.shift,
        spread=stored.spread,
        span=stored.span,
        kept=federation.features,
        problem=federation.problem,
        encoder=federation.encoder,
        vocabulary=federation.vocabulary,
        text=federation.text,
        **_by_clients(config, federation),
    )


def _by_clients(config: Config, federation: Federation) -> dict[str, Any]:
    """What clients scaled by themselves: each one's figures, and those of all seen ones."""
    found: dict[str, Any] = {}
    if federation.scales:
        found = {"scale_by": federation.scales[""], "own_scales": _named(federation.scales)}
    if federation.ranges:
        low, high = federation.ranges[""]
        found |= {
            "scaled_by": (config.federation.features or {})["scale"],
            "low": low,
            "high": high,
            "clients": _named(federation.ranges),
        }
    return found


def _named(figures: Mapping[str, Any]) -> dict[str, Any]:
    return {name: each for name, each in figures.items() if name}
