"""Every metric of the table against scikit-learn, and by hand where it has none."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn import metrics as sk
from sklearn.preprocessing import label_binarize

from fedskew.errors import ConfigError
from fedskew.parts.measures import Answers
from fedskew.parts.metrics import (
    METRICS,
    check_metric,
    fitting,
    is_share,
    metric_for,
    rises,
)
from fedskew.problem import KINDS, Problem

Arrays = tuple[NDArray[Any], NDArray[np.float64]]
MANY = Problem("classification")
TWO = Problem("binary", positive="ill")
LABELS = Problem("multi-label")
NUMBER = Problem("regression")


def of(name: str, problem: Problem, label: Any, output: Any, positive: int | None = None) -> float:
    answers = Answers(np.asarray(label), np.asarray(output, np.float64), positive)
    return metric_for(name, problem).value(problem.kind, answers)


def classes(n: int, count: int, seed: int, grain: int = 0) -> Arrays:
    """Labels of all classes and probabilities, with ``grain`` of few different values: ties."""
    rng = np.random.default_rng(seed)
    label = np.concatenate([np.arange(count), rng.integers(count, size=n - count)])
    output = rng.dirichlet(np.ones(count), size=n)
    output[np.arange(n), label] += 0.3
    if grain:
        output = np.ceil(output * grain)
    return label, output / output.sum(axis=1, keepdims=True)


def labels(n: int, count: int, seed: int) -> Arrays:
    rng = np.random.default_rng(seed)
    truth = (rng.random((n, count)) < 0.4).astype(np.float32)
    return truth, np.clip(0.3 * truth + 0.7 * rng.random((n, count)), 0.0, 1.0)


def targets(n: int, seed: int) -> Arrays:
    rng = np.random.default_rng(seed)
    target = rng.normal(100.0, 20.0, n)
    return target, target + rng.normal(0.0, 5.0, n)


def multiclass_brier(label: NDArray[Any], output: NDArray[np.float64]) -> float:
    columns = range(output.shape[1])
    return float(sum(sk.brier_score_loss(label == c, output[:, c]) for c in columns))  # fmt: skip


OF_CLASSES: dict[str, Callable[[Any, Any], float]] = {
    "accuracy": lambda y, p: sk.accuracy_score(y, p.argmax(1)),
    "balanced_accuracy": lambda y, p: sk.balanced_accuracy_score(y, p.argmax(1)),
    "macro_f1": lambda y, p: sk.f1_score(y, p.argmax(1), average="macro"),
    "auroc": lambda y, p: sk.roc_auc_score(y, p, multi_class="ovr", average="macro"),
    "auprc": lambda y, p: sk.average_precision_score(label_binarize(y, classes=range(4)), p),
    "log_loss": lambda y, p: sk.log_loss(y, p),
    "brier": multiclass_brier,
}
OF_TWO: dict[str, Callable[[Any, Any], float]] = {
    **OF_CLASSES,
    "f1": lambda y, p: sk.f1_score(y, p.argmax(1)),
    "sensitivity": lambda y, p: sk.recall_score(y, p.argmax(1)),
    "specificity": lambda y, p: sk.recall_score(y, p.argmax(1), pos_label=0),
    "auroc": lambda y, p: sk.roc_auc_score(y, p[:, 1]),
    "auprc": lambda y, p: sk.average_precision_score(y, p[:, 1]),
    "brier": lambda y, p: sk.brier_score_loss(y, p[:, 1]),
}
OF_LABELS: dict[str, Callable[[Any, Any], float]] = {
    "label_accuracy": lambda y, p: np.mean((p > 0.5) == y),
    "macro_f1": lambda y, p: sk.f1_score(y, p > 0.5, average="macro"),
    "micro_f1": lambda y, p: sk.f1_score(y, p > 0.5, average="micro"),
    "subset_accuracy": lambda y, p: sk.accuracy_score(y, p > 0.5),
    "hamming": lambda y, p: sk.hamming_loss(y, p > 0.5),
    "auroc": lambda y, p: sk.roc_auc_score(y, p, average="macro"),
    "auprc": lambda y, p: sk.average_precision_score(y, p, average="macro"),
    "log_loss": lambda y, p: np.mean([sk.log_loss(a, b) for a, b in zip(y.T, p.T, strict=True)]),
    "brier": lambda y, p: np.mean(
        [sk.brier_score_loss(a, b) for a, b in zip(y.T, p.T, strict=True)]
    ),
}
OF_NUMBERS: dict[str, Callable[[Any, Any], float]] = {
    "rmse": sk.root_mean_squared_error,
    "mae": sk.mean_absolute_error,
    "r2": sk.r2_score,
    "pinball": lambda y, f: sk.mean_pinball_loss(y, f, alpha=0.5),
}
BY_HAND = {"ece"}


@pytest.mark.parametrize("grain", [0, 6])
@pytest.mark.parametrize("name", OF_CLASSES)
def test_of_several_classes_it_is_what_scikit_learn_says_ties_and_all(
    name: str, grain: int
) -> None:
    for seed in range(3):
        label, output = classes(60, 4, seed, grain)
        assert of(name, MANY, label, output) == pytest.approx(
            OF_CLASSES[name](label, output), abs=1e-9
        )


@pytest.mark.parametrize("grain", [0, 6])
@pytest.mark.parametrize("name", OF_TWO)
def test_of_two_classes_it_is_what_scikit_learn_says_of_the_positive_one(
    name: str, grain: int
) -> None:
    for seed in range(3):
        label, output = classes(40, 2, seed, grain)
        # Which of two equal probabilities is the answer depends on their order.
        label, output = (each[output[:, 0] != 0.5] for each in (label, output))
        wanted = OF_TWO[name](label, output)
        assert of(name, TWO, label, output, positive=1) == pytest.approx(wanted, abs=1e-9)
        # The same with the other class as the one that is looked for.
        turned = of(name, TWO, 1 - label, output[:, ::-1], positive=0)
        assert turned == pytest.approx(wanted, abs=1e-9)


@pytest.mark.parametrize("name", OF_LABELS)
def test_of_several_labels_it_is_what_scikit_learn_says(name: str) -> None:
    for seed in range(3):
        truth, output = labels(50, 5, seed)
        wanted = OF_LABELS[name](truth, output)
        assert of(name, LABELS, truth, output) == pytest.approx(wanted, abs=1e-9)


@pytest.mark.parametrize("name", OF_NUMBERS)
def test_of_a_number_it_is_what_scikit_learn_says(name: str) -> None:
    for seed in range(3):
        target, predicted = targets(50, seed)
        wanted = OF_NUMBERS[name](target, predicted)
        assert of(name, NUMBER, target, predicted) == pytest.approx(wanted, rel=1e-9)


def test_the_pinball_loss_of_any_quantile_can_be_asked_for() -> None:
    target, predicted = targets(50, 0)
    for quantile in (0.1, 0.9):
        wanted = sk.mean_pinball_loss(target, predicted, alpha=quantile)
        assert of(f"pinball@{quantile}", NUMBER, target, predicted) == pytest.approx(wanted)


def test_every_metric_of_every_problem_is_held_against_something() -> None:
    held = {
        "classification": OF_CLASSES.keys() | BY_HAND, "binary": OF_TWO.keys() | BY_HAND,
        "multi-label": OF_LABELS.keys(), "regression": OF_NUMBERS.keys(),
    }  # fmt: skip
    assert {kind: set(fitting(Problem(kind))) for kind in KINDS} == held  # type: ignore[arg-type]


def test_the_calibration_error_by_hand() -> None:
    """Confidences .9, .9, .6, .62 fall in bins (13/15, 14/15], (8/15, 9/15] and (9/15, 10/15]."""
    output = [[0.9, 0.1], [0.9, 0.1], [0.4, 0.6], [0.38, 0.62]]
    label = [0, 1, 1, 0]
    gaps = [2 * abs(0.9 - 0.5), 1 * abs(0.6 - 1.0), 1 * abs(0.62 - 0.0)]
    assert of("ece", MANY, label, output) == pytest.approx(sum(gaps) / 4)


def test_sure_and_right_is_perfectly_calibrated_and_sure_and_wrong_not_at_all() -> None:
    sure = [[1.0, 0.0], [1.0, 0.0]]
    assert (of("ece", MANY, [0, 0], sure), of("ece", MANY, [1, 1], sure)) == (0.0, 1.0)


def test_a_sure_and_wrong_answer_costs_what_it_costs_in_single_precision() -> None:
    wanted = sk.log_loss([0, 1], np.array([[0.0, 1.0], [0.0, 1.0]], np.float32))
    assert of("log_loss", MANY, [0, 1], [[0.0, 1.0], [0.0, 1.0]]) == pytest.approx(wanted)


def test_absent_classes_are_left_out_of_means_over_classes() -> None:
    """Four classes are known, of which this client has the first three."""
    label, output = classes(40, 3, 1)
    output = np.hstack([output * 0.9, np.full((40, 1), 0.1)])
    areas = [sk.roc_auc_score(label == c, output[:, c]) for c in range(3)]
    precisions = [sk.average_precision_score(label == c, output[:, c]) for c in range(3)]
    assert of("auroc", MANY, label, output) == pytest.approx(np.mean(areas))
    assert of("auprc", MANY, label, output) == pytest.approx(np.mean(precisions))
    recalls = sk.balanced_accuracy_score(label, output.argmax(axis=1))
    assert of("balanced_accuracy", MANY, label, output) == pytest.approx(recalls)


def test_a_client_with_one_class_has_no_ranking_but_all_else() -> None:
    label, output = np.zeros(10, np.int64), classes(10, 3, 0)[1]
    undefined = {name for name in fitting(MANY) if math.isnan(of(name, MANY, label, output))}
    assert undefined == {"auroc", "auprc"}


def test_a_client_without_positive_samples_has_no_f1_and_no_sensitivity() -> None:
    label, output = np.zeros(10, np.int64), classes(10, 2, 0)[1]
    found = {name: of(name, TWO, label, output, positive=1) for name in fitting(TWO)}
    undefined = {name for name, value in found.items() if math.isnan(value)}
    assert undefined == {"auroc", "auprc", "f1", "sensitivity"}
    label = label + 1
    found = {name: of(name, TWO, label, output, positive=1) for name in fitting(TWO)}
    undefined = {name for name, value in found.items() if math.isnan(value)}
    assert undefined == {"auroc", "auprc", "specificity"}


def test_labels_that_neither_occur_nor_are_said_are_left_out_of_macro_f1() -> None:
    truth, output = labels(30, 3, 2)
    wanted = sk.f1_score(truth, output > 0.5, average="macro")
    silent = np.zeros((30, 1))
    found = of("macro_f1", LABELS, np.hstack([truth, silent]), np.hstack([output, silent]))
    assert found == pytest.approx(wanted)


def test_where_no_label_occurs_there_is_no_f1_whatever_is_said() -> None:
    truth, output = np.zeros((6, 2), np.float32), labels(6, 2, 0)[1]
    undefined = {name for name in fitting(LABELS) if math.isnan(of(name, LABELS, truth, output))}
    assert undefined == {"auroc", "auprc", "macro_f1", "micro_f1"}


def test_targets_that_do_not_vary_have_no_r2() -> None:
    assert math.isnan(of("r2", NUMBER, [2.0, 2.0], [1.0, 3.0]))
    assert math.isnan(of("r2", NUMBER, [2.0], [1.0]))
    assert of("rmse", NUMBER, [2.0], [1.0]) == 1.0


def test_answers_that_are_no_numbers_have_no_score() -> None:
    output = [[math.nan, 0.5], [0.5, 0.5]]
    assert all(math.isnan(of(name, MANY, [0, 1], output)) for name in fitting(MANY))


def test_scikit_learn_agrees_that_a_client_with_one_class_has_no_area() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert math.isnan(sk.roc_auc_score([0, 0], [0.2, 0.8]))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("auc", "unknown evaluate.metric 'auc': did you mean 'auroc'?"),
        ("pinball@1.5", "only 'pinball' has a quantile, between 0 and 1"),
        ("auroc@0.5", "only 'pinball' has a quantile"),
        ("pinball@half", "only 'pinball' has a quantile"),
    ],
)
def test_a_name_that_is_none_is_refused_in_one_sentence(name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said.replace("?", r"\?")):
        check_metric(name)


def test_a_metric_that_does_not_fit_names_those_that_do() -> None:
    with pytest.raises(ConfigError, match="'auroc' does not fit regression: choose from rmse, mae"):
        metric_for("auroc", NUMBER)


def test_more_is_better_for_some_and_less_for_the_others() -> None:
    falling = {name for name, metric in METRICS.items() if not metric.higher_is_better}
    assert falling == {"log_loss", "brier", "ece", "hamming", "rmse", "mae", "pinball"}
    assert [rises("pinball@0.9", True), rises("odd", True), rises("odd", False)] == [0, 1, 0]


def test_only_what_lies_between_0_and_1_is_drawn_on_that_scale() -> None:
    assert [is_share(name) for name in ("auroc", "r2", "loss")] == [True, False, False]
