"""Masked, look-ahead and reweighted gradients against plain loops of their definitions."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from helpers import assert_close, toy_federation, toy_model
from torch import Tensor, nn
from torch.nn import functional as F

from fedskew.engine.graph import TracedStep, for_each_client
from fedskew.engine.torch_private import leaves
from fedskew.errors import ConfigError
from fedskew.federate.holdings import roster_of
from fedskew.models import seeded
from fedskew.parts.agreement import SHARES, AndMask, GroupDro, Mldg, SandMask, successors
from fedskew.parts.invariance import EnvironmentErm
from fedskew.parts.objective import Batch
from fedskew.types import Tensors

PLACES, FEATURES, CLASSES = 5, 6, 3
MODULE = toy_model().double()
LR = 0.3

PRESENCE = {
    "three": [5, 5, 5],
    "short": [5, 4, 1],
    "absent": [5, 0, 5],
    "one": [0, 4, 0],
    "one of one": [4],
}
"""By name, how many of an environment's places hold real samples."""
every_presence = pytest.mark.parametrize("presence", PRESENCE)


def batch_of(counts: list[int], shape: tuple[int, ...] = (FEATURES,), seed: int = 0) -> Batch:
    """Environments whose samples differ; padding lies where it does most harm, far away."""
    generator = torch.Generator().manual_seed(seed)
    total = len(counts) * PLACES
    mask = torch.cat([(torch.arange(PLACES) < count).double() for count in counts])
    wide = (-1, *[1] * len(shape))
    x = torch.randn(total, *shape, generator=generator, dtype=torch.float64)
    x = x + (torch.arange(total) // PLACES * 0.3).reshape(wide)
    return Batch(
        x=torch.where(mask.reshape(wide) > 0, x, 50.0 * x),
        y=torch.randint(CLASSES, (total,), generator=generator),
        mask=mask,
        weight=(torch.rand(total, generator=generator, dtype=torch.float64) + 0.5) * mask,
        noise={"order": torch.randn(total, generator=generator, dtype=torch.float64)},
        environments=len(counts),
    )


def client_of(batch: Batch, adaptive: bool = False) -> dict[str, Tensor]:
    return {
        "lr": torch.tensor(LR, dtype=torch.float64),
        "adaptive": torch.tensor(float(adaptive)),
        SHARES: GroupDro().memory(batch.environments, {})[SHARES].double(),
    }


Part = tuple[Tensor, Tensor, Tensor]


def parts_of(batch: Batch) -> dict[int, Part]:
    """By environment that is there, its real samples, their labels and weights."""
    found = {}
    for e in range(batch.environments):
        own = slice(e * PLACES, (e + 1) * PLACES)
        real = batch.mask[own] > 0
        if real.any():
            found[e] = (batch.x[own][real], batch.y[own][real], batch.weight[own][real])
    return found


def risk(module: nn.Module, part: Part) -> Tensor:
    x, y, weight = part
    return (F.cross_entropy(module(x), y, reduction="none") * weight).mean()


def gradient_of(module: nn.Module, part: Part) -> Tensors:
    named = dict(module.named_parameters())
    gradients = torch.autograd.grad(risk(module, part), list(named.values()))
    return dict(zip(named, gradients, strict=True))


def state(module: nn.Module) -> Tensors:
    return {name: p.detach() for name, p in module.named_parameters()}


def followed(
    objective: EnvironmentErm, batch: Batch, module: nn.Module = MODULE, adaptive: bool = False
) -> tuple[Tensors, Tensor]:
    gradients, loss, _ = objective.gradient(
        module, state(module), {}, batch, client_of(batch, adaptive)
    )
    return gradients, loss


def mean_risk(batch: Batch) -> Tensor:
    return torch.stack([risk(MODULE, part).detach() for part in parts_of(batch).values()]).mean()


def and_mask(gradients: Tensor, tau: float) -> Tensor:
    return (gradients.sign().mean(dim=0).abs() >= tau).double()


def sand_mask(gradients: Tensor, tau: float, k: float) -> Tensor:
    variance = gradients.var(dim=0) if len(gradients) > 1 else gradients[0] * 0 + 1e-17
    agreed = gradients.sign().mean(dim=0).abs() - tau
    return torch.tanh(k / variance * agreed).clamp(min=0.0)


MASKS: list[tuple[AndMask | SandMask, Callable[[Tensor], Tensor]]] = [
    (AndMask(), lambda gradients: and_mask(gradients, 1.0)),
    (AndMask(0.6), lambda gradients: and_mask(gradients, 0.6)),
    (SandMask(), lambda gradients: sand_mask(gradients, 0.5, 10.0)),
    (SandMask(0.2, 0.01), lambda gradients: sand_mask(gradients, 0.2, 0.01)),
]


@every_presence
@pytest.mark.parametrize(("objective", "mask"), MASKS)
def test_masked_gradients_are_those_of_the_definition(
    objective: AndMask | SandMask, mask: Callable[[Tensor], Tensor], presence: str
) -> None:
    batch = batch_of(PRESENCE[presence])
    by_environment = [gradient_of(MODULE, part) for part in parts_of(batch).values()]
    expected, spans = {}, []
    for name in state(MODULE):
        stacked = torch.stack([gradient[name] for gradient in by_environment])
        kept = mask(stacked)
        spans.append(float(kept.max() - kept.min()))
        expected[name] = kept * stacked.mean(dim=0) / (1e-10 + kept.mean())

    gradients, loss = followed(objective, batch)
    assert_close(gradients, expected, 1e-9)
    torch.testing.assert_close(loss, mean_risk(batch))
    # Otherwise masks were not put to the test.
    assert (max(spans) > 0.5) == (len(by_environment) > 1)


class Table(nn.Module):
    """One logit of two classes is a number for each input: gradients can be written by hand."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.body = nn.Identity()
        self.head = nn.Linear(inputs, 1, bias=False).double()
        nn.init.zeros_(self.head.weight)

    def forward(self, x: Tensor) -> Tensor:
        logit = self.head(self.body(x))
        return torch.cat([logit, torch.zeros_like(logit)], dim=1)


def table_batch(rows: list[list[float]]) -> Batch:
    """One sample an environment, whose gradient is minus half of it."""
    x = torch.tensor(rows, dtype=torch.float64)
    ones = torch.ones(len(rows), dtype=torch.float64)
    y = torch.zeros(len(rows), dtype=torch.int64)
    return Batch(x, y, ones, ones, environments=len(rows))


def test_by_hand_only_what_all_agree_on_is_kept_and_scaled_up() -> None:
    """Gradients (-1, -1, 0, -2) and (-3, 1, -1, -2): the first and last agree, one half of all;
    a zero agrees with nobody."""
    batch = table_batch([[2.0, 2.0, 0.0, 4.0], [6.0, -2.0, 2.0, 4.0]])
    gradients, _ = followed(AndMask(), batch, Table(4))

    assert gradients["head.weight"][0].tolist() == pytest.approx([-4.0, 0.0, 0.0, -4.0])


@pytest.mark.parametrize(("tau", "kept"), [(1 / 3, True), (0.34, False)])
def test_a_threshold_that_is_met_exactly_keeps(tau: float, kept: bool) -> None:
    """Two against one: |1 + 1 - 1|/3 is a third, whatever float32 makes of that."""
    batch = table_batch([[2.0, 2.0], [2.0, 2.0], [-2.0, 2.0]])
    gradients, _ = followed(AndMask(tau), batch, Table(2))

    assert (float(gradients["head.weight"][0, 0]) != 0) == kept
    assert float(followed(SandMask(1 / 3), batch, Table(2))[0]["head.weight"][0, 0]) == 0.0


def test_by_hand_the_smooth_mask_weighs_agreement_by_variance() -> None:
    """Gradients (-1, -2) and (-3, -2) have variances 2 and 0: tanh(0.5/2·k) and 1."""
    batch = table_batch([[2.0, 4.0], [6.0, 4.0]])
    gradients, _ = followed(SandMask(0.5, 2.0), batch, Table(2))
    soft = np.tanh(0.5)

    expected = np.array([-2.0 * soft, -2.0]) / ((soft + 1) / 2)
    assert gradients["head.weight"][0].tolist() == pytest.approx(expected.tolist())


@pytest.mark.parametrize("objective", [AndMask(), AndMask(0.1), SandMask(), SandMask(0.9)])
@pytest.mark.parametrize("presence", ["one", "one of one"])
def test_with_one_environment_masks_keep_every_gradient_there_is(
    objective: AndMask | SandMask, presence: str
) -> None:
    batch = batch_of(PRESENCE[presence])
    expected, risk = followed(EnvironmentErm(), batch)
    gradients, loss = followed(objective, batch)

    torch.testing.assert_close(loss, risk)
    assert_close(gradients, expected, 1e-9)


def test_with_one_environment_zeros_are_left_out_of_the_scale() -> None:
    """One input is always 0: of three gradients two remain, so they grow by 3/2."""
    gradients, _ = followed(AndMask(), table_batch([[2.0, 0.0, -4.0]]), Table(3))

    assert gradients["head.weight"][0].tolist() == pytest.approx([-1.5, 0.0, 3.0])


def circle_of(batch: Batch) -> list[tuple[int, int]]:
    """Pairs of neighbours in the order of each environment's draw, the last one with the first."""
    there = sorted(parts_of(batch), key=lambda e: float(batch.noise["order"][e * PLACES]))
    return list(zip(there, [*there[1:], there[0]], strict=True))


@every_presence
@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("beta", [1.0, 0.4])
def test_looking_ahead_takes_a_real_step_of_the_optimiser(
    beta: float, adaptive: bool, presence: str
) -> None:
    batch = batch_of(PRESENCE[presence])
    parts, pairs = parts_of(batch), circle_of(batch)
    expected = {name: torch.zeros_like(t) for name, t in state(MODULE).items()}
    objective = 0.0
    for i, j in pairs:
        clone = copy.deepcopy(MODULE)
        kind: Any = torch.optim.Adam if adaptive else torch.optim.SGD
        optimiser = kind(clone.parameters(), lr=LR)
        objective += float(risk(clone, parts[i]).detach())
        here = gradient_of(clone, parts[i])
        for name, parameter in clone.named_parameters():
            parameter.grad = here[name]
        optimiser.step()
        objective += beta * float(risk(clone, parts[j]).detach())
        there = gradient_of(clone, parts[j])
        for name in expected:
            expected[name] += (here[name] + beta * there[name]) / len(pairs)

    gradients, loss = followed(Mldg(beta), batch, adaptive=adaptive)
    assert_close(gradients, expected, 1e-7)
    assert float(loss) == pytest.approx(objective / len(pairs), rel=1e-7)


def test_without_a_look_ahead_it_is_the_mean_over_environments() -> None:
    for presence in ("three", "absent", "one"):
        batch = batch_of(PRESENCE[presence])
        expected, risk = followed(EnvironmentErm(), batch)
        gradients, loss = followed(Mldg(0.0), batch)
        torch.testing.assert_close(loss, risk)
        assert_close(gradients, expected, 1e-9)


def test_with_one_environment_the_look_ahead_is_at_the_same_samples() -> None:
    batch = batch_of(PRESENCE["one"])
    (part,) = parts_of(batch).values()
    here = gradient_of(MODULE, part)
    ahead = copy.deepcopy(MODULE)
    with torch.no_grad():
        for name, parameter in ahead.named_parameters():
            parameter.sub_(LR * here[name])
    there = gradient_of(ahead, part)

    assert_close(followed(Mldg(), batch)[0], {n: here[n] + there[n] for n in here}, 1e-9)


def pairs_by_draw(counts: list[int], seed: int) -> list[int]:
    return [int(e) for e in successors(batch_of(counts, seed=seed))]


def test_environments_that_are_there_stand_in_one_random_circle() -> None:
    """Of four there are six circles; each comes up in a sixth of 1200 draws, within four standard
    deviations (52)."""
    seen: Counter[tuple[int, ...]] = Counter()
    for seed in range(1200):
        following = pairs_by_draw([5, 0, 1, 5, 5], seed)
        walk = [0]
        while following[walk[-1]] != 0:
            walk.append(following[walk[-1]])
        assert sorted(walk) == [0, 2, 3, 4]
        seen[tuple(walk)] += 1

    assert len(seen) == 6
    assert all(abs(count - 200) < 52 for count in seen.values())


def test_an_environment_alone_follows_itself() -> None:
    assert pairs_by_draw([0, 0, 3], 0)[2] == 2
    assert pairs_by_draw([3], 0) == [0]


def test_shares_grow_with_the_risk_and_are_remembered() -> None:
    """Three steps of q_e <- q_e·exp(η·L_e)/Σ in numpy; the absent environment has no share."""
    objective, eta = GroupDro(0.8), 0.8
    memory = objective.memory(4, {})
    assert {name: t.tolist() for name, t in memory.items()} == {SHARES: [0.0] * 4}
    shares = np.ones(3) / 3
    for seed in range(3):
        batch = batch_of([5, 5, 0, 3], seed=seed)
        parts = parts_of(batch)
        risks = np.array([float(risk(MODULE, part).detach()) for part in parts.values()])
        shares = shares * np.exp(eta * risks)
        shares /= shares.sum()
        client = {SHARES: memory[SHARES].double()}
        gradients, loss, memory = objective.gradient(MODULE, state(MODULE), {}, batch, client)

        assert memory.keys() == {SHARES}
        np.testing.assert_allclose(memory[SHARES].exp()[[0, 1, 3]], shares, rtol=1e-9)
        assert float(loss) == pytest.approx(float(shares @ risks), rel=1e-9)
        found = [gradient_of(MODULE, part) for part in parts.values()]
        expected = {
            name: sum((q * g[name] for q, g in zip(shares, found, strict=True)), torch.zeros(()))
            for name in gradients
        }
        assert_close(gradients, expected, 1e-9)


@pytest.mark.parametrize("presence", ["three", "absent", "one", "one of one"])
def test_shares_that_never_change_are_the_mean_over_environments(presence: str) -> None:
    batch = batch_of(PRESENCE[presence])
    expected, risk = followed(EnvironmentErm(), batch)
    gradients, loss = followed(GroupDro(0.0 if "one" not in presence else 5.0), batch)

    torch.testing.assert_close(loss, risk)
    assert_close(gradients, expected, 1e-9)


OBJECTIVES = [AndMask(), SandMask(), Mldg(), GroupDro(0.5)]
every_objective = pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda o: type(o).__name__)


