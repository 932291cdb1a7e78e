"""What a run goes on from: the last complete round of every stage, and the selected one."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedskew.errors import RunError
from fedskew.federate.private import pack_file
from fedskew.federate.rounds import Choice
from fedskew.federate.server import Progress
from fedskew.parts.aggregate import ServerState
from fedskew.store import load_groups, read_json, save_groups, write_json
from fedskew.types import Groups

Entry = dict[str, Any]


class Checkpoint:
    """``checkpoint.json`` and the files in ``checkpoint/`` that it refers to.

    It says for each stage which files hold the last round and the selected one, and how long the
    logs were then. Whoever writes holds the run's lock, so the file is read once.
    """

    def __init__(self, run: Path) -> None:
        self.folder = run / "checkpoint"
        self._path = run / "checkpoint.json"
        self._read: dict[str, Any] | None = None

    @property
    def _book(self) -> dict[str, Any]:
        if self._read is None:
            self._read = read_json(self._path) if self._path.exists() else {"stages": {}}
        return self._read

    def read_again(self) -> None:
        """Forget what was read: another process may have worked on the run since."""
        self._read = None

    @property
    def is_empty(self) -> bool:
        """Whether no round is complete."""
        return not self._book["stages"]

    @property
    def lengths(self) -> dict[str, int]:
        """How much of each log belongs to complete rounds."""
        return dict(self._book.get("lengths", {}))

    def holds(self, stage: str) -> bool:
        """Whether a round of a stage is complete."""
        return stage in self._book["stages"]

    def progress(self, stage: str, which: str) -> Progress:
        """The "last" complete round of a stage, or the "selected" one."""
        if not self.holds(stage):
            raise RunError(f"{self._path.parent} holds no complete round yet.")
        entries = self._book["stages"][stage]
        entry = entries[which]
        groups = load_groups(self.folder / entry["server"])

        def under(prefix: str) -> Groups:
            return {n.removeprefix(prefix): g for n, g in groups.items() if n.startswith(prefix)}

        state = ServerState(
            groups.get("shared", {}), under("personal/"), under("memory/"),
            tuple(entry["notes"]), frozenset(entry["buffers"]),
        )  # fmt: skip
        return Progress(
            entry["stage"], entry["round"], state, Choice(**entry["selected"]),
            kept=entry["private"], kept_then=entries["selected"]["private"],
        )  # fmt: skip

    def save_state(self, progress: Progress) -> Entry:
        """Write what the server holds after a round, which does not count before ``commit``."""
        state = progress.state
        file = f"server-{progress.stage}-{progress.round:06d}.safetensors"
        groups: Groups = {"shared": state.shared}
        groups.update({f"memory/{name}": group for name, group in state.memory.items()})
        groups.update({f"personal/{name}": group for name, group in state.personal.items()})
        save_groups(self.folder / file, groups)
        return {
            "stage": progress.stage,
            "round": progress.round,
            "selected": asdict(progress.selected),
            "notes": list(state.notes),
            "buffers": sorted(state.buffers),
            "server": file,
            "private": dict(progress.kept),
        }

    def commit(self, progress: Progress, entry: Entry, lengths: Mapping[str, int]) -> None:
        """Make a saved round the last one, at these lengths of the logs."""
        before = self._book["stages"].get(progress.stage, {})
        # Until a validation score has chosen a round, and where there are none, it is the last.
        fresh = progress.selected.round in (0, progress.round)
        entries = {"last": entry, "selected": entry if fresh else before["selected"]}
        if progress.unless_last is not None:
            entries["unless_last"] = {
                "choice": asdict(progress.unless_last),
                "selected": before["selected"] if progress.unless_last.round else None,
                "lengths": self.lengths,
            }
        self._write(progress.stage, entries, lengths)
        self._sweep()

    def before_out_of_turn(self, stage: str, log: str, rounds: int) -> int | None:
        """Take back the score of a last round that is not the last of so many any more.

        The round stays, as one that was not scored: its lines of a log do not count, and what was
        selected before is so again. Returns the number of the last round, if there are to be more.
        """
        if not self.holds(stage) or self._book["stages"][stage]["last"]["round"] >= rounds:
            return None
        entries = dict(self._book["stages"][stage])
        if (unless_last := entries.pop("unless_last", None)) is not None:
            last = {**entries["last"], "selected": unless_last["choice"]}
            entries = {"last": last, "selected": unless_last["selected"] or last}
            self._write(stage, entries, {**self.lengths, log: unless_last["lengths"].get(log, 0)})
        return int(entries["last"]["round"])

    def copy(self, stage: str, other: Checkpoint, lengths: Mapping[str, int]) -> None:
        """Take a stage over from another run, whose lines stand in the logs already."""
        theirs = other._book["stages"][stage]
        entries = {which: theirs[which] for which in ("last", "selected")}
        for file in _files(entries["last"]) | _files(entries["selected"]):
            shutil.copyfile(other.folder / file, self.folder / file)
        self._write(stage, entries, lengths)

    def _write(self, stage: str, entries: Entry, lengths: Mapping[str, int]) -> None:
        stages = {**self._book["stages"], stage: entries}
        self._read = {"stages": stages, "lengths": dict(lengths)}
        write_json(self._path, self._read)

    def _sweep(self) -> None:
        """Remove states no checkpoint refers to any more."""
        needed: set[str] = set()
        for entries in self._book["stages"].values():
            needed |= _files(entries["last"]) | _files(entries["selected"])
            if earlier := entries.get("unless_last", {}).get("selected"):
                needed |= _files(earlier)
        for file in self.folder.iterdir():
            if file.name not in needed:
                file.unlink(missing_ok=True)


def _files(entry: Entry) -> set[str]:
    """The files that hold a round: the server's, and clients' private states."""
    return {entry["server"], *map(pack_file, entry["private"].values())}
