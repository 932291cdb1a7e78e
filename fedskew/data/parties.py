"""A federation taken apart, so that each client's samples can change without anybody else's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedskew.data.federation import Client, Federation
from fedskew.types import Indices


@dataclass(frozen=True)
class Parties:
    """Clients of which no two hold the same row; row i here is row source[i] of the federation."""

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
        """Environment ids to write on; rows of no client keep theirs, or 0."""
        old = self.environment
        return torch.zeros(len(self.source), dtype=torch.int64) if old is None else old

    def __iter__(self) -> Iterator[tuple[int, Client, Indices]]:
        """Each client in the order of names, with its position and its rows in source order."""
        for position, name in enumerate(sorted(self.members)):
            rows = all_rows(self.members[name])
            yield position, self.members[name], rows[np.argsort(self.source[rows])]

    def holding(self, x: Tensor, environment: Tensor | None = None, by: str = "") -> Federation:
        """The federation of these clients with other samples, and perhaps other environments."""
        old = self.federation
        if environment is None:
            environment, by = self.environment, old.environments_by
        return old.with_data(
            x=x,
            y=self.y,
            clients=tuple(self.members[client.name] for client in old.clients),
            unseen=tuple(self.members[client.name] for client in old.unseen),
            environment=environment,
            environments_by=by,
            owner=None if old.owner is None else old.owner[self.source],
        )


def part(federation: Federation) -> Parties:
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
    return Parties(federation, np.concatenate(source), members)


def all_rows(client: Client) -> Indices:
    """What a client holds in any split, each row once, in order."""
    return np.unique(np.concatenate([client.train, client.validation, client.test]))
