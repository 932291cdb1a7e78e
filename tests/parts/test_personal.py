"""The parts of personalised methods: two heads, a balanced softmax, and one step ahead."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from helpers import Tensors, copied, make_holdings, run, standard_run, toy_federation, toy_model
from torch import Tensor, nn
from torch.nn import functional as F

from fedskew.data.federation import Client
from fedskew.errors import ConfigError
from fedskew.methods import find
from fedskew.models.personal_head import TwoHeads, with_personal_head
from fedskew.models.registry import Classifier
from fedskew.parts.objective import Batch, Bound
from fedskew.parts.personal import GenericAndPersonal, OneStepAhead, balanced_logits, halves


def batch_of(x: Tensor, y: Tensor, real: int | None = None) -> Batch:
    mask = torch.ones(len(x))
    mask[len(x) if real is None else real :] = 0.0
    return Batch(x, y, mask, mask)


def random_batch(size: int, real: int | None = None, seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, 6, generator=generator)
    return batch_of(x, torch.randint(3, (size,), generator=generator), real)


def trained_heads() -> TwoHeads:
    """The toy model with a personal head that is no longer zero."""
    model = with_personal_head(toy_model())
    assert isinstance(model, TwoHeads)
    with torch.no_grad():
        for number, parameter in enumerate(model.personal.parameters()):
            generator = torch.Generator().manual_seed(number)
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return model


def test_the_personal_head_has_the_shape_of_the_head_and_starts_at_zero() -> None:
    plain = Classifier(nn.Flatten(), nn.Linear(6, 3, bias=False))
    extended = with_personal_head(plain)
    assert {n: tuple(t.shape) for n, t in extended.state_dict().items()} == {
        "head.weight": (3, 6), "personal.weight": (3, 6)
    }  # fmt: skip
    assert not extended.state_dict()["personal.weight"].any()
    x = random_batch(5).x
    assert torch.equal(extended(x), plain(x))


def test_adding_a_personal_head_draws_no_random_numbers() -> None:
    model, before = toy_model(), torch.get_rng_state()
    with_personal_head(model)
    assert torch.equal(torch.get_rng_state(), before)


def test_both_heads_predict_together() -> None:
    model, x = trained_heads(), random_batch(5).x
    features = model.body(x)
    assert torch.equal(model(x), model.head(features) + model.personal(features))
    assert not torch.equal(model(x), model.head(features))


def test_a_head_that_is_not_linear_is_refused_in_one_sentence() -> None:
    model = Classifier(nn.Flatten(), nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3)))
    with pytest.raises(ConfigError, match=r"'head' is a torch\.nn\.Linear, not Sequential"):
        make_holdings(find("fedrod").recipe(), module=model)


def numpy_loss(model: TwoHeads, batch: Batch, counts: list[float], gamma: float) -> float:
    """Both of FedROD's losses in double precision, the exponentials written out."""
    real = batch.mask.numpy() > 0
    f = np.tanh(batch.x.numpy()[real] @ weight(model.body[0]).T + bias(model.body[0]))  # type: ignore[index]
    y = batch.y.numpy()[real]
    z = f @ weight(model.head).T + bias(model.head)
    p = z + f @ weight(model.personal).T + bias(model.personal)
    each = np.arange(len(y))
    scaled = np.asarray(counts, np.float64) ** gamma * np.exp(z)
    generic = -np.log(scaled[each, y] / scaled.sum(axis=1))
    personal = -np.log(np.exp(p)[each, y] / np.exp(p).sum(axis=1))
    return float((generic + personal).mean())


def weight(layer: Any) -> Any:
    return layer.weight.detach().double().numpy()


def bias(layer: Any) -> Any:
    return layer.bias.detach().double().numpy()


@pytest.mark.parametrize("gamma", [0.0, 1.0, 0.5])
def test_the_loss_is_a_balanced_softmax_and_a_plain_one(gamma: float) -> None:
    model, batch = trained_heads(), random_batch(9, real=7)
    client = {"class_counts": torch.tensor([7.0, 1.0, 30.0])}
    found = GenericAndPersonal(gamma).loss(Bound(model, model.state_dict()), batch, client)
    expected = numpy_loss(model, batch, [7.0, 1.0, 30.0], gamma)
    assert float(found) == pytest.approx(expected, abs=1e-5)


