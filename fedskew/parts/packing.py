"""How a client's shared parameters travel: as they are, in half precision, or the largest changes.

What a client packs, the server unpacks before anything else looks at it. Statistics, counters and
reports are never packed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import torch
from torch import Tensor

from fedskew.errors import Diverged, RunError
from fedskew.registry.knobs import Knob, check_fields
from fedskew.types import Tensors

UNSENT = "unsent"
"""The group of a client's private state that holds what it has learned and not sent yet."""
PLACE = torch.int32
MOST = torch.finfo(torch.float16).max


@dataclass(frozen=True)
class Packed:
    """``sends`` goes to the server under the parameters' own names; ``unsent`` stays behind."""

    sends: Tensors
    unsent: Tensors = field(default_factory=dict)


@dataclass(frozen=True)
class Packing:
    """Sends parameters as they are; base of all others."""

    @property
    def remembers(self) -> bool:
        """Whether clients keep what they have not sent, and add it to what they send next."""
        return False

    @property
    def says(self) -> str:
        """What becomes of parameters, in words; nothing where they travel as they are."""
        return ""

    def pack(self, trained: Tensors, sent: Tensors, unsent: Tensors) -> Packed:
        """What travels of a client's parameters, given those it was sent and what it kept."""
        return Packed(trained)

    def unpack(self, packed: Tensors, sent: Tensors) -> Tensors:
        """The parameters as the server takes them; a ``RunError`` says what cannot be unpacked."""
        return packed


class OfChanges(Packing):
    """Base of what packs changes: how far each parameter went from where it was sent.

    Changes need less precision than parameters, and most of them are close to zero. With
    ``remembers`` a client adds to its change what it has not sent so far (error feedback): in the
    end all is sent, some of it late.
    """

    def squeeze(self, change: Tensors) -> Tensors:
        """What travels of a change."""
        raise NotImplementedError

    def unfold(self, name: str, came: Tensor, like: Tensor) -> Tensor:
        """The change of a parameter, of the shape and type of ``like``."""
        raise NotImplementedError

    def pack(self, trained: Tensors, sent: Tensors, unsent: Tensors) -> Packed:
        change = {name: t - sent[name] for name, t in trained.items()}
        if self.remembers:
            change = {n: t + unsent[n] if n in unsent else t for n, t in change.items()}
        travels = self.squeeze(change)
        if not self.remembers:
            return Packed(travels)
        came = {name: self.unfold(name, t, change[name]) for name, t in travels.items()}
        return Packed(travels, {name: t - came[name] for name, t in change.items()})

    def unpack(self, packed: Tensors, sent: Tensors) -> Tensors:
        return {n: sent[n] + self.unfold(n, t, sent[n]) for n, t in packed.items()}


@dataclass(frozen=True)
class Half(OfChanges):
    """Changes in half precision: half the bytes, and 11 of 24 binary digits.

    Changes below 3·10⁻⁸ become zero. What exceeds 65504 has no half: a client that moved so far in
    a round is left out of it, with that reason, because an infinity would ruin everybody's model
    and a clipped change would be another one.
    """

    @property
    def says(self) -> str:
        return "changes in half precision"

    def squeeze(self, change: Tensors) -> Tensors:
        halves = {name: t.to(torch.float16) for name, t in change.items()}
        for name, half in halves.items():
            if not bool(torch.isfinite(half).all()):
                raise Diverged(
                    f"{name} changed by more than {MOST:.0f}, the most that half precision holds"
                )
        return halves

    def unfold(self, name: str, came: Tensor, like: Tensor) -> Tensor:
        if came.dtype != torch.float16 or came.shape != like.shape:
            raise RunError(f"{name} did not come as changes in half precision")
        return came.to(like.dtype)


@dataclass(frozen=True)
class TopK(OfChanges):
    """The changes of largest absolute value among those of all parameters together.

    Of d parameters round(share·d) travel, at least one; among equals the first by name and place,
    and never a zero. A parameter tensor travels as the places and values of its changes, or whole
    with zeros between them where that is shorter.
    """

    share: Annotated[
        float,
        Knob(
            "part of all parameters that is sent, of top-k",
            gt=0,
            le=1,
            tries=(0.001, 0.01, 0.1),
            untuned="more is sent",
        ),
    ] = 0.01
    feedback: Annotated[
        bool, Knob("whether clients keep what was not sent and send it later, of top-k")
    ] = True

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def remembers(self) -> bool:
        return self.feedback

    @property
    def says(self) -> str:
        return f"the largest {100 * self.share:g} % of changes"

    def squeeze(self, change: Tensors) -> Tensors:
        names = sorted(change)
        if not names:
            return {}
        flat = torch.cat([change[name].reshape(-1) for name in names])
        if not bool(torch.isfinite(flat).all()):
            raise Diverged("its changes are not finite")
        chosen = largest(flat.abs(), max(1, round(self.share * len(flat))))
        parts = torch.split(chosen, [change[name].numel() for name in names])
        return {n: _encoded(change[n], part) for n, part in zip(names, parts, strict=True)}

    def unfold(self, name: str, came: Tensor, like: Tensor) -> Tensor:
        if came.dtype == like.dtype and came.shape == like.shape:
            return came
        return _decoded(name, came, like)


def largest(size: Tensor, count: int) -> Tensor:
    """Which entries are the largest, as a mask; among equals the first, and never a zero.

    >>> largest(torch.tensor([1.0, 3.0, 0.0, 3.0, 3.0]), 2).tolist()
    [False, True, False, True, False]
    """
    # topk says which size is the last to be taken, but not which of several of that size.
    last = torch.topk(size, count, sorted=False).values.min()
    chosen = size > last
    if last > 0:
        ties = torch.nonzero(size == last).reshape(-1)
        chosen[ties[: count - int(chosen.sum())]] = True
    return chosen


def _encoded(change: Tensor, chosen: Tensor) -> Tensor:
    """Places and values as bytes, or all values with zeros in the others' places."""
    places = torch.nonzero(chosen).reshape(-1)
    if len(places) * (PLACE.itemsize + change.element_size()) >= change.nbytes:
        return torch.where(chosen.reshape(change.shape), change, torch.zeros_like(change))
    values = change.reshape(-1)[places]
    return torch.cat([places.to(PLACE).view(torch.uint8), values.view(torch.uint8)])


def _decoded(name: str, came: Tensor, like: Tensor) -> Tensor:
    """All changes of a parameter, from places and values that somebody else wrote."""
    width = PLACE.itemsize + like.element_size()
    if came.dtype != torch.uint8 or came.ndim != 1 or len(came) % width:
        raise RunError(f"{name} did not come as places and values of changes")
    head = PLACE.itemsize * (len(came) // width)
    # Cloned, because values of some types must begin at certain bytes.
    places, values = came[:head].clone().view(PLACE).long(), came[head:].clone().view(like.dtype)
    inside = (places >= 0) & (places < like.numel())
    if not bool(inside.all()) or not bool((places.diff() > 0).all()):
        raise RunError(f"{name} came with places that it does not have, or not in order")
    full = torch.zeros_like(like).reshape(-1)
    full[places] = values
    return full.reshape(like.shape)
