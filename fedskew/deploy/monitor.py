"""Whether new samples are like those a model was trained on, and its answers as they usually are.

Each column of inputs, and the answers, are compared in counts: Pearson's two-sample test on the
bins that the run kept (:mod:`fedskew.data.profile`). A test on bins serves numbers, words and
missing values alike, and needs no row of the training data, as the test of Kolmogorov and Smirnov
would. All p-values are corrected together (Holm). Training clients differ as well: what lies no
further from all of them together than one of them did is told, but is no alarm.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedskew.comparisons.statistics import holm
from fedskew.data.profile import Counted, Counts, columns_by_name, distance
from fedskew.data.tables.kinds import Column
from fedskew.deploy.answers import ANSWER, RIGHT, answer_columns, confidence_of, truth_columns
from fedskew.deploy.model import Deployed, open_model
from fedskew.deploy.predict import chosen_threshold
from fedskew.deploy.samples import Samples, Stored, known, prepared, read_samples
from fedskew.deploy.threshold import Threshold
from fedskew.deploy.two_samples import two_samples
from fedskew.deploy.unlike import input_columns, unlike
from fedskew.errors import FedskewError, RunError
from fedskew.federate.confidence import ACCURACY, check_share
from fedskew.runs.experiment import Run
from fedskew.store import write_json

ALPHA = 0.01
"""An alarm without a change comes with at most this probability."""
FEWEST = 20
"""Of fewer rows nothing can be said."""
NOTHING, CHANGED, CANNOT_TELL = 0, 4, 5
"""What the command's exit code says."""
INPUT, UNSURE = "input", "unsure"
NAMES = {ANSWER: "shares of answers", UNSURE: "unsure answers", RIGHT: "right answers"}


@dataclass(frozen=True)
class Compared:
    """One column of inputs or answers, now and before.

    ``p`` is the test's and ``adjusted`` the same among all others; NaN where there are too few
    rows. ``distance`` is how far the new rows lie from the old ones, ``apart`` how far the most
    unusual training client did. ``most`` is the bin that moved most, with its shares before and
    now.
    """

    kind: str
    name: str
    p: float
    adjusted: float
    distance: float
    apart: float
    most: tuple[str, float, float]
    alpha: float

    @property
    def differs(self) -> bool:
        """Whether chance hardly explains it."""
        return self.adjusted < self.alpha

    @property
    def changed(self) -> bool:
        """Whether training clients do not explain it either."""
        return self.differs and self.distance > self.apart

    def __str__(self) -> str:
        bin_, before, now = self.most
        return f"{self.name}: {bin_}: {now:.0%}, was {before:.0%} (p {_small(self.adjusted)})"


@dataclass(frozen=True)
class MonitorReport:
    """What was compared, in plain words and as values."""

    source: str
    rows: int
    compared: tuple[Compared, ...]
    beyond: int
    notes: tuple[str, ...] = ()

    @property
    def changed(self) -> tuple[Compared, ...]:
        return tuple(each for each in self.compared if each.changed)

    @property
    def code(self) -> int:
        """0: nothing found, 4: something changed, 5: too few rows to tell."""
        if not any(math.isfinite(each.p) for each in self.compared):
            return CANNOT_TELL
        return CHANGED if self.changed else NOTHING

    @property
    def verdict(self) -> str:
        if self.code == CANNOT_TELL:
            return f"cannot tell: {self.rows} rows are too few, at least {FEWEST} are needed"
        if self.code == NOTHING:
            return "nothing found: inputs and answers are as they were"
        inputs = sum(each.kind == INPUT for each in self.changed)
        said = [f"{inputs} inputs" if inputs > 1 else "an input"] if inputs else []
        said += [each.name for each in self.changed if each.kind != INPUT]
        return f"changed: {', '.join(said)}"

    def as_dict(self) -> dict[str, Any]:
        compared = [
            {**vars(each), "changed": each.changed, "differs": each.differs, "p": _finite(each.p),
             "adjusted": _finite(each.adjusted), "most": list(each.most)}
            for each in self.compared
        ]  # fmt: skip
        return {
            "model": self.source, "rows": self.rows, "verdict": self.verdict, "code": self.code,
            "beyond_training": self.beyond, "compared": compared, "notes": list(self.notes),
        }  # fmt: skip

    def save(self, path: Path) -> None:
        write_json(path, self.as_dict())

    def __str__(self) -> str:
        lines = [f"{self.rows} new rows against what {self.source} was trained on"]
        inputs = [each for each in self.compared if each.kind == INPUT]
        same = sum(not each.differs for each in inputs)
        if self.code != CANNOT_TELL:
            lines.append(f"inputs:   {same} of {len(inputs)} columns as in training")
        lines += [f"changed:  {each}" for each in sorted(self.changed, key=lambda c: c.adjusted)]
        lines += [
            f"differs:  {each}, no more than training clients do"
            for each in self.compared
            if each.differs and not each.changed
        ]
        if self.beyond:
            lines.append(f"beyond:   {self.beyond} rows hold what no training row held")
        lines += [f"note:     {note}" for note in self.notes]
        return "\n".join([*lines, f"verdict:  {self.verdict}"])


