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
from fedskew.federate.metrics import MAIN, Row
from fedskew.federate.rounds import keeps_matrices_in_turn
from fedskew.federate.server import Progress, RoundRecord
from fedskew.runs.checkpoint import Checkpoint
from fedskew.runs.results import CONFIG, METRICS, RESULT, ROUNDS, TIMING, recorded
from fedskew.store import (
    disk_error,
    make_folder,
    read_json,
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
        self.checkpoint = Checkpoint(path)
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

    @contextmanager
    def opened(self, identity: Identity) -> Iterator[RunFolder]:
        """Create or take up the folder, alone: a second process on the same run is refused."""
        try:
            self.checkpoint.folder.mkdir(parents=True, exist_ok=True)
            lock = open(self.path / ".lock", "w")  # noqa: SIM115
        except OSError as error:
            raise disk_error(self.path, error) from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise RunError(f"another process is working on {self.path}.") from None
            self.checkpoint.read_again()
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
                if self.checkpoint.is_empty:
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
        last = self.checkpoint.before_out_of_turn(MAIN, METRICS, config.train.rounds)
        if last is not None and not keeps_matrices_in_turn(last, config.evaluate.matrix_rounds):
            for file in (self.path / "matrices").glob(f"*-{last:06d}.csv"):
                file.unlink()

    def _roll_back(self) -> None:
        """Wipe from the logs what an interrupted round wrote after the last complete one."""
        lengths = self.checkpoint.lengths
        for name in (METRICS, ROUNDS, TIMING):
            if (self.path / name).exists():
                os.truncate(self.path / name, lengths.get(name, 0))

    def resume(self, stage: str) -> Progress | None:
        """The last complete round of a stage, if there is one."""
        return self.last(stage) if self.checkpoint.holds(stage) else None

    def selected(self, stage: str) -> Progress:
        """The round with the best validation score."""
        return self.checkpoint.progress(stage, "selected")

    def last(self, stage: str) -> Progress:
        return self.checkpoint.progress(stage, "last")

    def commit(self, progress: Progress, rows: Sequence[Row], record: RoundRecord) -> None:
        """Make a round durable; until the last line the previous one stands."""
        entry = self.checkpoint.save_state(progress)
        self._save_matrices(progress)
        elapsed = {"stage": record.stage, "round": record.round, "seconds": self._lap()}
        lengths = {
            METRICS: self._append(METRICS, [row.as_dict() for row in rows]),
            ROUNDS: self._append(ROUNDS, [asdict(record)]),
            TIMING: self._append(TIMING, [elapsed]),
        }
        self.checkpoint.commit(progress, entry, lengths)

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
        times = [json.loads(line) for line in other._lines_of(stage, TIMING)]
        lengths = {
            METRICS: self._write(METRICS, other._lines_of(stage, METRICS)),
            ROUNDS: self._write(ROUNDS, other._lines_of(stage, ROUNDS)),
            TIMING: self._append(TIMING, [{**line, "seconds": 0.0} for line in times]),
        }
        self.checkpoint.copy(stage, other.checkpoint, lengths)

    def _lap(self) -> float:
        now = time.monotonic()
        seconds, self._started = now - self._started, now
        return round(seconds, 4)

    def _save_matrices(self, progress: Progress) -> None:
        for name, matrix in progress.state.matrices.items():
            folder = make_folder(self.path / "matrices")
            lines = [
                (client, *(f"{value:.6g}" for value in row))
                for client, row in zip(matrix.clients, matrix.values.tolist(), strict=True)
            ]
            path = folder / f"{name}-{progress.round:06d}.csv"
            write_csv(path, [("client", *matrix.clients), *lines])

    def _lines_of(self, stage: str, name: str) -> list[bytes]:
        """A stage's lines of a log, as they were written.

        Beyond the committed length stands what this run has not committed, perhaps half a line.
        """
        lines = (self.path / name).read_bytes()[: self.checkpoint.lengths[name]]
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

    def write_last(self, rows: Sequence[Row]) -> None:
        """Write the last numbers; nothing is measured after them."""
        self._append(METRICS, [row.as_dict() for row in rows])

    def finish(self, result: dict[str, Any]) -> None:
        """Write the summary, which marks the run as finished."""
        write_json(self.path / RESULT, result)
