"""Changes of models as whole numbers, which sums of masked vectors leave exact."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch

from fedskew.config import SecureSection
from fedskew.errors import ConfigError, RunError
from fedskew.sites.secure.primitives import MODULUS, Ints
from fedskew.types import Tensors

Floats = npt.NDArray[np.float64]


def needed(sites: int, section: SecureSection) -> int:
    """How many of the sites that shared their keys must stay until the sum is unmasked.

    It is more than half of them. A server could otherwise tell one half that a site is gone and the
    other half that it is there, and get the shares of both of its secrets.

    >>> [needed(n, SecureSection()) for n in (3, 4, 5, 10)]
    [2, 3, 4, 7]
    """
    return max(math.ceil(section.threshold * sites - 1e-9), sites // 2 + 1)


def check_room(clients: int, section: SecureSection) -> None:
    """Refuse more clients in a round than a sum has room for."""
    if clients << section.bits >= MODULUS:
        most = 32 - clients.bit_length()
        raise ConfigError(
            f"secure.bits = {section.bits} leaves room for {(MODULUS - 1) >> section.bits} clients "
            f"in a round, and there are {clients}: take {most} bits at most."
        )


def flat(tensors: Tensors, names: Sequence[str]) -> Floats:
    return torch.cat([tensors[name].reshape(-1).double() for name in names]).numpy()


def floating(tensors: Tensors) -> list[str]:
    """What is summed: counters of batches stay as they were sent."""
    return [name for name in sorted(tensors) if tensors[name].is_floating_point()]


def coded(change: Floats, weight: int, most: int, section: SecureSection) -> Ints:
    """A client's change times weight/most, as whole numbers from 0 to 2**bits.

    Flower's ``quantize`` draws its rounding from numpy's global generator; a round that is asked
    for again must give the same numbers, so they are rounded to the nearest. What is beyond the
    clip is refused: Flower cuts it off, and nobody would see that the sum is another one.
    """
    if not 0 < weight <= most:
        raise RunError(f"a client that counts {weight} of {most} at most cannot take part.")
    values = change * (weight / most)
    furthest = float(np.abs(values).max(initial=0.0))
    if not furthest <= section.clip:
        raise RunError(
            f"a parameter changed by {furthest:.3g}, beyond secure.clip = {section.clip:g}: "
            "choose a larger one."
        )
    return np.rint((values + section.clip) * _scale(section)).astype(np.int64)


def decoded(numbers: Ints, weight: int, clients: int, most: int, section: SecureSection) -> Floats:
    """The weighted mean of the changes of so many clients, from the sum of what they coded.

    Shares that do not fit leave a mask on the sum, which then is out of bounds nearly everywhere.
    """
    from flwr.common.secure_aggregation.quantization import dequantize

    highest = int(numbers.max(initial=0))
    if not (0 < weight <= clients * most and highest <= clients << section.bits):
        raise RunError("the masks do not cancel: a site gave a wrong vector or a wrong share")
    (values,) = dequantize([numbers], section.clip, 2**section.bits)
    # Every client's numbers begin at -clip, and one of these is counted already.
    mean: Floats = (values - (clients - 1) * section.clip) * (most / weight)
    return mean


def moved(sent: Tensors, change: Floats) -> Tensors:
    """What was sent, moved by a change."""
    names = floating(sent)
    parts = np.split(change, np.cumsum([sent[name].numel() for name in names])[:-1])
    summed: Mapping[str, torch.Tensor] = {
        name: (sent[name].double() + torch.from_numpy(part).view_as(sent[name])).to(
            sent[name].dtype
        )
        for name, part in zip(names, parts, strict=True)
    }
    return {name: summed.get(name, tensor) for name, tensor in sent.items()}


def _scale(section: SecureSection) -> float:
    return float(2**section.bits / (2 * section.clip))
