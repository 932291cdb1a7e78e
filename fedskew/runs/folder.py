"""The run folder: config, checkpoints, metrics and models; it is the truth about a run."""

from __future__ import annotations

import fcntl
import json
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedskew.config import Config
from fedskew.errors import RunError
from fedskew.federate.metrics import MAIN, Row
from fedskew.federate.progress import Progress, RoundRecord
from fedskew.federate.rounds import keeps_matrices_in_turn
from fedskew.runs.checkpoint import MATRICES, Checkpoint
from fedskew.runs.kept import KEPT
from fedskew.runs.logs import Extent, Log
from fedskew.runs.results import CONFIG, METRICS, MODELS, RESULT, ROUNDS, TIMING, recorded
from fedskew.store import (
    disk_error,
    make_folder,
    read_sealed,
    sha256_of,
    write_csv,
    write_sealed,
)

if TYPE_CHECKING:
    from fedskew.runs.identity import Identity

OFFERED = "stages.json"
INPUTS = ("preparation.json", "profile.json")
LOGS = (METRICS, ROUNDS, TIMING)


class RunFolder:
    """One run on disk.

    ``config.json``       what decided the numbers, whose hash names the folder: see runs.identity
    ``checkpoint.json``   which files make up the last complete round, and the selected one
    ``checkpoint/``       server state and private state, one file per round
    ``metrics.jsonl``     every measured number; ``rounds.jsonl`` what happened; ``timing.jsonl``
    ``matrices/``         numbers about pairs of clients, one CSV per kind and chosen round
    ``stages.json``       finished stages other runs may take over, and all that decided them
    ``result.json``       the summary; its presence means the run is finished
    ``kept.json``         what each client keeps, where that was decided
    ``skipped.txt``       files of the data that could not be read, where there were any
    ``sample_weights.npz`` every training sample's weight, where a method weighs samples
    ``preparation.json``  how samples as stored become those that models take
    ``profile.json``      what training rows look like, in counts
    ``models/``           the models as safetensors; ``figures/`` pictures and their data
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoint = Checkpoint(path)
        self._logs = {name: Log(path / name) for name in LOGS}
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
        above = [self.path, *self.path.parents]
        made = [folder for folder in above if not folder.exists()]
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
            self._check()
            if not self.holds(identity) or self.rounds != identity.config.train.rounds:
                # In this order: a folder with a summary has all rounds its config asks for.
                (self.path / RESULT).unlink(missing_ok=True)
                (self.path / KEPT).unlink(missing_ok=True)
                shutil.rmtree(self.path / "figures", ignore_errors=True)
                write_sealed(self.path / CONFIG, identity.recorded())
            self._forget_out_of_turn(identity.config)
            self._roll_back()
            self._started = time.monotonic()
            try:
                yield self
            except (Exception, SystemExit):
                # What cannot work leaves nothing behind, neither a folder nor those above it.
                if self.checkpoint.is_empty and self.path in made:
                    shutil.rmtree(self.path, ignore_errors=True)
                    for folder in made[1:]:
                        with suppress(OSError):
                            folder.rmdir()
                raise

    def holds(self, identity: Identity) -> bool:
        """Whether this run is here, if only begun; another run in its place is refused."""
        if not (self.path / CONFIG).exists():
            return False
        found = recorded(self.path)
        if found.get("identity") != identity.sha256:
            raise RunError(
                f"{self.path} holds another run than its name says, or one of an older format, "
                "which cannot be resumed: move it away."
            )
        return True

    def _forget_out_of_turn(self, config: Config) -> None:
        """Take back what was done only because a round was the last, now that there are more."""
        last = self.checkpoint.before_out_of_turn(MAIN, METRICS, config.train.rounds)
        if last is not None and not keeps_matrices_in_turn(last, config.evaluate.matrix_rounds):
            for file in (self.path / MATRICES).glob(f"*-{last:06d}.csv"):
                self.checkpoint.forget(file)
                file.unlink()

    def _check(self) -> None:
        """Refuse to go on from anything but what was written."""
        self.checkpoint.check()
        for name, log in self._logs.items():
            log.check(self.checkpoint.logs.get(name, Extent()))

    def _roll_back(self) -> None:
        """Wipe what an interrupted round wrote, and what the last complete one had yet to."""
        self.checkpoint.sweep()
        for name, log in self._logs.items():
            log.cut(self.checkpoint.logs.get(name, Extent()).length)
        if hashes := self.checkpoint.hashes:
            for file in (self.path / MATRICES).glob("*.csv"):
                if f"{MATRICES}/{file.name}" not in hashes:
                    file.unlink()

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
        matrices = self._save_matrices(progress)
        elapsed = {"stage": record.stage, "round": record.round, "seconds": self._lap()}
        logs = {
            METRICS: self._append(METRICS, [row.as_dict() for row in rows]),
            ROUNDS: self._append(ROUNDS, [asdict(record)]),
            TIMING: self._append(TIMING, [elapsed]),
        }
        self.checkpoint.commit(progress, entry, logs, matrices)

    def offer(self, stage: str, made_by: str) -> None:
        """Let other runs use a finished stage that is made the same way in theirs."""
        path = self.path / OFFERED
        offered = read_sealed(path) if path.exists() else {}
        if stage not in offered:
            write_sealed(path, {**offered, stage: made_by})

    def adopt(self, stage: str, made_by: str) -> None:
        """Take a finished stage over from a run beside this one, if one offers it.

        Its rounds are copied with their numbers, but for the time: this run does not spend it.
        """
        for path in sorted(self.path.parent.glob(f"*/{OFFERED}")):
            if read_sealed(path).get(stage) == made_by:
                self._copy_stage(stage, RunFolder(path.parent))
                return

    def _copy_stage(self, stage: str, other: RunFolder) -> None:
        times = [json.loads(line) for line in other._lines_of(stage, TIMING)]
        logs = {
            METRICS: self._logs[METRICS].add(other._lines_of(stage, METRICS)),
            ROUNDS: self._logs[ROUNDS].add(other._lines_of(stage, ROUNDS)),
            TIMING: self._append(TIMING, [{**line, "seconds": 0.0} for line in times]),
        }
        self.checkpoint.copy(stage, other.checkpoint, logs)

    def _lap(self) -> float:
        now = time.monotonic()
        seconds, self._started = now - self._started, now
        return round(seconds, 4)

    def _save_matrices(self, progress: Progress) -> list[Path]:
        paths = []
        for name, matrix in progress.state.matrices.items():
            folder = make_folder(self.path / MATRICES)
            lines = [
                (client, *(f"{value:.6g}" for value in row))
                for client, row in zip(matrix.clients, matrix.values.tolist(), strict=True)
            ]
            path = folder / f"{name}-{progress.round:06d}.csv"
            write_csv(path, [("client", *matrix.clients), *lines])
            paths.append(path)
        return paths

    def _lines_of(self, stage: str, name: str) -> list[bytes]:
        """A stage's lines of a log, as they were written.

        Beyond the committed length stands what this run has not committed, perhaps half a line.
        """
        lines = self._logs[name].lines(self.checkpoint.logs[name])
        begin = b'{"stage": %b, ' % json.dumps(stage).encode()
        return [line for line in lines if line.startswith(begin)]

    def _append(self, name: str, lines: Sequence[dict[str, Any]]) -> Extent:
        return self._logs[name].add([(json.dumps(line) + "\n").encode() for line in lines])

    def write_last(self, rows: Sequence[Row]) -> None:
        """Write the last numbers; nothing is measured after them."""
        self._append(METRICS, [row.as_dict() for row in rows])

    def finish(self, result: dict[str, Any]) -> None:
        """Write the summary, which marks the run as finished, with the hashes of what it is of."""
        models = sorted(path for path in (self.path / MODELS).rglob("*") if path.is_file())
        hashes = {path.relative_to(self.path).as_posix(): sha256_of(path) for path in models}
        hashes |= {name: str(log.extent.sha256) for name, log in self._logs.items()}
        inputs = [name for name in INPUTS if (self.path / name).is_file()]
        hashes |= {name: sha256_of(self.path / name) for name in inputs}
        made = {"hashes": hashes, "made_on": self.checkpoint.made_on}
        write_sealed(self.path / RESULT, {**result, **made})