@every_objective
def test_what_padding_holds_does_not_matter(objective: EnvironmentErm) -> None:
    batch = batch_of([5, 0, 3])
    pad = batch.mask == 0
    other = replace(
        batch, x=torch.where(pad[:, None], -3.0, batch.x), y=torch.where(pad, 2 - batch.y, batch.y)
    )

    assert_close(followed(objective, batch)[0], followed(objective, other)[0], 1e-12)


@every_objective
@pytest.mark.parametrize("counts", [[0, 0, 0], [1, 0, 0], [1, 1, 1], [0]])
@pytest.mark.parametrize("adaptive", [False, True])
def test_gradients_are_finite_whoever_is_missing(
    objective: EnvironmentErm, counts: list[int], adaptive: bool
) -> None:
    batch = batch_of(counts)
    gradients, loss, after = objective.gradient(
        MODULE, state(MODULE), {}, batch, client_of(batch, adaptive)
    )

    for tensor in (*gradients.values(), loss, *after.values()):
        assert bool(torch.isfinite(tensor).all())


def test_layers_without_a_gradient_stay_without_one() -> None:
    """A head of zeros passes nothing on: no mask may divide by a variance or a share of 0."""
    module = toy_model().double()
    with torch.no_grad():
        module.get_parameter("head.weight").zero_()
    for objective in (AndMask(), SandMask(), SandMask(0.0)):
        gradients, _ = followed(objective, batch_of([5, 5, 5]), module)
        assert bool((gradients["body.0.weight"] == 0).all())
        assert bool((gradients["head.bias"] != 0).any())


