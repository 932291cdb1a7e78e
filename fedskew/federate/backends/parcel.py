"""Objects on their way to another process of ours: their structure, and all tensors in one buffer.

Between processes of one run, which trust each other; what leaves a site goes by ``wire``.
"""

from __future__ import annotations

import io
import pickle
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

ALIGNED = 64
"""Tensors begin at multiples of this many bytes, like those that torch makes."""


class Parcel(NamedTuple):
    """``head`` is the structure, ``body`` the bytes of every tensor, each of them once."""

    head: bytes
    body: NDArray[np.uint8]


class _Packer(pickle.Pickler):
    """Leaves a note in place of a tensor: its place in the body, or among those that are there."""

    def __init__(self, head: io.BytesIO, there: Sequence[Tensor]) -> None:
        super().__init__(head, protocol=5)
        self._there = {id(tensor): number for number, tensor in enumerate(there)}
        # The references keep others from getting the same ids.
        self.packed: list[Tensor] = []
        self._notes: dict[int, tuple[Any, ...]] = {}
        self.size = 0

    def persistent_id(self, thing: Any) -> tuple[Any, ...] | None:
        if type(thing) is not Tensor:
            return None
        if (number := self._there.get(id(thing))) is not None:
            return ("there", number)
        if id(thing) not in self._notes:
            name = str(thing.dtype).removeprefix("torch.")
            self._notes[id(thing)] = ("here", self.size, name, tuple(thing.shape))
            self.packed.append(thing)
            self.size += -(-thing.numel() * thing.element_size() // ALIGNED) * ALIGNED
        return self._notes[id(thing)]


def pack(content: object, there: Sequence[Tensor] = ()) -> Parcel:
    """Pack an object; tensors that are ``there``, at the other end, are not sent again."""
    head = io.BytesIO()
    packer = _Packer(head, there)
    packer.dump(content)
    body = np.empty(packer.size, np.uint8)
    start = 0
    for tensor in packer.packed:
        values = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
        body[start : start + len(values)] = values
        start += -(-len(values) // ALIGNED) * ALIGNED
    return Parcel(head.getvalue(), body)


class _Unpacker(pickle.Unpickler):
    def __init__(self, parcel: Parcel, there: Sequence[Tensor], mapped: bool) -> None:
        super().__init__(io.BytesIO(parcel.head))
        self._there, self._mapped = there, mapped
        with warnings.catch_warnings():
            # Whoever asks for mapped tensors promises not to write to them.
            warnings.filterwarnings("ignore", ".*not writable.*", UserWarning)
            self._body = torch.from_numpy(parcel.body)
        self._found: dict[Any, Tensor] = {}

    def persistent_load(self, note: Any) -> Tensor:
        if note[0] == "there":
            return self._there[int(note[1])]
        if note not in self._found:
            _, start, name, shape = note
            dtype: torch.dtype = getattr(torch, name)
            size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
            tensor = self._body[start : start + size].view(dtype).reshape(shape)
            self._found[note] = tensor if self._mapped else tensor.clone()
        found: Tensor = self._found[note]
        return found


def unpack(parcel: Parcel, there: Sequence[Tensor] = (), mapped: bool = False) -> Any:
    """What was packed; ``mapped`` tensors share the parcel's memory and must not be changed."""
    return _Unpacker(parcel, there, mapped).load()
