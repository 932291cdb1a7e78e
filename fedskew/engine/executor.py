"""Which executor trains a model: a rule on its shape, never on a clock, so bits repeat."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from torch import nn

from fedskew.engine.evaluate import trains_batch_statistics
from fedskew.engine.torch_private import is_convolution

STACKED_PARAMETERS = 1024 * 1024
MOST_STACKED = 64
ONE_BY_ONE = "one-by-one"


@dataclass(frozen=True)
class Execution:
    """``chunk`` clients are stacked and trained as one; ``reason`` says why."""

    executor: str
    chunk: int
    reason: str

    @property
    def is_plain(self) -> bool:
        """Whether everything is called as it is written, in the calling thread: for debuggers."""
        return self.executor == ONE_BY_ONE

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def choose(module: nn.Module, executor: str = "auto", chunk: int | None = None) -> Execution:
    """The executor for a model.

    Stacking saves the cost of starting operations, once for all clients of a stack, and pays for
    it in memory traffic: it wins up to about a million stacked parameters. Convolutions with one
    filter bank per client become grouped convolutions, which have no fast kernel, and attention has
    few operations for its size. A recurrent layer has many, and gains like a small network.
    """
    if executor == ONE_BY_ONE:
        return Execution(ONE_BY_ONE, 1, "asked for")
    if trains_batch_statistics(module):
        return Execution("threads", 1, "kept statistics must not see another client or padding")
    if executor == "threads":
        return Execution("threads", 1, "asked for")
    size = sum(p.numel() for p in module.parameters())
    fits = max(1, min(MOST_STACKED, STACKED_PARAMETERS // max(size, 1)))
    if executor == "vectorised":
        return Execution("vectorised", chunk or max(fits, 8), "asked for")
    if any(map(is_convolution, module.modules())):
        return Execution("threads", 1, "convolutions are faster one client a thread")
    if any(isinstance(layer, nn.MultiheadAttention) for layer in module.modules()):
        return Execution("threads", 1, "attention is work enough for a core")
    if fits == 1:
        return Execution("threads", 1, f"{size:,} parameters a client are work enough for a core")
    return Execution(
        "vectorised", chunk or fits, f"{size:,} parameters a client, {fits} make a stack"
    )
