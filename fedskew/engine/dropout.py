"""Dropout whose masks come from a client's own stream, whatever thread or stack it runs in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor, nn

_key: ContextVar[Tensor | None] = ContextVar("dropout key", default=None)


@contextmanager
def dropout_key(key: Tensor | None) -> Iterator[None]:
    """Inside, dropout layers derive their masks from this number (one per client and step)."""
    token = _key.set(key)
    try:
        yield
    finally:
        _key.reset(token)


class StreamDropout(nn.Module):
    """Zeroes each value with probability ``p``, by hashing its place together with the key.

    torch's own dropout draws from one generator for the whole process, so its masks depend on
    what else is running. Hashing (splitmix64's mixing steps) needs no state at all.
    """

    def __init__(self, p: float, layer: int, whole_channels: bool) -> None:
        super().__init__()
        self.p, self.layer, self.whole_channels = p, layer, whole_channels

    def forward(self, x: Tensor) -> Tensor:
        key = _key.get()
        if not self.training or self.p == 0.0 or key is None:
            return x
        shape = x.shape[:2] if self.whole_channels else x.shape
        places = torch.arange(shape.numel(), device=x.device).reshape(shape)
        kept = hashed_uniform(places + (self.layer << 40), key) >= self.p
        kept = kept.reshape(*shape, *[1] * (x.dim() - kept.dim()))
        return x * kept / (1.0 - self.p)


def hashed_uniform(places: Tensor, key: Tensor) -> Tensor:
    """A number in [0, 1) for every place, fixed by the key."""
    z = places * -7046029254386353131 + key
    for shift, factor in ((30, -4658895280553007687), (27, -7723592293110705685)):
        z = (z ^ (z >> shift & (1 << (64 - shift)) - 1)) * factor
    z = z ^ (z >> 31 & (1 << 33) - 1)
    return (z >> 11 & (1 << 53) - 1).to(torch.float64) / float(1 << 53)


def with_stream_dropout(module: nn.Module) -> nn.Module:
    """Replace torch's dropout layers, in place; they hold no parameters, so no name changes."""
    layers = [
        (parent, name, child)
        for parent in module.modules()
        for name, child in parent.named_children()
        if isinstance(child, nn.modules.dropout._DropoutNd)
    ]
    for number, (parent, name, child) in enumerate(layers):
        channels = isinstance(child, nn.Dropout1d | nn.Dropout2d | nn.Dropout3d)
        setattr(parent, name, StreamDropout(child.p, number, channels))
    return module
