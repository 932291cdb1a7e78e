"""What a run's models said of every sample they were tested on, and what was right.

The probabilities of all classes are kept as the logarithm in half precision, two bytes each: a
probability p comes back within 5e-4·p·|ln p| (at most 1.8e-4), however near it is to 0 or 1.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedskew.errors import RunError
from fedskew.federate.recipe import Adapt
from fedskew.parts.scores import decided
from fedskew.problem import Problem
from fedskew.store import read_arrays, save_arrays
from fedskew.types import Tensors

if TYPE_CHECKING:
    from fedskew.federate.scoring import SampleScores

PREDICTIONS = "predictions.npz"
LOGARITHMS = "log_probability"
WHERE = ("client", "on", "split", "adapted")
NAMES = ("confidence", "correct", "label", "predicted", *WHERE)
Arrays = dict[str, NDArray[Any]]


class Predictions:
    """The answers of models, collected client by client; models that give none are left out."""

    def __init__(self) -> None:
        self._parts: list[Arrays] = []

    def add(self, on: str, adapt: Adapt | None, result: SampleScores, problem: Problem) -> None:
        """Add a model's answers for a client's samples; ``on`` is "seen" or "unseen"."""
        for split, values in result.values.items():
            if "output" not in values:
                continue
            where = {
                "client": result.client, "on": on, "split": split,
                "adapted": adapt.label if adapt else "none",
            }  # fmt: skip
            told = _told(values, problem)
            count = len(told["label"])
            self._parts.append(
                {**told, **{name: np.full(count, text) for name, text in where.items()}}
            )

    def save(self, path: Path) -> None:
        if self._parts:
            names = self._parts[0]
            save_arrays(path, {n: np.concatenate([p[n] for p in self._parts]) for n in names})


def _told(values: Tensors, problem: Problem) -> Arrays:
    """A client's answers: of a number in the target's units, else with all probabilities."""
    label, output = values["label"], values["output"]
    if problem.kind == "regression":
        return {
            "label": problem.in_units(label.double()).numpy(),
            "predicted": problem.in_units(output.double()).numpy(),
        }
    if problem.kind == "multi-label":
        return {"label": label.numpy().astype(np.uint8), LOGARITHMS: _logarithms(output)}
    confidence, predicted = (found.numpy() for found in decided(output))
    right = label.numpy().astype(np.int64)
    return {
        "confidence": confidence.astype(np.float32),
        "correct": right == predicted,
        "label": right,
        "predicted": predicted,
        LOGARITHMS: _logarithms(output),
    }


def _logarithms(probabilities: Tensor) -> NDArray[np.float16]:
    return probabilities.log().numpy().astype(np.float16)


def probabilities(found: Arrays) -> NDArray[np.float32] | None:
    """The probability of each class or label, sample by sample; older runs kept none of all.

    That of the predicted class is exact, and no other is larger.
    """
    if LOGARITHMS not in found:
        return None
    result: NDArray[np.float32] = np.exp(found[LOGARITHMS].astype(np.float32))
    if "predicted" in found:
        most, rows = found["confidence"], np.arange(len(result))
        np.minimum(result, np.nextafter(most, np.float32(0.0))[:, None], out=result)
        result[rows, found["predicted"]] = most
    return result


def load_answers(run: Path) -> Arrays:
    """The arrays of a run: label, client, on, split and adapted, and what its problem has.

    Classes: predicted, correct, confidence and log_probability [n, classes]; several labels:
    log_probability [n, labels]; a number: predicted.
    """
    path = run / PREDICTIONS
    if not path.is_file():
        raise RunError(f"{run} holds no predictions: it is unfinished, or its model predicts none.")
    found = read_arrays(path)
    if missing := [name for name in ("label", *WHERE) if name not in found]:
        raise RunError(f"{path} is not complete: it lacks {missing[0]!r}.")
    return found


def load_predictions(run: Path) -> Arrays:
    """The same of a run that tells classes apart."""
    found = load_answers(run)
    if not classified(found):
        raise RunError(f"{run} tells no classes apart, so there are no answers to be unsure of.")
    if missing := [name for name in NAMES if name not in found]:
        raise RunError(f"{run / PREDICTIONS} is not complete: it lacks {missing[0]!r}.")
    return found


def classified(found: Arrays) -> bool:
    """Whether these answers are classes."""
    return "correct" in found or "confidence" in found
