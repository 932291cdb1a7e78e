"""What a run goes on from: the last complete round of every stage, and the selected one."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedskew.engine.arithmetic import Arithmetic, arithmetic, differences
from fedskew.errors import RunError
from fedskew.federate.private import pack_file
from fedskew.federate.progress import Progress
from fedskew.federate.rounds import Choice
from fedskew.parts.aggregate import ServerState
from fedskew.runs.logs import Extent, extents
from fedskew.store import (
    check_sha256,
    load_groups,
    read_sealed,
    save_groups,
    sha256_of,
    write_sealed,
)
from fedskew.types import Groups

Entry = dict[str, Any]
MATRICES = "matrices"
"""The folder of numbers about pairs of clients."""


class Checkpoint:
    """``checkpoint.json`` and the files in ``checkpoint/`` that it refers to.

    It says for each stage which files hold the last round and the selected one, how long the logs
    were then, and the SHA-256 of all of them, itself included: a damaged file is an error, never
    another result. Whoever writes holds the run's lock, so the file is read once.
    """

    def __init__(self, run: Path) -> None:
        self.run = run
        self.folder = run / "checkpoint"
        self._path = run / "checkpoint.json"
        self._read: dict[str, Any] | None = None
        self._known: set[str] = set()
        """Files that this process has hashed."""
        self._written: dict[str, str] = {}
        """The hashes of states it wrote, by name, until they count."""
        self.apart = False
        """Whether clients keep their private states to themselves, and not in this folder."""

    @property
    def _book(self) -> dict[str, Any]:
        if self._read is None:
            self._read = read_sealed(self._path) if self._path.exists() else {"stages": {}}
        return self._read

    def read_again(self) -> None:
        """Forget what was read: another process may have worked on the run since."""
        self._read = None
        self._known.clear()

    @property
    def is_empty(self) -> bool:
        """Whether no round is complete."""
        return not self._book["stages"]

    @property
    def logs(self) -> dict[str, Extent]:
        """How much of each log belongs to complete rounds."""
        return extents(self._book)

    @property
    def hashes(self) -> dict[str, str]:
        """By path in the run folder, the SHA-256 of files; of a log, of what counts of it.

        None where the last round was made before there were hashes.
        """
        return dict(self._book.get("hashes", {}))

    @property
    def made_on(self) -> list[Arithmetic]:
        """What computed the rounds, in the order in which machines worked on them."""
        return list(self._book.get("made_on", []))

    def why_other_bits(self) -> str:
        """One sentence where this machine goes on with what another kind began; else nothing."""
        *_, last = [{}, *self.made_on]
        if not last or not (others := differences(last, arithmetic())):
            return ""
        return (
            f"{self.run.name} was begun with other arithmetic: {others}; going on, its last bits "
            "will be neither machine's"
        )

    def check(self) -> None:
        """Refuse to go on from files that are not those that were written."""
        for name in self.hashes:
            if name not in self.logs:
                self._check(name)

    def _check(self, name: str) -> None:
        """Hash a file unless this process has done so already, be it to write it down."""
        if name not in self._known:
            check_sha256(self.run / name, self.hashes.get(name))
            self._known.add(name)

    def holds(self, stage: str) -> bool:
        """Whether a round of a stage is complete."""
        return stage in self._book["stages"]

    def progress(self, stage: str, which: str) -> Progress:
        """The "last" complete round of a stage, or the "selected" one."""
        if not self.holds(stage):
            raise RunError(f"{self._path.parent} holds no complete round yet.")
        entries = self._book["stages"][stage]
        entry = entries[which]
        self._check(self._name(entry["server"]))
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
        self._written[self._name(file)] = save_groups(self.folder / file, groups)
        return {
            "stage": progress.stage,
            "round": progress.round,
            "selected": asdict(progress.selected),
            "notes": list(state.notes),
            "buffers": sorted(state.buffers),
            "server": file,
            "private": dict(progress.kept),
            **({"apart": True} if self.apart else {}),
        }

    def commit(
        self,
        progress: Progress,
        entry: Entry,
        logs: Mapping[str, Extent],
        matrices: Sequence[Path] = (),
    ) -> None:
        """Make a saved round the last one, with so much of the logs and these matrices."""
        before = self._book["stages"].get(progress.stage, {})
        # Until a validation score has chosen a round, and where there are none, it is the last.
        fresh = progress.selected.round in (0, progress.round)
        entries = {"last": entry, "selected": entry if fresh else before["selected"]}
        if progress.unless_last is not None:
            entries["unless_last"] = {
                "choice": asdict(progress.unless_last),
                "selected": before["selected"] if progress.unless_last.round else None,
                "lengths": {name: log.length for name, log in self.logs.items()},
                "hashes": {name: log.sha256 for name, log in self.logs.items() if log.sha256},
            }
        self._write(progress.stage, entries, logs, matrices)
        self.sweep()

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
            before = extents(unless_last).get(log, Extent())
            self._write(stage, entries, {**self.logs, log: before}, made_on=self.made_on)
        return int(entries["last"]["round"])

    def forget(self, matrix: Path) -> None:
        """Take a matrix out of the book, to be removed."""
        hashes = self.hashes
        if hashes.pop(self._name(matrix), None):
            self._read = {**self._book, "hashes": hashes}
            write_sealed(self._path, self._read)

    def copy(self, stage: str, other: Checkpoint, logs: Mapping[str, Extent]) -> None:
        """Take a stage over from another run, whose lines stand in the logs already."""
        theirs = other._book["stages"][stage]
        entries = {which: theirs[which] for which in ("last", "selected")}
        for file in _files(entries["last"]) | _files(entries["selected"]):
            other._check(other._name(file))
            shutil.copyfile(other.folder / file, self.folder / file)
        theirs_too = [each for each in other.made_on if each not in self.made_on]
        self._write(stage, entries, logs, made_on=[*self.made_on, *theirs_too])

    def _write(
        self,
        stage: str,
        entries: Entry,
        logs: Mapping[str, Extent],
        matrices: Sequence[Path] = (),
        made_on: Sequence[Arithmetic] | None = None,
    ) -> None:
        stages = {**self._book["stages"], stage: entries}
        known = self.hashes
        self._known |= {self._name(file) for file in _needed(stages)}
        hashes = {name: sha256 for name, sha256 in known.items() if name.startswith(MATRICES)}
        hashes |= {self._name(path): sha256_of(path) for path in matrices}
        for file in _needed(stages):
            # States never change once they are written: each is hashed once.
            name = self._name(file)
            hashes[name] = (
                known.get(name) or self._written.get(name) or sha256_of(self.folder / file)
            )
        self._written.clear()
        hashes |= {name: log.sha256 for name, log in logs.items() if log.sha256 is not None}
        lengths = {name: log.length for name, log in logs.items()}
        if made_on is None:
            here = arithmetic()
            made_on = [*(each for each in self.made_on if each != here), here]
        self._read = {
            "stages": stages,
            "lengths": lengths,
            "hashes": hashes,
            "made_on": list(made_on),
        }
        write_sealed(self._path, self._read)

    def _name(self, file: str | Path) -> str:
        """A file's path in the run folder; one that is only named stands in ``checkpoint/``."""
        path = file if isinstance(file, Path) else self.folder / file
        return path.relative_to(self.run).as_posix()

    def sweep(self) -> None:
        """Remove states that no complete round refers to."""
        needed = _needed(self._book["stages"])
        for file in self.folder.iterdir():
            if file.name not in needed:
                file.unlink(missing_ok=True)


def _needed(stages: Mapping[str, Entry]) -> set[str]:
    """The files in ``checkpoint/`` that some stage refers to."""
    needed: set[str] = set()
    for entries in stages.values():
        needed |= _files(entries["last"]) | _files(entries["selected"])
        if earlier := entries.get("unless_last", {}).get("selected"):
            needed |= _files(earlier)
    return needed


def _files(entry: Entry) -> set[str]:
    """The files that hold a round: the server's, and clients' private states, if they are here."""
    if entry.get("apart"):
        return {entry["server"]}
    return {entry["server"], *map(pack_file, entry["private"].values())}