@pytest.mark.parametrize(
    ("objective", "convolves"), [*((o, False) for o in OBJECTIVES), (Mldg(0.5), True)]
)
def test_clients_in_a_traced_stack_train_as_each_would_alone(
    objective: EnvironmentErm, convolves: bool
) -> None:
    """With other environments missing, other optimisers and other memories."""
    shape = (1, 4, 4) if convolves else (FEATURES,)
    module = seeded("cnn-groupnorm", shape, CLASSES, seed=0).double() if convolves else MODULE
    batches = [
        batch_of(counts, shape, seed)
        for seed, counts in enumerate(([5, 5, 5], [5, 0, 2], [0, 0, 4]))
    ]
    names = ("x", "y", "mask", "weight")
    stacked: dict[str, Any] = {n: torch.stack([getattr(b, n) for b in batches]) for n in names}
    stacked["noise"] = {"order": torch.stack([batch.noise["order"] for batch in batches])}
    trained = {
        n: torch.stack([(1 + 0.1 * k) * t for k in range(3)]) for n, t in state(module).items()
    }
    context = {
        "lr": torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64),
        "adaptive": torch.tensor([0.0, 1.0, 1.0]),
        SHARES: torch.arange(9.0, dtype=torch.float64).reshape(3, 3) / 10,
    }

    def step(trained: Tensors, client: Tensors, batch: dict[str, Any]) -> list[Tensor]:
        built = Batch(**batch, environments=3)
        gradients, loss, after = objective.gradient(module, trained, {}, built, client)
        return [*(gradients[n] for n in trained), loss, *after.values()]

    trees = (trained, context, stacked)
    run, _ = TracedStep(for_each_client(step)).ready("one shape", lambda: trees)
    with torch.no_grad():
        found = run(*leaves(*trees))
    for k, batch in enumerate(batches):
        own = {n: t[k] for n, t in trained.items()}
        mine = {n: t[k] for n, t in context.items()}
        gradients, loss, after = objective.gradient(module, own, {}, batch, mine)
        alone = [*(gradients[n] for n in trained), loss, *after.values()]
        for ours, theirs in zip(found, alone, strict=True):
            torch.testing.assert_close(ours[k], theirs, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("objective", [AndMask(), SandMask(), Mldg()])
def test_a_model_with_batch_statistics_is_refused(objective: EnvironmentErm) -> None:
    objective.check(toy_model(), roster_of(toy_federation()), 5)
    with pytest.raises(ConfigError, match="BatchNorm"):
        objective.check(toy_model("batch-norm"), roster_of(toy_federation()), 5)


def test_shares_of_a_model_with_batch_statistics_move_its_buffers() -> None:
    """GroupDRO passes everything through at once, so BatchNorm sees one batch."""
    module = toy_model("batch-norm").double().train()
    batch = batch_of([5, 5, 5])
    fixed = dict(module.named_buffers())
    _, _, after = GroupDro().gradient(module, state(module), fixed, batch, client_of(batch))
    hidden = batch.x @ module.get_parameter("body.0.weight").T

    torch.testing.assert_close(after["body.1.running_mean"], 0.1 * hidden.mean(dim=0).detach())
    assert int(fixed["body.1.num_batches_tracked"]) == 0


@pytest.mark.parametrize(
    ("make", "value", "says"),
    [
        (AndMask, 0.0, "tau must be above 0 and at most 1"),
        (AndMask, 1.1, "tau must be above 0 and at most 1"),
        (SandMask, 1.0, "tau must be below 1, not 1.0: .* nothing would ever be learned"),
        (SandMask, -0.1, "tau must not be negative"),
        (lambda k: SandMask(0.5, k), 0.0, "k must be above 0"),
        (Mldg, -1.0, "beta must not be negative"),
        (GroupDro, float("nan"), "eta must not be negative"),
    ],
)
def test_knobs_out_of_range_are_refused(
    make: Callable[[float], EnvironmentErm], value: float, says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        make(value)


@pytest.mark.parametrize(
    ("objective", "says"),
    [
        (AndMask(), "and-mask is empirical risk, rescaled"),
        (SandMask(), "sand-mask is empirical risk, rescaled"),
        (Mldg(), "mldg is empirical risk with a doubled gradient"),
        (GroupDro(), "groupdro is empirical risk"),
    ],
)
def test_a_run_says_what_is_left_of_it_with_one_environment(
    objective: EnvironmentErm, says: str
) -> None:
    (remark,) = objective.remarks(roster_of(toy_federation().with_data(environment=None)))

    assert remark.startswith("4 of 4 clients have one environment only: for them ")
    assert says in remark
