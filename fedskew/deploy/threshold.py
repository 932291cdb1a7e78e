"""When a model should ask for a label: the confidence below which it is too often wrong."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedskew.federate.confidence import ACCURACY, answered, choose_threshold
from fedskew.federate.predictions import load_predictions

NOT_ADAPTED = "none"


@dataclass(frozen=True)
class Threshold:
    """The confidence below which to ask, and its effect on the validation samples used."""

    value: float
    wished: float
    accuracy: float
    coverage: float
    samples: int
    adapted: str

    def __str__(self) -> str:
        reached = f"{self.accuracy:.3f}"
        if self.accuracy < self.wished - 1e-9:
            reached = f"only {reached}, because no threshold reaches {self.wished:g}"
        models = "" if self.adapted == NOT_ADAPTED else f" of models adapted alike ({self.adapted})"
        return (
            f"{self.value:.4f}, chosen on {self.samples} validation samples{models}: it answers "
            f"{self.coverage:.1%} of them with accuracy {reached}"
        )


def validation_threshold(
    run: Path, accuracy: float = ACCURACY, adapted: str = NOT_ADAPTED
) -> Threshold:
    """The threshold that reaches an accuracy on the validation samples of a run.

    The answers are those of models adapted in the same way if the run scored any, else those of
    its models as they are.
    """
    found = load_predictions(run)
    validation = found["split"] == "validation"
    if not (validation & (found["adapted"] == adapted)).any():
        adapted = NOT_ADAPTED
    rows = np.flatnonzero(validation & (found["adapted"] == adapted))
    confidence, correct = found["confidence"][rows], found["correct"][rows]
    value = choose_threshold(confidence, correct, accuracy)
    reached = answered(confidence, correct, value)
    return Threshold(value, accuracy, reached.accuracy, reached.coverage, len(rows), adapted)
