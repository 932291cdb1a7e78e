"""Dropout whose masks come from a client's own stream, whatever thread or stack it runs in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedskew.engine.torch_private import is_dropout

LEAST_SELU = -1.7580993408473766
"""What a SELU approaches for ever smaller inputs: -scale * alpha (Klambauer et al., 2017)."""

CHANNELS = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.FeatureAlphaDropout)
ALPHA = (nn.AlphaDropout, nn.FeatureAlphaDropout)
KINDS = (nn.Dropout, *CHANNELS, nn.AlphaDropout)
"""All of torch's dropout layers. One of a user's that is made from them but works in another way
is left alone: if it draws from torch's generator, it is refused when it is traced."""

ALPHA_FUNCTIONS = (F.alpha_dropout, F.feature_alpha_dropout)
CHANNEL_FUNCTIONS = (F.dropout1d, F.dropout2d, F.dropout3d, F.feature_alpha_dropout)
"""Functions of torch's that drop values and keep moments, and that drop whole channels."""
FIRST_CALL = 1 << 20
"""Calls of functions are numbered from here on, layers from 0."""

_key: ContextVar[Tensor | None] = ContextVar("dropout key", default=None)
_calls: ContextVar[Iterator[int]] = ContextVar("numbers of calls")


@contextmanager
def dropout_key(key: Tensor | None) -> Iterator[None]:
    """Inside, dropout layers derive their masks from this number (one per client and step)."""
    tokens = _key.set(key), _calls.set(count(FIRST_CALL))
    try:
        yield
    finally:
        _key.reset(tokens[0])
        _calls.reset(tokens[1])


class StreamDropout(nn.Module):
    """Drops each value with probability ``p``, by hashing its place together with the key.

    torch's own dropout draws from one generator for the whole process, so its masks depend on
    what else is running. Hashing (splitmix64's mixing steps) needs no state at all. What is
    dropped becomes zero, or with ``keeps_moments`` (AlphaDropout, for inputs of mean 0 and
    variance 1) the least value a SELU gives, and all is shifted and scaled to keep both.
    """

    def __init__(
        self, p: float, layer: int, whole_channels: bool, keeps_moments: bool = False
    ) -> None:
        super().__init__()
        self.p, self.layer = p, layer
        self.whole_channels, self.keeps_moments = whole_channels, keeps_moments

    def forward(self, x: Tensor) -> Tensor:
        key = _key.get()
        if not self.training or self.p == 0.0 or key is None:
            return x
        return _dropped(x, self.p, key, self.layer, self.whole_channels, self.keeps_moments)


def drop_by_call(function: Callable[..., Tensor], x: Tensor, p: float) -> Tensor:
    """What one of torch's dropout functions makes of a tensor in training, with a mask of its own
    for every call in a step. Without a key it is called itself, to be refused where it draws."""
    key = _key.get()
    if p == 0.0:
        return x
    if key is None:
        return function(x, p, True)
    channels, alpha = function in CHANNEL_FUNCTIONS, function in ALPHA_FUNCTIONS
    return _dropped(x, p, key, next(_calls.get()), channels, alpha)


def _dropped(
    x: Tensor, p: float, key: Tensor, layer: int, whole_channels: bool, keeps_moments: bool
) -> Tensor:
    if p == 1.0:
        return x * 0.0
    shape = x.shape[:2] if whole_channels else x.shape
    places = torch.arange(shape.numel(), device=x.device).reshape(shape)
    kept = hashed_uniform(places + (layer << 40), key) >= p
    kept = kept.reshape(*shape, *[1] * (x.dim() - kept.dim()))
    if not keeps_moments:
        return x * kept / (1.0 - p)
    scale: float = ((1.0 - p) * (1.0 + p * LEAST_SELU**2)) ** -0.5
    held: Tensor = torch.where(kept, x, LEAST_SELU)
    return (held - p * LEAST_SELU) * scale


def hashed_uniform(places: Tensor, key: Tensor) -> Tensor:
    """A number in [0, 1) for every place, fixed by the key."""
    z = places * -7046029254386353131 + key
    for shift, factor in ((30, -4658895280553007687), (27, -7723592293110705685)):
        z = (z ^ (z >> shift & (1 << (64 - shift)) - 1)) * factor
    z = z ^ (z >> 31 & (1 << 33) - 1)
    return (z >> 11 & (1 << 53) - 1).to(torch.float64) / float(1 << 53)


def may_drop(module: nn.Module) -> bool:
    """Whether a model's steps need a key: it has layers that drop, or code of a user's own, which
    may call a function that does."""
    return any(
        isinstance(layer, StreamDropout)
        or getattr(layer, "dropout", None)  # of torch's attention and recurrent layers
        or type(layer).__module__.partition(".")[0] not in ("torch", "fedskew")
        for layer in module.modules()
    )


def with_stream_dropout(module: nn.Module) -> nn.Module:
    """Replace torch's dropout layers, in place; they hold no parameters, so no name changes."""
    layers = [
        (parent, name, child)
        for parent in module.modules()
        for name, child in parent.named_children()
        if is_dropout(child) and any(type(child).forward is kind.forward for kind in KINDS)
    ]
    for number, (parent, name, child) in enumerate(layers):
        channels, alpha = isinstance(child, CHANNELS), isinstance(child, ALPHA)
        setattr(parent, name, StreamDropout(child.p, number, channels, alpha))
    return module
