"""Scores: grouped or alone, they are the means of plain forward passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from helpers import Tensors, copied, toy_federation, toy_model, toy_vae
from sklearn.metrics import f1_score
from torch import Tensor, nn

from fedskew.engine.evaluate import (
    EvaluationModules,
    Question,
    Scores,
    Scoring,
    evaluate,
    sample_values,
    trains_batch_statistics,
    uses_batch_statistics,
)
from fedskew.parts.generative import VaeLoss
from fedskew.parts.objective import Batch, Bound, Erm
from fedskew.rng import stream
from fedskew.types import Indices

FEDERATION = toy_federation()


def score(module: nn.Module, tensors: Tensors, batch: dict[str, Any]) -> Tensors:
    return Erm().scores(Bound(module, tensors), Batch(**batch))


def no_noise(samples: int) -> dict[str, tuple[int, ...]]:
    return {}


def scoring(
    module: nn.Module,
    how: Callable[..., Tensors] = score,
    noise: Callable[[int], dict[str, tuple[int, ...]]] = no_noise,
    batch_size: int = 256,
) -> Scoring:
    return Scoring(
        EvaluationModules(module), how, Erm().summed, noise, FEDERATION.x, FEDERATION.y, batch_size
    )


def plain(module: nn.Module, tensors: Tensors, rows: Indices) -> Scores:
    module.load_state_dict(tensors)
    with torch.no_grad():
        logits, y = module.eval()(FEDERATION.x[rows]), FEDERATION.y[rows]
    predicted = logits.argmax(dim=1)
    return {
        "loss": float(nn.functional.cross_entropy(logits, y)),
        "accuracy": float((predicted == y).float().mean()),
        "macro_f1": float(f1_score(y, predicted, average="macro", zero_division=0.0)),
    }


@pytest.mark.parametrize("kind", ["mlp", "batch-norm"])
@pytest.mark.parametrize("batch_size", [5, 256])
def test_scores_are_those_of_plain_forward_passes(kind: str, batch_size: int) -> None:
    module = toy_model(kind)
    shared = copied(module.state_dict())
    own = {n: t * 2 for n, t in shared.items()}
    questions = [Question(shared, c.train, (c.name,)) for c in FEDERATION.clients]
    questions += [Question(own, c.test, (c.name,)) for c in FEDERATION.clients]
    answers = evaluate(questions, scoring(module, batch_size=batch_size))
    for question, answer in zip(questions, answers, strict=True):
        expected = plain(toy_model(kind), question.tensors, question.rows)
        assert answer == pytest.approx(expected, abs=1e-6)


def test_no_rows_give_no_scores_even_between_others() -> None:
    module = toy_model()
    shared = copied(module.state_dict())
    nothing = np.empty(0, dtype=np.int64)
    rows = [FEDERATION.clients[0].train, nothing, FEDERATION.clients[1].train]
    first, empty, last = evaluate([Question(shared, r, ()) for r in rows], scoring(module))
    assert empty == {}
    assert first == pytest.approx(plain(toy_model(), shared, rows[0]), abs=1e-6)
    assert last == pytest.approx(plain(toy_model(), shared, rows[2]), abs=1e-6)
    assert evaluate([Question(shared, nothing, ())], scoring(module)) == [{}]


def test_scoring_leaves_the_module_as_it_was() -> None:
    module = toy_model("batch-norm").train()
    before = copied(module.state_dict())
    other = {n: t + 1 for n, t in before.items()}
    evaluate([Question(other, FEDERATION.clients[0].train, ())], scoring(module))
    assert module.training
    assert all(torch.equal(t, before[n]) for n, t in module.state_dict().items())


def test_clients_are_not_mixed_when_a_model_looks_at_its_batch() -> None:
    """Without running statistics BatchNorm normalises by the batch: a client must be alone."""
    module = nn.Sequential(nn.BatchNorm1d(6, track_running_stats=False), nn.Linear(6, 3))
    shared = copied(module.state_dict())
    assert uses_batch_statistics(module)
    questions = [Question(shared, c.train, ()) for c in FEDERATION.clients]
    for question, answer in zip(questions, evaluate(questions, scoring(module)), strict=True):
        assert answer == pytest.approx(plain(module, shared, question.rows), abs=1e-6)


def test_statistics_are_told_apart_by_layer_type() -> None:
    running, frozen = nn.BatchNorm1d(2), nn.BatchNorm1d(2, track_running_stats=False)
    assert [uses_batch_statistics(m) for m in (running, frozen, nn.LayerNorm(2))] == [
        False, True, False
    ]  # fmt: skip
    assert [trains_batch_statistics(m) for m in (running, frozen, nn.GroupNorm(1, 2))] == [
        True, True, False
    ]  # fmt: skip


def noisy(module: nn.Module, tensors: Tensors, batch: dict[str, Any]) -> dict[str, Tensor]:
    return {"draw": batch["noise"]["z"][:, 0], "second": batch["noise"]["z"][:, 1]}


def two_draws(samples: int) -> dict[str, tuple[int, ...]]:
    return {"z": (samples, 2)}


def test_a_sampled_score_depends_on_its_key_and_on_nothing_around_it() -> None:
    module = toy_model()
    shared = copied(module.state_dict())
    questions = [Question(shared, c.train, ("seed", c.name)) for c in FEDERATION.clients]
    together = evaluate(questions, scoring(module, noisy, two_draws))
    alone = [evaluate([q], scoring(module, noisy, two_draws, batch_size=3))[0] for q in questions]
    assert together == [pytest.approx(answer, abs=1e-12) for answer in alone]
    assert len({answer["draw"] for answer in together}) == len(together)
    assert together[0]["draw"] != together[0]["second"]
    again = evaluate(questions[::-1], scoring(module, noisy, two_draws))[::-1]
    assert again == together


@pytest.mark.parametrize("batch_size", [5, 256])
def test_every_sample_has_its_own_value_in_the_order_of_the_rows(batch_size: int) -> None:
    module = toy_model()
    shared = copied(module.state_dict())
    nothing = np.empty(0, dtype=np.int64)
    rows = [FEDERATION.clients[3].train[::-1].copy(), nothing, FEDERATION.clients[1].test]
    found = sample_values(
        [Question(shared, r, ()) for r in rows], scoring(module, batch_size=batch_size)
    )
    assert found[1] == {}
    for here, values in ((rows[0], found[0]), (rows[2], found[2])):
        with torch.no_grad():
            logits, y = module(FEDERATION.x[here]), FEDERATION.y[here]
        each = nn.functional.cross_entropy(logits, y, reduction="none")
        torch.testing.assert_close(values["loss"], each.double(), rtol=1e-5, atol=1e-6)
        assert values["accuracy"].tolist() == (logits.argmax(dim=1) == y).double().tolist()


def test_what_the_values_of_a_question_come_to_is_up_to_the_objective() -> None:
    """Asked once a question, with all values of its samples, however they were batched."""
    module = toy_model()
    shared = copied(module.state_dict())
    asked: list[int] = []

    def worst(values: Tensors) -> Scores:
        asked.append(len(values["loss"]))
        return {"worst": float(values["loss"].max())}

    questions = [Question(shared, c.train, ()) for c in FEDERATION.clients]
    questions.append(Question(shared, np.empty(0, dtype=np.int64), ()))
    answers = evaluate(questions, replace(scoring(module, batch_size=5), summed=worst))
    values = sample_values(questions, scoring(module))
    assert answers[:-1] == [
        {"worst": pytest.approx(max(found["loss"].tolist()), abs=1e-6)} for found in values[:-1]
    ]
    assert answers[-1] == {}
    assert asked == [len(c.train) for c in FEDERATION.clients]


def vae_score(module: nn.Module, tensors: Tensors, batch: dict[str, Any]) -> Tensors:
    return VaeLoss(eval_beta=3.0).scores(Bound(module, tensors), Batch(**batch))


@pytest.mark.parametrize("batch_size", [7, 256])
def test_a_vae_is_scored_with_codes_from_the_stream_of_the_question(batch_size: int) -> None:
    module = toy_vae()
    objective, rows = VaeLoss(eval_beta=3.0), FEDERATION.clients[3].train
    (answer,) = evaluate(
        [Question(copied(module.state_dict()), rows, ("seed", "c3"))],
        replace(
            scoring(module, vae_score, partial(objective.noise, module), batch_size),
            summed=objective.summed,
        ),
    )
    draws = stream(0, "score", "codes", "seed", "c3").standard_normal((41, 2), dtype=np.float32)
    x = FEDERATION.x[rows]
    with torch.no_grad():
        mean, log_variance = module.encoder(x).chunk(2, dim=1)
        error = module.decoder(mean + (log_variance / 2).exp() * torch.from_numpy(draws)) - x
    divergence = (mean**2 + log_variance.exp() - log_variance - 1) / 2
    expected = {
        "reconstruction": float(error.square().sum()) / 41,
        "kl": float(divergence.sum()) / 41,
    }
    expected["loss"] = expected["reconstruction"] + 3 * expected["kl"]
    expected["legacy"] = expected["loss"] / 41
    assert answer == pytest.approx(expected, rel=1e-5)
