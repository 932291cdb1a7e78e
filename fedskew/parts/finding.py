"""Extra results of a method at the end of a run: numbers, a file, figures, lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray
from torch import Tensor

from fedskew.types import Groups

if TYPE_CHECKING:
    from fedskew.canvas import Picture
    from fedskew.data.federation import Client

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Holder:
    """A client after the last round, as findings see it.

    ``y`` are the labels of the storage that the client's rows point into, ``total`` is the number
    of training samples of all clients together. ``log_ratio``, if known, is the log
    ratio of each training sample's density over all clients to that at this client.
    """

    client: Client
    y: Tensor
    private: Groups
    total: int
    log_ratio: Tensor | None = None


@dataclass(frozen=True)
class Left:
    """What one client leaves: ``numbers`` (plain values) are sent, ``arrays`` stay with its data.

    All arrays have the same length; those of all clients on one machine make one file.
    """

    numbers: dict[str, Any]
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)


class Finding:
    """Base of all findings: override ``leave``, and the other methods to show the results.

    The numbers are in a run's result.json under ``name``, by client, the arrays in ``name.npz``.
    """

    name: str

    def leave(self, holder: Holder) -> Left | None:
        """What a client leaves, if anything; runs where the data are."""
        raise NotImplementedError

    def lines(self, numbers: Mapping[str, Any]) -> list[str]:
        """What ``fedskew show`` says of all clients' numbers."""
        return []

    def pictures(
        self, numbers: Mapping[str, Any], arrays: Arrays, result: Mapping[str, Any]
    ) -> Iterator[Picture]:
        """The figures of a run, whose summary is ``result``."""
        return iter(())
