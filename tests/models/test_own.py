"""Plain modules of users: where their head is found, and what is refused."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedskew.errors import ConfigError
from fedskew.models import Classifier, FoundHead, OnePiece, build, seeded, tells_classes

GREY = (1, 12, 12)
Factory = Callable[[tuple[int, ...], int], object]


class Net(nn.Module):
    """A convolutional network as tutorials write it."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.drop = nn.Dropout(0.5)
        self.fc1 = nn.Linear(400, 16)
        self.fc2 = nn.Linear(16, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv(x)).flatten(1)
        logits: Tensor = self.fc2(self.drop(F.relu(self.fc1(x))))
        return logits


class Encoded(nn.Module):
    """Its last layer lies inside a part, its first part has the name of a VAE's."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(144, 5))
        self.top = nn.Sequential(nn.ReLU(), nn.Linear(5, classes))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.top(self.encoder(x))
        return logits


class LogSoftmax(Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).log_softmax(dim=1)


class Softmax(Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).softmax(dim=1)


class Looks(Net):
    """Its forward looks at the layer that would be taken out."""

    def forward(self, x: Tensor) -> Tensor:
        assert self.fc2.in_features == 16
        return super().forward(x)


class Twice(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.first = nn.Linear(144, classes)
        self.again = nn.Linear(classes, classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.again(self.again(self.first(x.flatten(1))))
        return logits


class Tied(nn.Module):
    """The last layer has the weights of the one before."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.first = nn.Linear(144, classes)
        self.middle = nn.Linear(classes, classes)
        self.last = nn.Linear(classes, classes)
        self.last.weight = self.middle.weight

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(self.middle(self.first(x.flatten(1))))
        return logits


class Scaled(Classifier):
    """A head on a body, but with something between them."""

    def __init__(self, classes: int) -> None:
        super().__init__(nn.Flatten(), nn.Linear(144, classes))
        self.scale = nn.Parameter(torch.full((), 2.0))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.scale * self.body(x))
        return logits


def sequence(classes: int) -> nn.Module:
    named = {
        "flat": nn.Flatten(),
        "hidden": nn.Linear(144, 8),
        "bend": nn.ReLU(),
        "out": nn.Linear(8, classes),
    }
    return nn.Sequential(OrderedDict(named))


def convolutions(classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, classes, 3), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )  # fmt: skip


def drawn_elsewhere(shape: tuple[int, ...], classes: int) -> nn.Module:
    made = Net(classes)
    nn.init.constant_(made.fc2.bias, float(np.random.default_rng().random()))
    return made


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Callable[[Factory], nn.Module]:
    """Builds what a factory of a user's own module returns."""
    module = ModuleType("their_nets")
    monkeypatch.setitem(sys.modules, "their_nets", module)

    def build_it(factory: Factory) -> nn.Module:
        vars(module)["net"] = factory
        return build("their_nets:net", GREY, 3)

    return build_it


@pytest.mark.parametrize(
    ("factory", "head", "place"),
    [
        (Net, ["head.weight", "head.bias"], "fc2"),
        (Encoded, ["head.weight", "head.bias"], "top.1"),
        (Scaled, ["head.weight", "head.bias"], "head"),
        (sequence, ["head.weight", "head.bias"], "out"),
        (convolutions, ["head.2.weight", "head.2.bias"], None),
    ],
)
def test_the_layer_whose_output_is_the_models_own_is_its_head(
    made: Callable[[Factory], nn.Module],
    factory: Callable[[int], nn.Module],
    head: list[str],
    place: str | None,
) -> None:
    torch.manual_seed(3)
    plain = factory(3).eval()
    torch.manual_seed(3)
    found = made(lambda shape, classes: factory(classes))
    assert isinstance(found, FoundHead)
    assert found.training
    assert found.place == place
    assert [name for name, _ in found.named_parameters() if name.startswith("head.")] == head
    assert tells_classes(found)
    x = torch.randn(5, *GREY)
    assert torch.equal(found.eval()(x), plain(x))
    assert torch.equal(found.head(found.body(x)), plain(x))
    own = found.own()
    assert type(own) is type(plain)
    assert own.state_dict().keys() == plain.state_dict().keys()
    assert torch.equal(own.eval()(x), plain(x))


