"""Labels for samples, each with its probability, and which labels should be asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedskew.deploy.model import (
    Deployed,
    Threshold,
    finished_run,
    open_model,
    validation_threshold,
)
from fedskew.deploy.samples import prepared, read_samples
from fedskew.errors import RunError
from fedskew.federate.confidence import ACCURACY, Answered, answered, check_share
from fedskew.runs.experiment import Run
from fedskew.store import write_csv
from fedskew.types import Indices

SHOWN = 10
"""How many samples are printed; a CSV file has all."""
ASK = "ask for a label"


@dataclass(frozen=True, eq=False)
class Prediction:
    """The most likely class of every sample, and whether it is likely enough.

    ``label`` numbers the run's classes, ``ask`` marks samples whose probability is below the
    ``threshold``; ``truth`` are their true classes, if known. ``chosen`` says how the threshold
    was found, unless it was given.
    """

    label: Indices
    probability: NDArray[np.float32]
    threshold: float
    class_names: tuple[str, ...]
    truth: Indices | None = None
    chosen: Threshold | None = None

    @property
    def ask(self) -> NDArray[np.bool_]:
        # In double precision, as thresholds are chosen.
        return self.probability.astype(np.float64) < self.threshold

    @property
    def names(self) -> list[str]:
        """The classes by name."""
        return [self.class_names[label] for label in self.label]

    @property
    def coverage(self) -> float:
        """The share of samples that is answered."""
        return float((~self.ask).mean())

    @property
    def accuracy(self) -> float | None:
        """How often the labels are right, asked for or not; None if the truth is unknown."""
        return None if self.truth is None else float((self.label == self.truth).mean())

    @property
    def answered(self) -> Answered | None:
        """Coverage and accuracy of the samples that are answered."""
        if self.truth is None:
            return None
        return answered(self.probability, self.label == self.truth, self.threshold)

    def table(self, most: int | None = None) -> list[tuple[str, ...]]:
        """A header and one line per sample."""
        known = () if self.truth is None else ("truth",)
        lines: list[tuple[str, ...]] = [("sample", "label", "probability", "answer", *known)]
        asks, names = self.ask, self.names
        for row in range(len(self.label))[:most]:
            answer = ASK if asks[row] else "sure"
            found = (str(row), names[row], f"{self.probability[row]:.4f}", answer)
            truth = () if self.truth is None else (self.class_names[self.truth[row]],)
            lines.append((*found, *truth))
        return lines

    def save(self, path: Path) -> None:
        """Write all lines as CSV."""
        write_csv(path, self.table())

    def __str__(self) -> str:
        lines = self.table(SHOWN)
        widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
        text = [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in lines
        ]
        if len(self.label) > SHOWN:
            text.append(f"... and {len(self.label) - SHOWN} more")
        text += ["", f"threshold: {self.chosen or f'{self.threshold:g}, as given'}"]
        asked = int(self.ask.sum())
        text.append(f"coverage:  {self.coverage:.1%} answered, {asked} of {len(self.ask)} to ask")
        if self.answered is not None:
            sure = self.answered.accuracy
            among = f", {sure:.3f} of those answered" if self.answered.samples else ""
            text.append(f"accuracy:  {self.accuracy:.3f} of all{among}")
        return "\n".join(text)


def predict(
    model: str | Path | Run | Deployed,
    x: ArrayLike | str | Path,
    y: ArrayLike | None = None,
    *,
    client: str | None = None,
    threshold: float | None = None,
    accuracy: float = ACCURACY,
    label: str = "label",
    data_dir: str | Path | None = None,
    allow_code: bool = False,
) -> Prediction:
    """The label of every sample, its probability, and whether to ask for a label instead.

    ``model`` is the folder of a run (its global model, or that of ``client``) or of an adapted
    model. ``x`` is in the shape and scale of the dataset as stored: an array, or a file or folder
    of samples, whose tables have their labels in the column ``label``. With the true labels ``y``
    the answers are scored. Below ``threshold`` one should ask; if none is given, it is the one
    saved with an adapted model, or the smallest that reached ``accuracy`` on validation data.
    """
    for name, share in (("threshold", threshold), ("accuracy", accuracy)):
        if share is not None:
            check_share(name, share)
    directory = None if data_dir is None else Path(data_dir)
    deployed = open_model(model, client, directory, allow_code=allow_code)
    stored = read_samples(x, y, deployed.preparation, label)
    samples = prepared(stored, deployed.preparation)
    chosen = None if threshold is not None else _chosen(model, deployed, accuracy)
    probability, found = deployed.probabilities(samples.x).max(dim=1)
    return Prediction(
        found.numpy(),
        probability.numpy(),
        chosen.value if chosen else float(threshold or 0.0),
        deployed.preparation.class_names,
        samples.y,
        chosen,
    )


def _chosen(model: str | Path | Run | Deployed, deployed: Deployed, accuracy: float) -> Threshold:
    if deployed.threshold is not None:
        return deployed.threshold
    if isinstance(model, Deployed) or "adapted" in deployed.about:
        raise RunError("no threshold could be chosen for this adapted model: give one, like 0.9.")
    return validation_threshold(finished_run(model).path, accuracy)
