"""torch's recurrent layers as plain operations: its own kernels know neither stacks nor keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

Drop = Callable[[Tensor, float], Tensor]
Cell = Callable[[Tensor, Tensor, Sequence[Tensor]], list[Tensor]]
"""From the input's part of all gates, the hidden part of them, and the state, to the new state,
whose first tensor is the output."""


def lstm_cell(given: Tensor, kept: Tensor, state: Sequence[Tensor]) -> list[Tensor]:
    """i, f, o = sigmoid, g = tanh; c' = f·c + i·g, h' = o·tanh(c')."""
    i, f, g, o = (given + kept).chunk(4, dim=-1)
    cell = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
    return [o.sigmoid() * cell.tanh(), cell]


def gru_cell(given: Tensor, kept: Tensor, state: Sequence[Tensor]) -> list[Tensor]:
    """r, z = sigmoid, n = tanh(in + r·hidden); h' = n + z·(h - n)."""
    size = state[0].shape[-1]
    gates = (given[..., : 2 * size] + kept[..., : 2 * size]).sigmoid()
    r, z = gates.chunk(2, dim=-1)
    fresh = (given[..., 2 * size :] + r * kept[..., 2 * size :]).tanh()
    return [fresh + z * (state[0] - fresh)]


def tanh_cell(given: Tensor, kept: Tensor, state: Sequence[Tensor]) -> list[Tensor]:
    return [(given + kept).tanh()]


def relu_cell(given: Tensor, kept: Tensor, state: Sequence[Tensor]) -> list[Tensor]:
    return [(given + kept).relu()]


CELLS: dict[str, Cell] = {
    "lstm": lstm_cell, "gru": gru_cell, "rnn_tanh": tanh_cell, "rnn_relu": relu_cell,
}  # fmt: skip


def unrolled(
    cell: Cell,
    drop: Drop,
    inputs: Tensor,
    start: Sequence[Tensor],
    parameters: Sequence[Tensor],
    has_biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> list[Tensor]:
    """What ``torch.lstm`` and its kin return: the outputs of the last layer, and the last states.

    ``start`` holds each part of the state as [layers · directions, samples, units].
    """
    x = inputs if batch_first else inputs.transpose(0, 1)
    directions = 2 if bidirectional else 1
    each = 4 if has_biases else 2
    last: list[list[Tensor]] = []
    for layer in range(layers):
        if layer and train and dropout:
            x = drop(x, dropout)
        outputs = []
        for place in range(layer * directions, (layer + 1) * directions):
            own = parameters[place * each : (place + 1) * each]
            backwards = place % directions == 1
            read, state = _one_way(cell, x, [part[place] for part in start], own, backwards)
            outputs.append(read)
            last.append(state)
        x = outputs[0] if directions == 1 else torch.cat(outputs, dim=-1)
    read = x if batch_first else x.transpose(0, 1)
    return [read, *(torch.stack(list(part)) for part in zip(*last, strict=True))]


def _one_way(
    cell: Cell, x: Tensor, state: list[Tensor], own: Sequence[Tensor], backwards: bool
) -> tuple[Tensor, list[Tensor]]:
    """One layer in one direction: outputs [samples, time, units], and the state at its end."""
    by_input, by_state, *biases = own
    given = F.linear(x, by_input, biases[0] if biases else None).unbind(dim=1)
    bias = biases[1] if biases else None
    outputs: list[Tensor] = []
    for one in reversed(given) if backwards else given:
        state = cell(one, F.linear(state[0], by_state, bias), state)
        outputs.append(state[0])
    return torch.stack(outputs[::-1] if backwards else outputs, dim=1), state