def test_a_class_a_client_lacks_weighs_nothing_among_the_others() -> None:
    """As if it had no logit at all: the gradient of a count of zero is zero, not its share."""
    logits = torch.tensor([[1.0, 2.0, 5.0]], requires_grad=True)
    balanced = balanced_logits(logits, torch.tensor([3.0, 1.0, 0.0]), 1.0)
    loss = F.cross_entropy(balanced, torch.tensor([0]))
    (gradient,) = torch.autograd.grad(loss, logits)
    odds = np.exp(2.0) / (3 * np.exp(1.0))
    assert float(loss.detach()) == pytest.approx(np.log1p(odds), abs=1e-6)
    share = odds / (1 + odds)
    assert gradient[0].tolist() == pytest.approx([-share, share, 0.0], abs=1e-6)


def test_a_label_of_a_class_a_client_lacks_gives_a_finite_loss_and_gradient() -> None:
    model, batch = trained_heads(), batch_of(random_batch(4).x, torch.tensor([2, 2, 0, 1]))
    client = {"class_counts": torch.tensor([3.0, 1.0, 0.0])}
    objective = GenericAndPersonal()
    gradients, loss, _ = objective.gradient(model, copied(model.state_dict()), {}, batch, client)
    assert bool(torch.isfinite(loss))
    assert all(bool(torch.isfinite(g).all()) for g in gradients.values())


def test_every_parameter_follows_one_of_the_two_losses_alone() -> None:
    """Against autograd on each loss by itself: h's loss moves h only, g's loss moves the rest."""
    model, batch = trained_heads(), random_batch(8)
    counts = torch.tensor([2.0, 5.0, 1.0])
    gradients, _, _ = GenericAndPersonal().gradient(
        model, copied(model.state_dict()), {}, batch, {"class_counts": counts}
    )
    features = model.body(batch.x)
    generic = F.cross_entropy(model.head(features) + counts.log(), batch.y)
    both = model.head(features) + model.personal(features)
    personal = F.cross_entropy(both, batch.y)
    named = dict(model.named_parameters())
    for name, parameter in named.items():
        followed = personal if name.startswith("personal") else generic
        (expected,) = torch.autograd.grad(followed, parameter, retain_graph=True)
        torch.testing.assert_close(gradients[name], expected, rtol=1e-5, atol=1e-6)
    # The stop is needed: without it h's loss would reach the body.
    (leak,) = torch.autograd.grad(personal, named["body.0.weight"])
    assert leak.abs().max() > 1e-2


def test_scores_are_those_of_both_heads_and_of_the_generic_one() -> None:
    model, batch = trained_heads().eval(), random_batch(50)
    scores = GenericAndPersonal().scores(Bound(model, model.state_dict()), batch)
    logits, generic = model(batch.x), model.head(model.body(batch.x))
    expected = F.cross_entropy(logits, batch.y, reduction="none")
    torch.testing.assert_close(scores["loss"], expected)
    assert torch.equal(scores["accuracy"], (logits.argmax(1) == batch.y).float())
    assert torch.equal(scores["generic_accuracy"], (generic.argmax(1) == batch.y).float())
    assert not torch.equal(scores["accuracy"], scores["generic_accuracy"])


def test_an_unseen_client_of_fedrod_predicts_with_the_generic_head_alone() -> None:
    result = standard_run("fedrod")
    holdings, federation = result.holdings, result.holdings.federation
    (unseen,) = federation.unseen
    model = toy_model().eval()
    model.load_state_dict(result.shared)
    extended = holdings.plan.evaluation.here()
    extended.load_state_dict(result.model_of(unseen.name))
    x, y = federation.x[unseen.test], federation.y[unseen.test]
    with torch.no_grad():
        assert torch.equal(extended(x), model(x))
        loss = float(F.cross_entropy(model(x), y))
    key = (3, "personal", "unseen", unseen.name, "none", "test")
    assert result.scores[(*key, "loss")] == pytest.approx(loss, abs=1e-6)
    assert result.scores[(*key, "accuracy")] == result.scores[(*key, "generic_accuracy")]
    seen = result.model_of("c0")
    assert seen["personal.weight"].abs().max() > 1e-3


def test_fedrod_trains_where_a_client_lacks_classes() -> None:
    federation = toy_federation()
    rows = federation.clients[2].train
    one_class = rows[federation.y.numpy()[rows] == federation.y.numpy()[rows[0]]]
    clients = (federation.clients[0], Client("narrow", one_class))
    result = run(make_holdings(find("fedrod").recipe(), federation.with_data(clients=clients)), 2)
    assert [record.failures for record in result.journal.records] == [{}, {}]


