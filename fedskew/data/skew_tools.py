"""What skews share: checks of the samples they change, and clients that share no row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedskew.data.federation import Client, Federation, all_rows
from fedskew.errors import DataError
from fedskew.types import Indices


def need_images(kind: str, federation: Federation, channels: int | None = None) -> None:
    """Refuse samples that are not images, or have other channels."""
    shape = federation.sample_shape
    if len(shape) != 3 or channels not in (None, shape[0]):
        wanted = "images" if channels is None else "grey images (one channel)"
        raise DataError(
            f"skew {kind!r} needs {wanted}, but a sample of {federation.name} has shape {shape}."
        )


def need_numbers(what: str, federation: Federation) -> None:
    """Refuse token ids, which are names: nothing can be added to them or measured between them."""
    if federation.vocabulary:
        raise DataError(
            f"{what} changes or measures numbers, but the samples of {federation.name} are token "
            "ids: leave it out."
        )


def need_unit_scale(kind: str, x: Tensor, otherwise: str = "") -> None:
    """Refuse values outside 0..1."""
    low, high = x.aminmax()
    if low < 0 or high > 1:
        raise DataError(
            f"skew {kind!r} needs values in [0, 1], but they span {low:g} to {high:g}: load the "
            f"dataset with normalise='unit'{otherwise}."
        )


@dataclass(frozen=True)
class DisjointClients:
    """Clients of which no two hold the same row; row i is row source[i] of the federation."""

    federation: Federation
    source: Indices
    members: dict[str, Client]

    @property
    def y(self) -> Tensor:
        return self.federation.y[self.source]

    @property
    def environment(self) -> Tensor | None:
        old = self.federation.environment
        return None if old is None else old[self.source]

    def fresh_environment(self) -> Tensor:
        """A copy of the environment ids, to be changed; rows of no client keep theirs, or 0."""
        old = self.environment
        return torch.zeros(len(self.source), dtype=torch.int64) if old is None else old

    def __iter__(self) -> Iterator[tuple[int, Client, Indices]]:
        """Each client in the order of names, with its position and its rows in source order."""
        for position, name in enumerate(sorted(self.members)):
            rows = all_rows(self.members[name])
            yield position, self.members[name], rows[np.argsort(self.source[rows])]

    def holding(
        self,
        x: Tensor,
        environment: Tensor | None = None,
        by: str = "",
        y: Tensor | None = None,
    ) -> Federation:
        """The federation of these clients with other samples, perhaps environments and labels."""
        old = self.federation
        if environment is None:
            environment, by = self.environment, old.environments_by
        return old.with_data(
            x=x,
            y=self.y if y is None else y,
            clients=tuple(self.members[client.name] for client in old.clients),
            unseen=tuple(self.members[client.name] for client in old.unseen),
            environment=environment,
            environments_by=by,
            owner=None if old.owner is None else old.owner[self.source],
        )


def part(federation: Federation) -> DisjointClients:
    """Append copies of the rows that a client shares with the central test or another client."""
    taken = np.zeros(len(federation.y), dtype=bool)
    taken[federation.central_test] = True
    place = np.arange(len(taken))
    source, end = [place.copy()], len(taken)
    members: dict[str, Client] = {}
    for name, client in federation.by_name.items():
        rows = all_rows(client)
        shared = rows[taken[rows]]
        taken[rows] = True
        place[shared] = np.arange(end, end + len(shared))
        members[name] = Client(
            name, place[client.train], place[client.validation], place[client.test]
        )
        place[shared] = shared
        source.append(shared)
        end += len(shared)
    return DisjointClients(federation, np.concatenate(source), members)


def scaled_apart(
    federation: Federation,
    own: Mapping[str, Callable[[Tensor], Tensor]],
    others: Callable[[Tensor], Tensor],
    central: Sequence[Client] = (),
) -> Federation:
    """Every client's samples scaled in its own way, those of anybody else in another.

    ``central`` are the clients the central test set was collected from, with the rows it has of
    their test splits: these are scaled as their clients scale them.
    """
    parties = part(federation)
    x = others(federation.x)[parties.source]
    for client in central:
        x[client.test] = own[client.name](federation.x[client.test])
    for _, client, rows in parties:
        x[rows] = own.get(client.name, others)(federation.x[parties.source[rows]])
    return parties.holding(x)