def monitor(
    model: str | Path | Run | Deployed,
    files: Sequence[Any],
    *,
    client: str | None = None,
    label: str | None = None,
    alpha: float = ALPHA,
    data_dir: str | Path | None = None,
    allow_code: bool = False,
) -> MonitorReport:
    """New samples, of all files together, compared with what a model was trained on.

    ``model`` is the folder of a run, or of an adapted or exported model. Where the samples have
    labels, it is also compared how often answers are right. ``alpha`` bounds the probability of
    any alarm where nothing changed.
    """
    check_share("alpha", alpha)
    if not files:
        raise RunError("there is nothing to compare: name at least one file of new samples.")
    directory = None if data_dir is None else Path(data_dir)
    deployed = open_model(model, client, directory, allow_code=allow_code)
    if deployed.profile is None:
        raise RunError(
            f"{deployed.about['run']} kept no account of its training rows, as a folder of an "
            "earlier version: run it again, or name the folder of its data with --data-dir."
        )
    read = [read_samples(file, None, deployed.preparation, label) for file in files]
    parts = [(stored, prepared(stored, deployed.preparation)) for stored in read]
    threshold, notes = _threshold(model, deployed)
    inputs = [_inputs(deployed, *part) for part in parts]
    outputs = [_outputs(deployed, samples, threshold) for _, samples in parts]
    beyond = sum(bool(row) for found in inputs for row in unlike(deployed.profile, found))
    before = [*((INPUT, each) for each in deployed.profile.columns)]
    before += [(_kind(each), each) for each in _usual(deployed, threshold)]
    found = [
        _compared(kind, each, _now(each, inputs if kind == INPUT else outputs), alpha)
        for kind, each in before
    ]
    adjusted = holm([each.p for each in found if each is not None])
    kept = [each for each in found if each is not None]
    compared = tuple(replace(c, adjusted=a) for c, a in zip(kept, adjusted, strict=True))
    rows = sum(stored.rows for stored, _ in parts)
    return MonitorReport(str(deployed.about["run"]), rows, compared, beyond, tuple(notes))


def _inputs(deployed: Deployed, stored: Stored, samples: Samples) -> tuple[Column, ...]:
    return input_columns(deployed.preparation, stored.x, samples.x)


def _outputs(
    deployed: Deployed, samples: Samples, threshold: Threshold | None
) -> tuple[Column, ...]:
    """Answers for new samples as columns, and how right they are of those that have labels."""
    preparation = deployed.preparation
    said = deployed.answers(samples.x)
    found = answer_columns(preparation.problem, preparation.class_names, said)
    if threshold is not None:
        unsure = confidence_of(preparation.problem, said).astype(np.float64) < threshold.value
        found = (*found, Column(UNSURE, "boolean", unsure.astype(np.float64)))
    if samples.y is None:
        return found
    told = known(samples.y)
    return (*found, *truth_columns(preparation.problem, said[told], samples.y[told]))


def _threshold(
    model: str | Path | Run | Deployed, deployed: Deployed
) -> tuple[Threshold | None, list[str]]:
    if not deployed.preparation.problem.classifies:
        return None, []
    if not deployed.usual:
        why = "the run scored no such models" if deployed.about.get("adapted") else "none were kept"
        return None, [f"answers were not compared: {why} on validation samples"]
    try:
        return chosen_threshold(model, deployed, ACCURACY), []
    except FedskewError as error:
        return None, [f"unsure answers were not counted: {error}"]


def _usual(deployed: Deployed, threshold: Threshold | None) -> tuple[Counted, ...]:
    """The model's usual answers, and how often it is unsure."""
    if threshold is None:
        return deployed.usual
    sure = round(threshold.coverage * threshold.samples)
    counts = (sure, threshold.samples - sure, 0)
    return (*deployed.usual, Counted(UNSURE, counts, edges=(0.5,)))


def _kind(usual: Counted) -> str:
    return UNSURE if usual.name == UNSURE else RIGHT if usual.name == RIGHT else ANSWER


def _now(usual: Counted, parts: Sequence[tuple[Column, ...]]) -> Counts | None:
    """How many new rows lie in each bin; None where there is no such column."""
    told = [columns_by_name(part).get(usual.name) for part in parts]
    counts = [usual.count(column) for column in told if column is not None]
    return np.sum(counts, axis=0) if counts else None


def _compared(kind: str, usual: Counted, now: Counts | None, alpha: float) -> Compared | None:
    """The test of one column; its p-value is not adjusted yet."""
    before = np.array(usual.counts, dtype=np.int64)
    if now is None or not before.sum():
        return None
    p = two_samples(before, now) if now.sum() >= FEWEST else math.nan
    shares = before / before.sum()
    moved = now / max(1, now.sum()) - shares
    place = int(np.abs(moved).argmax())
    most = (_bin(usual, place), float(shares[place]), float(shares[place] + moved[place]))
    name = NAMES.get(usual.name, usual.name) if kind != INPUT else usual.name
    # Bins that were empty before lie infinitely far; half a row keeps that finite.
    smoothed = (before + 0.5) / (before + 0.5).sum()
    return Compared(kind, name, p, p, round(distance(now, smoothed), 6), usual.apart, most, alpha)


def _bin(usual: Counted, place: int) -> str:
    """What a bin is called: of two values, the one it is."""
    if usual.edges in ((0.0,), (0.5,)) and place < 2:
        return ("no", "yes")[place]
    return usual.bins[place]


def _small(p: float) -> str:
    return f"{p:.1e}" if p < 0.001 else f"{p:.3f}"


def _finite(p: float) -> float | None:
    return p if math.isfinite(p) else None