@pytest.mark.parametrize("width", [2, 3, 4, 5, 8, 9])
def test_halves_are_every_other_sample_and_those_between(width: int) -> None:
    batch = random_batch(width)
    first, second = halves(batch)
    for name in ("x", "y", "mask", "weight"):
        whole = getattr(batch, name)
        assert torch.equal(getattr(first, name), whole[torch.arange(0, width, 2)])
        assert torch.equal(getattr(second, name), whole[torch.arange(1, width, 2)])


@pytest.mark.parametrize("width", [1, 2, 3])
def test_a_narrow_batch_is_used_whole_where_a_half_needs_two_samples(width: int) -> None:
    batch = random_batch(width)
    assert halves(batch, least=2) == (batch, batch)
    assert [len(half.x) for half in halves(random_batch(5), least=2)] == [3, 2]


@pytest.mark.parametrize("width", [2, 3, 4, 7, 8])
def test_one_real_sample_serves_for_both_halves(width: int) -> None:
    batch = random_batch(width, real=1)
    for half in halves(batch):
        real = half.mask > 0
        assert torch.equal(half.x[real], batch.x[:1])
        assert torch.equal(half.y[real], batch.y[:1])
        assert torch.equal(half.weight, half.mask)


def step_ahead(model: nn.Module, batch: Batch, alpha: float) -> tuple[Tensors, Tensor, Tensors]:
    state = copied(model.state_dict())
    names = {name for name, _ in model.named_parameters()}
    trained = {n: t for n, t in state.items() if n in names}
    fixed = {n: t for n, t in state.items() if n not in names}
    return OneStepAhead(alpha).gradient(model.train(), trained, fixed, batch, {})


def plain_step_ahead(
    model: nn.Module, batch: Batch, alpha: float, first: list[int], second: list[int]
) -> tuple[Tensors, Tensor]:
    """The same with the model's own parameters moved and plain autograd."""
    parameters = list(model.train().parameters())
    loss = F.cross_entropy(model(batch.x[first]), batch.y[first])
    with torch.no_grad():
        for p, g in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            p.sub_(alpha * g)
    loss = F.cross_entropy(model(batch.x[second]), batch.y[second])
    names = [name for name, _ in model.named_parameters()]
    return dict(zip(names, torch.autograd.grad(loss, parameters), strict=True)), loss


@pytest.mark.parametrize(
    ("kind", "width", "real", "first", "second"),
    [
        ("mlp", 8, 8, [0, 2, 4, 6], [1, 3, 5, 7]),
        ("mlp", 7, 7, [0, 2, 4, 6], [1, 3, 5]),
        ("mlp", 8, 5, [0, 2, 4], [1, 3]),
        ("mlp", 9, 3, [0, 2], [1]),
        ("mlp", 3, 3, [0, 2], [1]),
        ("mlp", 8, 1, [0], [0]),
        ("mlp", 5, 1, [0], [0]),
        ("mlp", 1, 1, [0], [0]),
        ("batch-norm", 8, 8, [0, 2, 4, 6], [1, 3, 5, 7]),
        ("batch-norm", 5, 5, [0, 2, 4], [1, 3]),
        ("batch-norm", 3, 3, [0, 1, 2], [0, 1, 2]),
        ("batch-norm", 2, 2, [0, 1], [0, 1]),
    ],
)
def test_the_gradient_is_that_of_the_second_half_one_step_ahead(
    kind: str, width: int, real: int, first: list[int], second: list[int]
) -> None:
    batch = random_batch(width, real)
    gradients, loss, buffers = step_ahead(toy_model(kind), batch, 0.3)
    plain = toy_model(kind)
    expected, expected_loss = plain_step_ahead(plain, batch, 0.3, first, second)
    torch.testing.assert_close(gradients, expected, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(loss, expected_loss)
    torch.testing.assert_close(buffers, dict(plain.named_buffers()))


def test_per_fedavg_refuses_a_negative_rate_and_fedrep_a_number_of_epochs_below_one() -> None:
    with pytest.raises(
        ConfigError,
        match=r"alpha of method 'per-fedavg' must be a number of at least 0, not -0\.1\.",
    ):
        find("per-fedavg").recipe(alpha=-0.1)
    with pytest.raises(
        ConfigError, match="gamma of method 'fedrod' must be a number of at least 0"
    ):
        find("fedrod").recipe(gamma=-1.0)
    for knob in ("head_epochs", "body_epochs"):
        with pytest.raises(
            ConfigError, match=f"{knob} of method 'fedrep' must be a whole number of at least 1"
        ):
            find("fedrep").recipe(**{knob: 0})
