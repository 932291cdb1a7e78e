"""A plain module trains as the same net written as a body and a head: to the bit, by any method."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest
from helpers import toy_federation
from torch import Tensor, nn

from fedskew import ConfigError, Run, run
from fedskew.methods import METHODS, find
from fedskew.models import Classifier, OnePiece

MODULE = "nets_of_a_user"


class Plain(nn.Module):
    """Features of the toy federation to its classes, with dropout between."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 5)
        self.bend = nn.ReLU()
        self.drop = nn.Dropout(0.2)
        self.last = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(self.drop(self.bend(self.first(x))))
        return logits


class Whole(Plain):
    """The same, but its last layer is not what it answers with."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).clone()


def in_parts(shape: tuple[int, ...], classes: int) -> nn.Module:
    made = Plain()
    return Classifier(nn.Sequential(made.first, made.bend, made.drop), made.last)


def plain(shape: tuple[int, ...], classes: int) -> nn.Module:
    return Plain()


def whole(shape: tuple[int, ...], classes: int) -> nn.Module:
    return Whole()


@pytest.fixture(autouse=True)
def nets(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType(MODULE)
    vars(module).update(in_parts=in_parts, plain=plain, whole=whole)
    monkeypatch.setitem(sys.modules, MODULE, module)


def done_with(method: str, net: str, out: Path) -> Run:
    config = {
        "method": method,
        "model": f"{MODULE}:{net}",
        "train": {"rounds": 2, "batch_size": 8},
    }
    return run(config, out=out / net, federation=toy_federation(), draw=False)


CLASSIFIERS = sorted(
    name for name in METHODS if set(find(name).recipe().objective.needs) == {"body", "head"}
)
APART = {
    "coral", "fed-classifier", "fedavg-crsm", "fedbabu", "fedper", "fedrep", "fedrod", "fedshibu",
    "grouped", "ib-erm", "ib-irm", "irm", "mmd", "self-mix", "vrex",
}  # fmt: skip
"""Methods that treat body and head differently, or look at what the body makes."""


@pytest.mark.parametrize("method", CLASSIFIERS)
def test_a_found_head_gives_the_numbers_of_one_that_is_told(method: str, tmp_path: Path) -> None:
    told, found = (done_with(method, net, tmp_path) for net in ("in_parts", "plain"))
    assert [row.as_dict() for row in found.rows()] == [row.as_dict() for row in told.rows()]


@pytest.mark.parametrize("method", sorted(set(CLASSIFIERS) - APART))
def test_methods_that_train_models_whole_take_one_piece_with_the_same_numbers(
    method: str, tmp_path: Path
) -> None:
    told, one = (done_with(method, net, tmp_path) for net in ("in_parts", "whole"))
    assert [row.as_dict() for row in one.rows()] == [row.as_dict() for row in told.rows()]
    if (one.path / "models" / "selected" / "global.safetensors").is_file():
        assert isinstance(one.model(), OnePiece)


@pytest.mark.parametrize("method", sorted(APART))
def test_methods_that_need_a_body_and_a_head_refuse_one_piece(method: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        done_with(method, "whole", tmp_path)
    assert "docs/how-to/python.md" in str(raised.value)
    assert not list(tmp_path.rglob("config.json"))