@pytest.mark.parametrize("factory", [LogSoftmax, Looks, Twice])
def test_a_module_without_such_a_layer_is_one_piece_and_works_as_it_is(
    made: Callable[[Factory], nn.Module], factory: Callable[[int], nn.Module]
) -> None:
    torch.manual_seed(3)
    plain = factory(3).eval()
    torch.manual_seed(3)
    found = made(lambda shape, classes: factory(classes))
    assert isinstance(found, OnePiece)
    assert tells_classes(found)
    assert {name.partition(".")[0] for name, _ in found.named_parameters()} == {"whole"}
    x = torch.randn(5, *GREY)
    assert torch.equal(found.eval()(x), plain(x))
    assert torch.equal(found.own().eval()(x), plain(x))


def test_a_module_of_features_may_be_one_linear_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("their_nets")
    vars(module)["net"] = lambda shape, classes: nn.Linear(*shape, classes)
    monkeypatch.setitem(sys.modules, "their_nets", module)
    found = build("their_nets:net", (6,), 3)
    assert isinstance(found, FoundHead)
    assert [name for name, _ in found.named_parameters()] == ["head.weight", "head.bias"]
    assert isinstance(found.own(), nn.Linear)


def test_looking_for_the_head_draws_nothing_and_moves_no_statistics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = ModuleType("their_nets")
    vars(module)["net"] = lambda shape, classes: nn.Sequential(
        nn.Flatten(), nn.Linear(144, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, classes)
    )
    monkeypatch.setitem(sys.modules, "their_nets", module)
    found = seeded("their_nets:net", GREY, 3, seed=5)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        plain = vars(module)["net"](GREY, 3)
        drawn = torch.rand(3)
        torch.manual_seed(5)
        build("their_nets:net", GREY, 3)
        assert torch.equal(torch.rand(3), drawn)
    assert all(
        torch.equal(ours, theirs)
        for ours, theirs in zip(
            found.state_dict().values(), plain.state_dict().values(), strict=True
        )
    )


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (lambda shape, classes: Net, "returned the class Net: return an instance of it."),
        (lambda shape, classes: None, "must return a torch.nn.Module, not NoneType."),
        (
            lambda shape, classes: Tied(classes),
            "has one weight under two names, 'middle.weight' and",
        ),
        (lambda shape, classes: nn.Flatten(), "has no parameters to train."),
        (lambda shape, classes: Softmax(classes), "answers with probabilities: leave its softmax"),
        (
            lambda shape, classes: Net(classes + 1),
            "answers 2 samples with a tensor of shape [2, 4]: it must be [2, 3], 3 outputs a",
        ),
        (
            lambda shape, classes: Classifier(nn.Flatten(), nn.Linear(144, 5)),
            "with a tensor of shape [2, 5]: it must be [2, 3]",
        ),
        (
            lambda shape, classes: nn.Sequential(nn.Flatten(), nn.Linear(9, classes)),
            "cannot take a batch of samples of shape (1, 12, 12): it raised RuntimeError: mat1",
        ),
        (lambda shape, classes: Net(classes).double(), "it raised RuntimeError"),
        (lambda classes: Net(classes), "cannot be called as a model: too many positional"),
        (lambda: Net(3), "cannot be called as a model: too many positional arguments."),
        (lambda shape, classes: 1 / 0, "raised ZeroDivisionError: division by zero"),
        (drawn_elsewhere, "returned two models for the same seed: let it draw weights with torch"),
    ],
)
def test_what_is_no_model_is_told_with_the_page_of_the_contract(
    made: Callable[[Factory], nn.Module], factory: Factory, message: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        made(factory)
    assert message in str(raised.value)
    assert "factory" in str(raised.value)
    assert "docs/how-to/python.md" in str(raised.value)


def test_a_module_that_answers_with_more_than_a_tensor_is_refused(
    made: Callable[[Factory], nn.Module],
) -> None:
    class Pair(Net):
        def forward(self, x: Tensor) -> tuple[Tensor, int]:  # type: ignore[override]
            return super().forward(x), 1

    with pytest.raises(ConfigError, match="answers with tuple: it must be one tensor of logits"):
        made(lambda shape, classes: Pair(classes))
