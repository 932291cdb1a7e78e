"""Models that programs hand over: their names, what decides them, and what is refused."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedskew.errors import ConfigError
from fedskew.models import FoundHead, build
from fedskew.models.given import chosen, known_as


class Net(nn.Module):
    """Its last layer may be scaled by a number that no layer shows."""

    def __init__(self, shape: tuple[int, ...] = (4,), classes: int = 2, hidden: int = 3) -> None:
        super().__init__()
        self.scale = 1.0
        self.first = nn.Linear(shape[0], hidden)
        self.last = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(self.scale * self.first(x).relu())
        return logits


def net(shape: tuple[int, ...], classes: int, *, hidden: int = 3) -> nn.Module:
    return Net(shape, classes, hidden)


def test_a_module_is_copied_with_its_weights() -> None:
    module = Net()
    name = chosen(module)
    weights = module.first.weight.detach().clone()
    with torch.no_grad():
        module.first.weight.zero_()  # whatever the program does with it afterwards
    first, second = build(name, (4,), 2), build(name, (4,), 2)
    assert isinstance(first, FoundHead)
    for found in (first, second):
        assert torch.equal(found.state_dict()["body.first.weight"], weights)
    with torch.no_grad():
        first.state_dict()["head.weight"].zero_()
    assert second.state_dict()["head.weight"].abs().sum() > 0


def test_the_name_follows_from_all_that_decides_what_it_computes() -> None:
    def made(change: Callable[[Any], object] = lambda module: None) -> str:
        torch.manual_seed(0)
        module = Net()
        change(module)
        return str(chosen(module))

    def nudged(module: Net) -> None:
        with torch.no_grad():
            module.last.bias[0] += 1e-3

    same = made()
    assert same.startswith("Net-")
    assert made() == same
    assert made(lambda module: module.eval()) == same
    others = {
        made(nudged),
        made(lambda module: setattr(module, "scale", 2.0)),
        made(lambda module: setattr(module, "drop", nn.Dropout(0.1))),
        made(lambda module: setattr(module, "drop", nn.Dropout(0.2))),
    }
    assert len(others | {same}) == 5


def test_a_factory_of_a_module_is_named_as_in_a_file() -> None:
    assert chosen(net) == {"name": f"{__name__}:net"}
    assert chosen(Net) == {"name": f"{__name__}:Net"}
    assert chosen(functools.partial(net, hidden=5)) == {"name": f"{__name__}:net", "hidden": 5}
    assert chosen("mlp") == "mlp"
    assert chosen({"name": "mlp", "hidden": [3]}) == {"name": "mlp", "hidden": [3]}


def test_a_factory_without_a_place_is_known_to_this_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(net, "__module__", "__main__")
    known = chosen(net)
    assert known["name"].startswith("net-")
    assert build(known["name"], (4,), 2, hidden=7)(torch.zeros(1, 4)).shape == (1, 2)
    small = chosen(lambda shape, classes: nn.Linear(shape[0], classes))
    assert build(small["name"], (4,), 2)(torch.zeros(1, 4)).shape == (1, 2)


def within(hidden: int) -> Callable[..., nn.Module]:
    return lambda shape, classes: Net(shape, classes, hidden)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (3, "model must be a name, a torch.nn.Module or a factory, not int."),
        (nn.Linear, "model torch.nn.modules.linear.Linear is a library's: wrap it into a function"),
        (within(3), "is a function inside another, whose variables no run could be known by"),
        (functools.partial(net, (4,)), "functools.partial gives it 1 by place: name them."),
        (eval("lambda shape, classes: None"), "cannot be read"),
    ],
)  # fmt: skip
def test_what_no_run_could_be_known_by_is_refused(model: object, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        chosen(model)
    assert message in str(raised.value)
    assert "docs/how-to/python.md" in str(raised.value)


def test_an_object_of_another_process_is_asked_for() -> None:
    with pytest.raises(ConfigError) as raised:
        build("Net-0123456789ab", (4,), 2)
    assert "hand it over again, fedskew.load_run(path, model=...)" in str(raised.value)
    known_as("Net-0123456789ab", Net())
    assert build("Net-0123456789ab", (4,), 2)(torch.zeros(1, 4)).shape == (1, 2)
    with pytest.raises(ConfigError, match="the run's model is 'Other-0123456789ab', not 'Net-"):
        known_as("Other-0123456789ab", Net())


def test_a_name_that_is_just_wrong_is_told_as_ever() -> None:
    with pytest.raises(ConfigError, match="unknown model 'mpl': did you mean 'mlp'"):
        build("mpl", (4,), 2)


def test_a_module_without_code_of_its_own_needs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "elsewhere", ModuleType("elsewhere"))
    name = chosen(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)))
    assert name.startswith("Sequential-")
    assert isinstance(build(name, (4,), 2), FoundHead)
