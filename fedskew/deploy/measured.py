"""How large the forms of a model are, and what that does to its answers."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from time import perf_counter

import torch
from torch import Tensor, nn

from fedskew.data.federation import Client, Federation
from fedskew.deploy.answers import HALF
from fedskew.deploy.int8 import weights
from fedskew.deploy.model import AT_ONCE
from fedskew.errors import DataError
from fedskew.problem import Problem

TIMED = 50
NEAR = 0.01


@dataclass(frozen=True)
class Variant:
    """One form of the model: how large it is, and what that does to its answers.

    ``bytes`` and ``gzipped`` are the sizes of its file before and after compression: only
    compression saves space for zeros. ``agrees`` is the share of test samples for which it gives
    the float model's answer, ``milliseconds`` the median time per sample on this machine.
    """

    name: str
    file: str | None
    parameters: int
    zeros: int
    bytes: int
    gzipped: int
    accuracy: float | None
    agrees: float | None
    milliseconds: float | None
    error: float | None = None


@dataclass(frozen=True, eq=False)
class HeldOut:
    """The test samples of some clients, client by client."""

    x: tuple[Tensor, ...]
    y: tuple[Tensor, ...]
    problem: Problem

    @classmethod
    def of(cls, federation: Federation, clients: Sequence[Client]) -> HeldOut:
        rows = [client.test for client in clients if len(client.test)]
        if not rows:
            raise DataError("there are no test samples to measure an export on.")
        x, y = (tuple(values[r] for r in rows) for values in (federation.x, federation.y))
        return cls(x, y, federation.problem)

    def answers(self, module: nn.Module) -> tuple[Tensor, ...]:
        """The class, the labels or the number that a model predicts for every sample."""
        with torch.no_grad():
            said = [[module(part) for part in torch.split(x, AT_ONCE)] for x in self.x]
        return tuple(self._decided(torch.cat(parts)) for parts in said)

    def _decided(self, logits: Tensor) -> Tensor:
        if self.problem.classifies:
            return logits.argmax(dim=1)
        if self.problem.kind == "multi-label":
            return (logits.sigmoid() >= HALF).to(logits.dtype)
        return logits[:, 0]

    def agreement(self, ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> float:
        """The mean over clients of how often two lists of answers agree.

        Numbers do if they are apart by less than a hundredth of the targets' deviation.
        """
        if self.problem.kind == "regression":
            alike = [(a - b).abs() < NEAR for a, b in zip(ours, theirs, strict=True)]
        else:
            alike = [
                (a == b).reshape(len(a), -1).all(dim=1) for a, b in zip(ours, theirs, strict=True)
            ]
        return fmean(float(each.float().mean()) for each in alike)

    def error(self, found: Sequence[Tensor]) -> float | None:
        """Root mean square error of numbers in their units, the mean over clients."""
        if self.problem.kind != "regression":
            return None
        pairs = zip(found, self.y, strict=True)
        units = [tuple(map(self.problem.in_units, pair)) for pair in pairs]
        return fmean(float((a - b).double().square().mean().sqrt()) for a, b in units)


def measured(
    name: str,
    file: str | None,
    module: nn.Module,
    content: bytes,
    test: HeldOut | None,
    whole: nn.Module,
) -> Variant:
    """A variant's sizes, and where there are samples its answers and how fast it gives them."""
    numbers = weights(module)
    found = test.answers(module) if test else ()
    is_number = test is not None and test.problem.kind == "regression"
    return Variant(
        name=name,
        file=file,
        parameters=sum(t.numel() for t in numbers),
        zeros=sum(int((t == 0).sum()) for t in numbers),
        bytes=len(content),
        gzipped=len(gzip.compress(content, mtime=0)),
        accuracy=None if test is None or is_number else test.agreement(found, test.y),
        agrees=None if test is None else test.agreement(found, test.answers(whole)),
        milliseconds=None if test is None else 1e3 * _seconds(module, test.x[0][:1]),
        error=None if test is None else test.error(found),
    )


def _seconds(module: nn.Module, sample: Tensor) -> float:
    times = []
    with torch.no_grad():
        for _ in range(TIMED):
            begun = perf_counter()
            module(sample)
            times.append(perf_counter() - begun)
    return median(times)
