"""The run folder: config, checkpoints, metrics and models; it is the truth about a run."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedskew.config import Config
from fedskew.errors import ConfigError, RunError
from fedskew.federate.private import pack_file
from fedskew.federate.rounds import Choice, keeps_matrices_in_turn
from fedskew.parts.aggregate import ServerState
from fedskew.parts.report import Groups
from fedskew.runs.results import CONFIG, METRICS, RESULT, ROUNDS, TIMING, recorded
from fedskew.score import MAIN, Row
from fedskew.server import Progress, RoundRecord
from fedskew.store import (
    disk_error,
    load_groups,
    make_folder,
    read_json,
    save_groups,
    write_csv,
    write_json,
)

if TYPE_CHECKING:
    from fedskew.runs.identity import Identity

OFFERED = "stages.json"


class RunFolder:
    """One run on disk.

    ``config.json``       what decided the numbers, whose hash names the folder: see runs.identity
    ``checkpoint.json``   which files make up the last complete round, and the selected one
    ``checkpoint/``       server state and private state, one file a round
    ``metrics.jsonl``     every measured number; ``rounds.jsonl`` what happened; ``timing.jsonl``
    ``matrices/``         numbers about pairs of clients, one CSV a kind and chosen round
    ``stages.json``       finished stages other runs may take over, and all that decided them
    ``result.json``       the summary; its presence means the run is finished
    ``sample_weights.npz`` every training sample's weight, where a method weighs samples
    ``models/``           the models as safetensors; ``figures/`` pictures and their data
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._started = time.monotonic()

    @classmethod
    def of(cls, identity: Identity, out: Path) -> RunFolder:
        """Where a run stands: under its name, or beside it if the run of that name is longer."""
        folder, wanted = cls(out / identity.name), identity.config.train.rounds
        if (folder.rounds or 0) > wanted:
            return cls(out / f"{identity.name}-{wanted}-rounds")
        return folder

    @property
    def rounds(self) -> int | None:
        """How many rounds the run was asked for last, if it is here."""
        if not (self.path / CONFIG).exists():
            return None
        return int(recorded(self.path)["config"]["train"]["rounds"])

    def has_finished(self, identity: Identity) -> bool:
        """Whether all rounds that are wanted now are done, and summed up."""
        return self.is_finished and self.rounds == identity.config.train.rounds

    @property
    def is_finished(self) -> bool:
        return (self.path / RESULT).is_file()

    @property
    def checkpoint_folder(self) -> Path:
        return self.path / "checkpoint"

    @contextmanager
    def opened(self, identity: Identity) -> Iterator[RunFolder]:
        """Create or take up the folder, alone: a second process on the same run is refused."""
        try:
            self.checkpoint_folder.mkdir(parents=True, exist_ok=True)
            lock = open(self.path / ".lock", "w")  # noqa: SIM115
        except OSError as error:
            raise disk_error(self.path, error) from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise RunError(f"another process is working on {self.path}.") from None
            if not self.holds(identity) or self.rounds != identity.config.train.rounds:
                # In this order: a folder with a summary has all rounds its config asks for.
                (self.path / RESULT).unlink(missing_ok=True)
                shutil.rmtree(self.path / "figures", ignore_errors=True)
                write_json(self.path / CONFIG, identity.recorded())
            self._forget_out_of_turn(identity.config)
            self._roll_back()
            self._started = time.monotonic()
            try:
                yield self
            except ConfigError:
                # Settings that cannot work together leave nothing behind.
                if self._book() is None:
                    shutil.rmtree(self.path)
                raise

    def holds(self, identity: Identity) -> bool:
        """Whether this run is here, if only begun; another run in its place is refused."""
        if not (self.path / CONFIG).exists():
            return False
        found = recorded(self.path)
        if found.get("identity") != identity.sha256:
            raise RunError(
                f"{self.path} holds another run than its name says, or one of an older format, "
                "which cannot be gone on with: move it away."
            )
        return True

    def _forget_out_of_turn(self, config: Config) -> None:
        """Take back what was done only because a round was the last, now that there are more."""
        book = self._book() or {"stages": {}}
        main = book["stages"].get(MAIN)
        if main is None or main["last"]["round"] >= config.train.rounds:
            return
        last = main["last"]
        if not keeps_matrices_in_turn(last["round"], config.evaluate.matrix_rounds):
            for file in (self.path / "matrices").glob(f"*-{last['round']:06d}.csv"):
                file.unlink()
        if (unless_last := main.pop("unless_last", None)) is not None:
            last["selected"] = unless_last["choice"]
            main["selected"] = unless_last["selected"] or last
            last["private_then"] = main["selected"]["private"]
            book["lengths"][METRICS] = unless_last["metrics"]
            write_json(self.path / "checkpoint.json", book)

    def _roll_back(self) -> None:
        """Wipe from the logs what an interrupted round wrote after the last complete one."""
        lengths = (self._book() or {}).get("lengths", {})
        for name in (METRICS, ROUNDS, TIMING):
            if (self.path / name).exists():
                os.truncate(self.path / name, lengths.get(name, 0))

    def resume(self, stage: str) -> Progress | None:
        """The last complete round of a stage, if there is one."""
        book = self._book()
        if book is None or stage not in book["stages"]:
            return None
        return self._progress(book["stages"][stage]["last"])

    def selected(self, stage: str) -> Progress:
        """The round with the best validation score."""
        return self._stored(stage, "selected")

    def last(self, stage: str) -> Progress:
        return self._stored(stage, "last")

    def _stored(self, stage: str, which: str) -> Progress:
        book = self._book()
        if book is None or stage not in book["stages"]:
            raise RunError(f"{self.path} holds no complete round yet.")
        return self._progress(book["stages"][stage][which])

    def commit(self, progress: Progress, rows: Sequence[Row], record: RoundRecord) -> None:
        """Make a round durable; until the last line the previous one stands."""
        label = f"{progress.stage}-{progress.round:06d}"
        entry = self._save_state(progress, label)
        self._save_matrices(progress)
        book = self._book() or {"stages": {}}
        before = book["stages"].get(progress.stage, {})
        # Until a validation score has chosen a round, and where there are none, it is the last.
        fresh = progress.selected.round in (0, progress.round)
        book["stages"][progress.stage] = {
            "last": entry,
            "selected": entry if fresh else before["selected"],
        }
        if progress.unless_last is not None:
            book["stages"][progress.stage]["unless_last"] = {
                "choice": asdict(progress.unless_last),
                "selected": before["selected"] if progress.unless_last.round else None,
                "metrics": book.get("lengths", {}).get(METRICS, 0),
            }
        elapsed = {"stage": record.stage, "round": record.round, "seconds": self._lap()}
        book["lengths"] = {
            METRICS: self._append(METRICS, [row.as_dict() for row in rows]),
            ROUNDS: self._append(ROUNDS, [asdict(record)]),
            TIMING: self._append(TIMING, [elapsed]),
        }
        write_json(self.path / "checkpoint.json", book)
        self._sweep(book)

    def offer(self, stage: str, made_by: str) -> None:
        """Let other runs use a finished stage that is made the same way in theirs."""
        path = self.path / OFFERED
        offered = read_json(path) if path.exists() else {}
        if stage not in offered:
            write_json(path, {**offered, stage: made_by})

    def adopt(self, stage: str, made_by: str) -> None:
        """Take a finished stage over from a run beside this one, if one offers it.

        Its rounds are copied with their numbers, but for the time: this run does not spend it.
        """
        for path in sorted(self.path.parent.glob(f"*/{OFFERED}")):
            if read_json(path).get(stage) == made_by:
                self._copy_stage(stage, RunFolder(path.parent))
                return

    def _copy_stage(self, stage: str, other: RunFolder) -> None:
        book = (other._book() or {})["stages"][stage]
        theirs = {which: book[which] for which in ("last", "selected")}
        for file in _files(theirs["last"]) | _files(theirs["selected"]):
            shutil.copyfile(other.checkpoint_folder / file, self.checkpoint_folder / file)
        book = self._book() or {"stages": {}}
        book["stages"][stage] = theirs
        times = [json.loads(line) for line in other._lines_of(stage, TIMING)]
        book["lengths"] = {
            METRICS: self._write(METRICS, other._lines_of(stage, METRICS)),
            ROUNDS: self._write(ROUNDS, other._lines_of(stage, ROUNDS)),
            TIMING: self._append(TIMING, [{**line, "seconds": 0.0} for line in times]),
        }
        write_json(self.path / "checkpoint.json", book)

    def _lap(self) -> float:
        now = time.monotonic()
        seconds, self._started = now - self._started, now
        return round(seconds, 4)

    def _book(self) -> dict[str, Any] | None:
        path = self.path / "checkpoint.json"
        return read_json(path) if path.exists() else None

    def _save_state(self, progress: Progress, label: str) -> dict[str, Any]:
        state = progress.state
        file = f"server-{label}.safetensors"
        groups: Groups = {"shared": state.shared}
        groups.update({f"memory/{name}": group for name, group in state.memory.items()})
        groups.update({f"personal/{name}": group for name, group in state.personal.items()})
        save_groups(self.checkpoint_folder / file, groups)
        return {
            "stage": progress.stage,
            "round": progress.round,
            "selected": asdict(progress.selected),
            "notes": list(state.notes),
            "buffers": sorted(state.buffers),
            "server": file,
            "private": dict(progress.kept),
            "private_then": dict(progress.kept_then),
        }

    def _save_matrices(self, progress: Progress) -> None:
        for name, matrix in progress.state.matrices.items():
            folder = make_folder(self.path / "matrices")
            lines = [
                (client, *(f"{value:.6g}" for value in row))
                for client, row in zip(matrix.clients, matrix.values.tolist(), strict=True)
            ]
            path = folder / f"{name}-{progress.round:06d}.csv"
            write_csv(path, [("client", *matrix.clients), *lines])

    def _progress(self, entry: dict[str, Any]) -> Progress:
        groups = load_groups(self.checkpoint_folder / entry["server"])

        def under(prefix: str) -> Groups:
            return {n.removeprefix(prefix): g for n, g in groups.items() if n.startswith(prefix)}

        state = ServerState(
            groups.get("shared", {}), under("personal/"), under("memory/"),
            tuple(entry["notes"]), frozenset(entry["buffers"]),
        )  # fmt: skip
        selected = Choice(**entry["selected"])
        return Progress(
            entry["stage"], entry["round"], state, selected,
            kept=entry["private"], kept_then=entry.get("private_then", {}),
        )  # fmt: skip

    def _lines_of(self, stage: str, name: str) -> list[bytes]:
        """A stage's lines of a log, as they were written.

        Beyond the book's lengths stands what this run has not committed, perhaps half a line.
        """
        lines = (self.path / name).read_bytes()[: (self._book() or {})["lengths"][name]]
        begin = b'{"stage": %b, ' % json.dumps(stage).encode()
        return [line for line in lines.splitlines(keepends=True) if line.startswith(begin)]

    def _append(self, name: str, lines: Sequence[dict[str, Any]]) -> int:
        return self._write(name, [(json.dumps(line) + "\n").encode() for line in lines])

    def _write(self, name: str, lines: Sequence[bytes]) -> int:
        """Add lines to a log and return its length; a line is only valid once committed."""
        path = self.path / name
        try:
            with open(path, "ab") as file:
                file.write(b"".join(lines))
                file.flush()
                os.fsync(file.fileno())
                return file.tell()
        except OSError as error:
            raise disk_error(path, error) from error

    def _sweep(self, book: dict[str, Any]) -> None:
        """Remove state no checkpoint refers to any more."""
        needed: set[str] = set()
        for stage in book["stages"].values():
            needed |= _files(stage["last"]) | _files(stage["selected"])
            if earlier := stage.get("unless_last", {}).get("selected"):
                needed |= _files(earlier)
        for file in self.checkpoint_folder.iterdir():
            if file.name not in needed:
                file.unlink(missing_ok=True)

    def write_last(self, rows: Sequence[Row]) -> None:
        """Write the last numbers; nothing is measured after them."""
        self._append(METRICS, [row.as_dict() for row in rows])

    def finish(self, result: dict[str, Any]) -> None:
        """Write the summary, which marks the run as finished."""
        write_json(self.path / RESULT, result)


def _files(entry: dict[str, Any]) -> set[str]:
    """The files of a checkpoint that hold a round: the server's, and clients' private states."""
    return {entry["server"], *map(pack_file, entry["private"].values())}
