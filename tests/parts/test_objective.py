"""What a classifier says of samples, scores against scikit-learn, and what clients remember."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from helpers import make_holdings, run, toy_federation
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import log_softmax
from sklearn.metrics import accuracy_score, f1_score, log_loss
from torch import Tensor, nn

from fedskew.engine.optim import Optimiser
from fedskew.federate.plan import Settings
from fedskew.federate.recipe import Phase, Recipe
from fedskew.parts.objective import Batch, Context, Erm
from fedskew.parts.scores import ANSWERS, answered, decided, macro_f1
from fedskew.parts.select import only
from fedskew.types import Tensors

LOGITS = torch.randn(40, 5, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(40) % 5


def test_answers_are_the_probability_of_each_class_and_the_label() -> None:
    found = answered(LOGITS, LABELS)
    logs = log_softmax(LOGITS.numpy().astype(np.float64), axis=1)

    assert found.keys() == {"loss", "accuracy", *ANSWERS}
    confidence, predicted = decided(found["output"])
    assert predicted.tolist() == logs.argmax(axis=1).tolist()
    assert found["label"].tolist() == LABELS.tolist()
    np.testing.assert_allclose(found["output"], np.exp(logs), rtol=1e-5)
    np.testing.assert_allclose(confidence, np.exp(logs.max(axis=1)), rtol=1e-5)
    np.testing.assert_allclose(found["loss"], -logs[np.arange(40), LABELS], rtol=1e-5)
    assert found["accuracy"].tolist() == (logs.argmax(axis=1) == LABELS.numpy()).tolist()


def test_scores_of_a_client_are_those_of_scikit_learn() -> None:
    """Answers arrive as float64, like all values of samples."""
    values = {name: v.to(torch.float64) for name, v in answered(LOGITS, LABELS).items()}
    found = Erm().summed(values)
    predicted, chances = LOGITS.argmax(dim=1), LOGITS.double().softmax(dim=1)

    assert found.keys() == {"loss", "accuracy", "macro_f1"}
    assert found["accuracy"] == pytest.approx(accuracy_score(LABELS, predicted))
    assert found["macro_f1"] == pytest.approx(f1_score(LABELS, predicted, average="macro"))
    assert found["loss"] == pytest.approx(log_loss(LABELS, chances), rel=1e-5)


answers = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=40)


@given(answers)
def test_macro_f1_is_scikit_learns_whatever_classes_are_missing(
    pairs: list[tuple[int, int]],
) -> None:
    label, predicted = (torch.tensor(side) for side in zip(*pairs, strict=True))

    expected = f1_score(label, predicted, average="macro", zero_division=0.0)
    assert macro_f1(label, predicted) == pytest.approx(expected, abs=1e-12)


def test_a_class_nobody_has_or_predicts_does_not_count() -> None:
    """F1 of class 0 is 2·2/(2 + 3), of class 5 it is 2·1/(2 + 1); 1 to 4 are not there."""
    label, predicted = torch.tensor([0, 0, 5, 5]), torch.tensor([0, 0, 0, 5])

    assert macro_f1(label, predicted) == pytest.approx((4 / 5 + 2 / 3) / 2)


def test_a_class_that_is_predicted_but_absent_counts_as_missed() -> None:
    """Class 0: 2·1/(2 + 1); class 3: nothing right."""
    assert macro_f1(torch.tensor([0, 0]), torch.tensor([0, 3])) == pytest.approx((2 / 3) / 2)


@dataclass(frozen=True)
class Smoothed(Erm):
    """Follows the running mean of its gradients, which the client remembers."""

    def memory(self, environments: int, parameters: Tensors) -> Tensors:
        return {f"mean {name}": torch.zeros_like(t) for name, t in parameters.items()}

    def gradient(
        self, module: nn.Module, trained: Tensors, fixed: Tensors, batch: Batch, client: Context
    ) -> tuple[Tensors, Tensor, Tensors]:
        now, loss, moved = super().gradient(module, trained, fixed, batch, client)
        means = {n: 0.5 * client[f"mean {n}"] + 0.5 * g for n, g in now.items()}
        return means, loss, {**moved, **{f"mean {n}": t for n, t in means.items()}}


def test_a_memory_may_be_as_large_as_what_is_trained_and_survives_the_round() -> None:
    """One client, one step a round: the second starts from half of the first one's gradient."""
    federation = toy_federation((16,))
    settings = Settings(Optimiser("sgd", 0.1), epochs=1, batch_size=16)
    recipe = Recipe(objective=Smoothed(), trains=(Phase(only("head")),))
    first, second = (
        run(make_holdings(recipe, federation, settings=settings), rounds) for rounds in (1, 2)
    )
    plain = run(make_holdings(Recipe(trains=recipe.trains), federation, settings=settings), 1)
    start = plain.holdings.plan.initial
    means = [r.backend.private_of("c0")["memory-0"] for r in (first, second)]
    assert means[0].keys() == {"mean head.weight", "mean head.bias"}
    for name in ("head.weight", "head.bias"):
        gradient = (start[name] - plain.shared[name]) / 0.1
        torch.testing.assert_close(means[0][f"mean {name}"], 0.5 * gradient, atol=1e-5, rtol=1e-4)
        moved = (first.shared[name] - second.shared[name]) / 0.1
        torch.testing.assert_close(means[1][f"mean {name}"], moved, atol=1e-5, rtol=1e-4)
    assert Smoothed().remembers
    assert not Erm().remembers
