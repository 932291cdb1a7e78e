"""What a step calls in place of torch's own dropout, attention and recurrent functions.

torch's draw their masks from one generator for the whole process (its fused attention says so even
where nothing is dropped), and most have no form for a stack of clients. These compute the same
numbers from plain operations, with masks from a client's own stream. They replace functions,
not layers, so a user's own layers are served like torch's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from fedskew.engine.dropout import ALPHA_FUNCTIONS, CHANNEL_FUNCTIONS, drop_by_call
from fedskew.engine.recurrent import CELLS, unrolled
from fedskew.engine.torch_private import attention_layer
from fedskew.errors import ConfigError

Function = Callable[..., Any]


class OwnFunctions(TorchFunctionMode):
    """Inside, calls of the functions in ``REPLACED`` go to ours; of this thread only."""

    def __torch_function__(
        self, func: Function, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        return REPLACED.get(func, func)(*args, **(kwargs or {}))


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(q·kᵀ·scale + mask)·v; a query that may look at nothing gets zeros."""
    if enable_gqa:
        times = query.shape[-3] // key.shape[-3]
        key, value = (t.repeat_interleave(times, dim=-3) for t in (key, value))
    scores = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).tril()
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            nothing = torch.zeros_like(attn_mask, dtype=scores.dtype)
            attn_mask = nothing.masked_fill(~attn_mask, float("-inf"))
        scores = scores + attn_mask
        # A row of -inf alone has no softmax, and its gradient would spoil that of all others.
        blind = (scores == float("-inf")).all(dim=-1, keepdim=True)
        weights = scores.masked_fill(blind, 0.0).softmax(dim=-1).masked_fill(blind, 0.0)
    else:
        weights = scores.softmax(dim=-1)
    found: Tensor = drop_by_call(F.dropout, weights, dropout_p) @ value
    return found


def _dropout(function: Function) -> Function:
    def dropped(
        input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Tensor:
        return drop_by_call(function, input, p) if training else input

    return dropped


def _recurrent(name: str) -> Function:
    def layer(inputs: Tensor, start: Any, parameters: Any, *rest: Any) -> Any:
        if isinstance(rest[0], list | tuple):  # packed: (data, sizes, start, parameters, ...)
            raise ConfigError(
                "packed sequences have another shape in every batch, which a step cannot have: "
                "give the layer the padded samples, and take the outputs where each sample ends."
            )
        biases, layers, dropout, train, bidirectional, batch_first = rest
        if len(parameters) != layers * (2 if bidirectional else 1) * (4 if biases else 2):
            raise ConfigError("an LSTM with proj_size cannot be trained: leave proj_size out.")
        states = start if name == "lstm" else [start]
        return tuple(
            unrolled(
                CELLS[name],
                lambda x, p: drop_by_call(F.dropout, x, p),
                inputs, states, parameters, biases, layers, dropout, train, bidirectional,
                batch_first,
            )
        )  # fmt: skip

    return layer


_DROPOUTS = (F.dropout, *CHANNEL_FUNCTIONS, *ALPHA_FUNCTIONS)

REPLACED: dict[Function, Function] = {
    **{function: _dropout(function) for function in _DROPOUTS},
    F.scaled_dot_product_attention: attention,
    F.multi_head_attention_forward: attention_layer(_dropout(F.dropout), attention),
    **{getattr(torch, name): _recurrent(name) for name in CELLS},
}
