"""What a run's models predicted for every sample they were tested on, and how confidently."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedskew.errors import RunError
from fedskew.federate.recipe import Adapt
from fedskew.federate.scoring import SampleScores
from fedskew.parts.objective import ANSWERS
from fedskew.store import read_arrays, save_arrays

PREDICTIONS = "predictions.npz"
NAMES = ("confidence", "correct", "label", "predicted", "client", "on", "split", "adapted")
Arrays = dict[str, NDArray[Any]]


class Predictions:
    """The answers of classifiers, collected client by client; other models give none."""

    def __init__(self) -> None:
        self._parts: list[Arrays] = []

    def add(self, on: str, adapt: Adapt | None, result: SampleScores) -> None:
        """Add a model's answers for a client's samples; ``on`` is "seen" or "unseen"."""
        for split, values in result.values.items():
            if not set(ANSWERS) <= values.keys():
                continue
            label, predicted = (
                values[name].numpy().astype(np.int64) for name in ("label", "predicted")
            )
            where = {
                "client": result.client, "on": on, "split": split,
                "adapted": adapt.label if adapt else "none",
            }  # fmt: skip
            self._parts.append(
                {
                    "confidence": values["confidence"].numpy().astype(np.float32),
                    "correct": label == predicted,
                    "label": label,
                    "predicted": predicted,
                    **{name: np.full(len(label), text) for name, text in where.items()},
                }
            )

    def save(self, path: Path) -> None:
        if self._parts:
            names = self._parts[0]
            save_arrays(path, {n: np.concatenate([p[n] for p in self._parts]) for n in names})


def load_predictions(run: Path) -> Arrays:
    """The arrays of a run: confidence, correct, label, predicted, client, on, split, adapted."""
    path = run / PREDICTIONS
    if not path.is_file():
        raise RunError(f"{run} holds no predictions: it is unfinished, or its model predicts none.")
    found = read_arrays(path)
    if missing := [name for name in NAMES if name not in found]:
        raise RunError(f"{path} is not complete: it lacks {missing[0]!r}.")
    return found
