"""All clients in this process: tasks are trained as cohorts, private state is a dictionary."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedskew.client import (
    DescribeTask,
    Outcome,
    Scored,
    ScoreTask,
    TrainTask,
    describe_clients,
    train_clients,
)
from fedskew.parts.objective import Tensors
from fedskew.parts.report import Groups
from fedskew.scoring import personal_model, score_clients
from fedskew.site import Site
from fedskew.store import load_groups, save_groups


class LocalBackend:
    """Runs tasks on the engine; keeps private state in packs, one file for all who changed.

    A client's newest state stands in the pack of the round it last trained in, so a round writes
    only its participants, whatever the number of clients.
    """

    def __init__(
        self, site: Site, folder: Path | None = None, private: dict[str, Groups] | None = None
    ) -> None:
        self._site = site
        self._folder = folder
        self._private: dict[str, Groups] = {name: {} for name in site.clients}
        self._private.update(private or {})
        self._changed: set[str] = set(private or {})
        self._packs: dict[str, str] = {}

    def train(self, tasks: Sequence[TrainTask]) -> list[Outcome]:
        return self._remember(train_clients(self._site, tasks, self._private))

    def describe(self, tasks: Sequence[DescribeTask]) -> list[Outcome]:
        return self._remember(describe_clients(self._site, tasks, self._private))

    def score(self, tasks: Sequence[ScoreTask]) -> list[Scored]:
        return score_clients(self._site, tasks, self._private)

    def private_state(self) -> dict[str, Groups]:
        """What every client keeps, for summing up at the clients' side; the server never asks."""
        return dict(self._private)

    def personal_model(self, client: str, sent: Tensors) -> Tensors:
        """A client's own model, for saving at the client's side; the server never asks for it."""
        return personal_model(self._site, sent, self._private[client])

    def _remember(self, outcomes: list[Outcome]) -> list[Outcome]:
        for outcome in outcomes:
            if outcome.error is None and outcome.keeps:
                self._private[outcome.client] = {**self._private[outcome.client], **outcome.keeps}
                self._changed.add(outcome.client)
        return outcomes

    def keep(self, label: str) -> dict[str, str]:
        if self._folder is not None and self._changed:
            pack = f"private-{label}.safetensors"
            flat = {
                f"{client}/{group}": tensors
                for client in sorted(self._changed)
                for group, tensors in self._private[client].items()
            }
            save_groups(self._folder / pack, flat)
            self._packs.update(dict.fromkeys(self._changed, pack))
            self._changed.clear()
        return dict(self._packs)

    def restore(self, kept: dict[str, str]) -> None:
        assert self._folder is not None
        for pack in sorted(set(kept.values())):
            found: dict[str, Groups] = {}
            for key, tensors in load_groups(self._folder / pack).items():
                client, group = key.rsplit("/", 1)
                found.setdefault(client, {})[group] = tensors
            for client, groups in found.items():
                if kept.get(client) == pack:
                    self._private[client] = groups
        self._packs = dict(kept)
        self._changed.clear()
