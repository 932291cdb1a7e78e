"""Answers for samples as a table: labels or numbers, how sure they are, and what was carried."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedskew.data.tables.reading import SUFFIXES
from fedskew.deploy.answers import HALF, confidence_of
from fedskew.deploy.samples import SAMPLE, known
from fedskew.deploy.threshold import Threshold
from fedskew.deploy.unlike import named
from fedskew.errors import ConfigError, DataError
from fedskew.federate.confidence import Answered, answered
from fedskew.problem import CLASSIFICATION, Problem
from fedskew.store import write_atomically, write_csv
from fedskew.types import Indices

SHOWN = 10
"""How many samples are printed; a file has all."""
ASK = "ask for a label"
GIVEN = " (given)"
"""Marks a column that was carried along and is called like one of ours."""


@dataclass(frozen=True, eq=False)
class Prediction:
    """What a model says of every sample, and whether it is sure enough.

    ``answers`` are the probabilities [N, classes or labels], or numbers [N] in the target's units.
    ``truth`` are the true answers, if known (-1 or NaN where one is not). One should ask for labels
    of samples whose probability is below the ``threshold``; ``chosen`` says how it was found,
    unless it was given. ``ids`` name the samples, ``carried`` are columns that no model reads, and
    ``unlike`` are, by sample, the columns whose value lies beyond those of training rows.
    """

    answers: NDArray[Any]
    threshold: float
    class_names: tuple[str, ...]
    truth: NDArray[Any] | None = None
    chosen: Threshold | None = None
    problem: Problem = CLASSIFICATION
    ids: Sequence[str] = ()
    id_name: str = SAMPLE
    carried: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    unlike: Sequence[tuple[str, ...]] = ()
    proba: bool = False
    kept: str = ""
    """Which model of a client answered, where it could choose."""

    def __len__(self) -> int:
        return len(self.answers)

    @property
    def is_number(self) -> bool:
        return self.problem.kind == "regression"

    @property
    def label(self) -> Indices:
        """The likeliest class of every sample, by its number."""
        if not self.problem.classifies:
            raise DataError(f"the answers are no classes: the run is for {self.problem.kind}.")
        found: Indices = self.answers.argmax(axis=1).astype(np.int64)
        return found

    @property
    def probability(self) -> NDArray[np.float32]:
        """How probable every answer is; NaN of a number."""
        return confidence_of(self.problem, self.answers)

    @property
    def ask(self) -> NDArray[np.bool_]:
        # In double precision, as thresholds are chosen.
        return self.probability.astype(np.float64) < self.threshold

    @property
    def names(self) -> list[str]:
        """The answers in words."""
        if self.is_number:
            return [f"{value:.6g}" for value in self.answers]
        if self.problem.kind == "multi-label":
            return [self._labels(row >= HALF) for row in self.answers]
        return [self.class_names[label] for label in self.label]

    def _labels(self, given: NDArray[np.bool_]) -> str:
        return "+".join(n for n, has in zip(self.class_names, given, strict=True) if has)

    @property
    def coverage(self) -> float:
        """The share of samples that is answered."""
        return float((~self.ask).mean())

    @property
    def right(self) -> NDArray[np.bool_] | None:
        """Of the samples whose truth is known, which are answered rightly, asked for or not."""
        if self.truth is None or self.is_number:
            return None
        told = known(self.truth)
        if self.problem.classifies:
            found: NDArray[np.bool_] = self.label[told] == self.truth[told]
        else:
            found = ((self.answers[told] >= HALF) == (self.truth[told] > HALF)).all(axis=1)
        return found

    @property
    def accuracy(self) -> float | None:
        """How often the labels are right, asked for or not; None if the truth is unknown."""
        return None if self.right is None else float(self.right.mean())

    @property
    def answered(self) -> Answered | None:
        """Coverage and accuracy of the samples that are answered."""
        if self.right is None or self.truth is None:
            return None
        return answered(self.probability[known(self.truth)], self.right, self.threshold)

    @property
    def errors(self) -> tuple[float, float] | None:
        """Root mean square and mean absolute error of numbers, if the truth is known."""
        if not self.is_number or self.truth is None:
            return None
        told = known(self.truth)
        off = self.answers[told].astype(np.float64) - self.truth[told]
        return float(np.sqrt(np.square(off).mean())), float(np.abs(off).mean())

    def table(self, most: int | None = None) -> list[tuple[str, ...]]:
        """A header and one line per sample."""
        columns = self._columns(len(self) if most is None else most)
        return [tuple(columns), *zip(*columns.values(), strict=True)]

    def _columns(self, most: int) -> dict[str, list[str]]:
        rows = range(min(most, len(self)))
        names, asks, probability = self.names[:most], self.ask, self.probability
        ours: dict[str, list[str]] = {"value" if self.is_number else "label": list(names)}
        if not self.is_number:
            ours["probability"] = [f"{probability[row]:.4f}" for row in rows]
            ours["answer"] = [ASK if asks[row] else "sure" for row in rows]
        if self.truth is not None:
            ours["truth"] = [self._truth(row) for row in rows]
        if self.unlike:
            ours["unlike training"] = [named(self.unlike[row]) for row in rows]
        if self.proba and not self.is_number:
            for place, name in enumerate(self.class_names):
                ours[f"p({name})"] = [f"{self.answers[row, place]:.6f}" for row in rows]
        ids = list(self.ids[:most]) or [str(row) for row in rows]
        carried = {
            f"{name}{GIVEN}" if name in ours or name == self.id_name else name: [
                str(cell) for cell in cells[:most]
            ]
            for name, cells in self.carried.items()
        }
        first = f"{self.id_name}{GIVEN}" if self.id_name in ours else self.id_name
        return {first: ids, **carried, **ours}

    def _truth(self, row: int) -> str:
        assert self.truth is not None
        if not known(self.truth)[row]:
            return ""
        if self.is_number:
            return f"{self.truth[row]:.6g}"
        if self.problem.classifies:
            return self.class_names[int(self.truth[row])]
        return self._labels(self.truth[row] > HALF)

    def save(self, path: Path) -> None:
        """Write all lines as CSV, or as Parquet if the file is called so."""
        if path.suffix.lower() != ".parquet":
            write_csv(path, self.table())
            return
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError as error:
            raise ConfigError(
                f"{path}: writing Parquet needs pyarrow: pip install 'fedskew[parquet]'."
            ) from error
        sink = pyarrow.BufferOutputStream()
        pyarrow.parquet.write_table(pyarrow.table(self._columns(len(self))), sink)
        write_atomically(path, sink.getvalue().to_pybytes())

    def __str__(self) -> str:
        lines = self.table(SHOWN)
        widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
        text = [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in lines
        ]
        if len(self) > SHOWN:
            text.append(f"... and {len(self) - SHOWN} more")
        return "\n".join([*text, "", *self._summary()])

    def _summary(self) -> list[str]:
        text = [f"model:     {self.kept}"] if self.kept else []
        if not self.is_number:
            asked = int(self.ask.sum())
            text += [
                f"threshold: {self.chosen or f'{self.threshold:g}, as given'}",
                f"coverage:  {self.coverage:.1%} answered, {asked} of {len(self)} to ask",
            ]
        if self.answered is not None:
            sure = self.answered.accuracy
            among = f", {sure:.3f} of those answered" if self.answered.samples else ""
            text.append(f"accuracy:  {self.accuracy:.3f} of all{among}")
        if self.errors is not None:
            text.append(f"error:     {self.errors[0]:.6g} (RMSE), {self.errors[1]:.6g} (MAE)")
        odd = [row for row in self.unlike if row]
        if odd:
            columns = sorted({name for row in odd for name in row})
            text.append(
                f"unlike:    {len(odd)} of {len(self)} hold what no training row held, in "
                f"{named(columns)}"
            )
        return text


def check_out(path: Path) -> None:
    """Refuse a file for answers that is something else, before anything is computed."""
    if path.is_dir():
        raise ConfigError(f"{path} is a folder: name a file for the answers, like answers.csv.")
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"{path}: answers are written as .csv or .parquet: name such a file.")
