"""The private state of clients: labelled, never changed, in memory or in packs on disk."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from fedskew.errors import RunError
from fedskew.store import load_groups, save_groups
from fedskew.types import Groups

States = dict[str, Groups]


def pack_file(label: str) -> str:
    """The file that holds the private state of all clients who changed it under a label."""
    return f"private-{label}.safetensors"


class PrivateStates:
    """What clients keep, by label.

    With a folder every label becomes one file that holds those clients who wrote under it: a round
    writes only its participants, whatever the number of clients, and memory holds each client's
    newest state. The owner of the folder removes files nobody refers to any more. Without a folder
    all labels stay in memory until ``sweep``.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._held: dict[str, States] = {}

    def of(self, labels: Mapping[str, str]) -> States:
        """The state of every client under its label; who has no label yet has no state."""
        found: States = {client: {} for client in labels}
        for label in sorted(set(labels.values()) - {""}):
            wanted = [client for client, its in labels.items() if its == label]
            held = self._held.get(label, {})
            if self._folder is not None and any(client not in held for client in wanted):
                held = {**self._loaded(label), **held}
            for client in wanted:
                if client not in held:
                    raise RunError(f"client {client!r} holds no private state {label!r}.")
                found[client] = held[client]
                # Read once: whoever is not asked to train may be scored in every round.
                self._held.setdefault(label, {})[client] = held[client]
        return found

    def put(self, label: str, states: Mapping[str, Groups]) -> None:
        """Write states under a label; once written under it, a state stays as it is."""
        together = {**self._held.get(label, {}), **states}
        if self._folder is not None:
            flat = {
                f"{client}/{group}": tensors
                for client, groups in sorted(together.items())
                for group, tensors in groups.items()
            }
            save_groups(self._folder / pack_file(label), flat)
            for older in self._held.values():
                for client in states:
                    older.pop(client, None)
            self._held = {name: held for name, held in self._held.items() if held}
        self._held[label] = together

    def sweep(self, client: str, keep: Collection[str]) -> None:
        """Forget a client's states but those with these labels."""
        if self._folder is None:
            for label, held in self._held.items():
                if label not in keep:
                    held.pop(client, None)

    def _loaded(self, label: str) -> States:
        assert self._folder is not None
        found: States = {}
        path = self._folder / pack_file(label)
        if path.is_file():
            for key, tensors in load_groups(path).items():
                client, group = key.rsplit("/", 1)
                found.setdefault(client, {})[group] = tensors
        return found
