"""What a run keeps of its models' answers: how exactly, in how many bytes, and from older runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fedskew.errors import RunError
from fedskew.federate.predictions import (
    PREDICTIONS,
    Predictions,
    load_answers,
    load_predictions,
    probabilities,
)
from fedskew.federate.scoring import SampleScores
from fedskew.parts.scores import answered
from fedskew.problem import CLASSIFICATION, Problem
from fedskew.store import save_arrays
from fedskew.types import Tensors


def saved(folder: Path, values: Tensors, problem: Problem = CLASSIFICATION) -> Path:
    found = Predictions()
    found.add("seen", None, SampleScores("ann", {}, {"test": values}), problem)
    found.save(folder / PREDICTIONS)
    return folder


def spread(n: int, classes: int, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs from unsure to very sure, and labels."""
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(n, classes, generator=generator) * torch.linspace(0.1, scale, n)[:, None]
    return outputs, torch.randint(classes, (n,), generator=generator)


@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_probabilities_come_back_as_exactly_as_is_said(tmp_path: Path, scale: float) -> None:
    outputs, y = spread(4000, 5, scale)
    found = load_predictions(saved(tmp_path, answered(outputs, y)))
    exact = outputs.softmax(dim=1).double().numpy()
    back = probabilities(found)
    assert back is not None
    error = np.abs(back - exact)
    assert error.max() <= 1.8e-4 + 1e-7
    # Of the logarithm it is half a unit in the last of eleven binary digits; below e^-17 and above
    # 1 - e^-17 numbers of half precision lie further apart.
    inside = (exact > 1e-7) & (exact < 1 - 1e-7)
    logarithm = np.log(exact, where=inside, out=np.zeros_like(exact))
    allowed = 5e-4 * exact * np.abs(logarithm) + 1e-7
    assert (error[inside] <= allowed[inside]).all()
    assert np.array_equal(back.argmax(axis=1), exact.astype(np.float32).argmax(axis=1))
    assert np.array_equal(back.max(axis=1), found["confidence"])


def test_what_is_impossible_and_what_is_certain_stay_so(tmp_path: Path) -> None:
    values = {"label": torch.tensor([0]), "output": torch.tensor([[1.0, 0.0]])}
    back = probabilities(load_predictions(saved(tmp_path, values)))
    assert back is not None
    assert back.tolist() == [[1.0, 0.0]]


def test_a_hundred_classes_take_two_bytes_each(tmp_path: Path) -> None:
    outputs, y = spread(1000, 100, 3.0)
    size = (saved(tmp_path, answered(outputs, y)) / PREDICTIONS).stat().st_size
    assert 100_000 < size < 1000 * (100 * 2 + 16) + 3000


def test_a_run_of_an_earlier_version_kept_the_largest_probability_only(tmp_path: Path) -> None:
    outputs, y = spread(50, 3, 2.0)
    stored = load_predictions(saved(tmp_path, answered(outputs, y)))
    old = {name: array for name, array in stored.items() if name != "log_probability"}
    save_arrays(tmp_path / PREDICTIONS, old)
    found = load_predictions(tmp_path)
    assert probabilities(found) is None
    assert np.array_equal(found["confidence"], stored["confidence"])


def test_several_labels_and_numbers_are_kept_too_but_tell_no_classes_apart(
    tmp_path: Path,
) -> None:
    outputs, _ = spread(40, 3, 2.0)
    y = (outputs > 0.3).to(torch.float32)
    found = load_answers(saved(tmp_path, answered(outputs, y), Problem("multi-label")))
    back = probabilities(found)
    assert back is not None
    assert np.abs(back - outputs.sigmoid().numpy()).max() < 2e-4
    assert np.array_equal(found["label"], y.numpy())
    with pytest.raises(RunError, match="tells no classes apart"):
        load_predictions(tmp_path)
    number = Problem("regression", units=(50.0, 10.0))
    target, said = torch.tensor([0.0, 1.0]), torch.tensor([[0.5], [-1.0]])
    found = load_answers(saved(tmp_path, answered(said, target), number))
    assert found["label"].tolist() == [50.0, 60.0]
    assert found["predicted"].tolist() == [55.0, 40.0]
    assert probabilities(found) is None


def test_a_file_that_lacks_whose_answers_they_are_is_refused(tmp_path: Path) -> None:
    save_arrays(tmp_path / PREDICTIONS, {"label": np.zeros(3)})
    with pytest.raises(RunError, match="not complete: it lacks 'client'"):
        load_answers(tmp_path)
