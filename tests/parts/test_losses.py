from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.special import huber
from sklearn.metrics import log_loss, mean_pinball_loss
from torch.nn import functional as F

from fedskew.errors import ConfigError
from fedskew.parts.losses import LOSSES, Huber, Loss, Pinball, slopes_of, task_losses

RNG = np.random.default_rng(0)
SAID, TRUE = RNG.normal(size=(50, 1)), RNG.normal(size=50)
OUTPUTS, TARGETS = torch.from_numpy(SAID), torch.from_numpy(TRUE)
BY_NAME: dict[str, Loss] = {name: entry.make() for name, entry in LOSSES.items()}


def test_losses_of_numbers_are_those_of_scipy_and_scikit_learn() -> None:
    errors = SAID[:, 0] - TRUE
    expected = {
        "squared": errors**2,
        "absolute": abs(errors),
        "huber": huber(1.0, errors),
        "pinball": abs(errors) / 2,
    }
    for name, loss in BY_NAME.items():
        np.testing.assert_allclose(task_losses(OUTPUTS, TARGETS, loss), expected[name], rtol=1e-12)
    asked = task_losses(OUTPUTS, TARGETS, Pinball(0.9)).mean()
    assert float(asked) == pytest.approx(mean_pinball_loss(TRUE, SAID[:, 0], alpha=0.9))
    far = task_losses(OUTPUTS, TARGETS, Huber(0.3))
    np.testing.assert_allclose(far, huber(0.3, errors), rtol=1e-12)


@pytest.mark.parametrize("quantile", [0.1, 0.5, 0.9])
def test_the_best_constant_for_the_pinball_loss_is_the_quantile(quantile: float) -> None:
    many = torch.from_numpy(np.random.default_rng(1).normal(size=2001))

    def mean(constant: float) -> float:
        return float(Pinball(quantile).of(torch.full_like(many, constant), many).mean())

    found = minimize_scalar(mean, bounds=(-3, 3), method="bounded", options={"xatol": 1e-6}).x
    assert found == pytest.approx(float(many.quantile(quantile)), abs=5e-3)


def test_the_loss_of_several_labels_is_the_mean_of_their_log_losses() -> None:
    logits = torch.from_numpy(RNG.normal(size=(6, 3)))
    y = torch.tensor([[1, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0], [1, 0, 0], [0, 0, 1]]).double()
    found = task_losses(logits, y)
    columns = [
        log_loss(y[:, c], logits[:, c].sigmoid(), labels=[0, 1], normalize=True) for c in range(3)
    ]
    assert float(found.mean()) == pytest.approx(float(np.mean(columns)))
    assert found.shape == (6,)


def test_the_loss_of_classes_is_the_cross_entropy_to_the_bit() -> None:
    logits, y = torch.randn(9, 4), torch.arange(9) % 4
    assert torch.equal(task_losses(logits, y), F.cross_entropy(logits, y, reduction="none"))


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_slopes_of_numbers_are_the_derivative_of_the_loss_by_a_common_factor(name: str) -> None:
    loss, step = BY_NAME[name], 1e-6
    above, below = (task_losses(OUTPUTS * (1 + sign * step), TARGETS, loss) for sign in (1.0, -1.0))
    found = slopes_of(OUTPUTS, TARGETS, loss)
    torch.testing.assert_close(found, (above - below) / (2 * step), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("several", [False, True])
def test_slopes_of_classes_and_labels_are_too(several: bool) -> None:
    logits = torch.randn(9, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    y = (logits.flip(0) > 0).double() if several else torch.arange(9) % 4
    step = 1e-6
    above, below = (task_losses(logits * (1 + sign * step), y) for sign in (1.0, -1.0))
    expected = (above - below) / (2 * step)
    torch.testing.assert_close(slopes_of(logits, y), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "knobs", "match"),
    [
        ("pinball", {"quantile": 1.5}, "quantile of loss 'pinball' must be a number above 0 and"),
        ("huber", {"delta": 0.0}, "delta of loss 'huber' must be a number above 0"),
        ("squared", {"delta": 1.0}, "unknown knob 'delta'"),
    ],
)
def test_knobs_out_of_range_are_refused(name: str, knobs: dict[str, float], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        LOSSES.find(name).make(**knobs)
