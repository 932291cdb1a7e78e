"""What a run folder tells, read once: figures, tables, comparisons, deployed clients ask here."""

from __future__ import annotations

from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from fedskew.config import Config, make_config
from fedskew.errors import RunError
from fedskew.federate.metrics import MAIN
from fedskew.federate.server import RoundRecord
from fedskew.runs.rows import Rows, read_lines, read_rows
from fedskew.store import read_json

CONFIG, CHECKPOINT, RESULT = "config.json", "checkpoint.json", "result.json"
METRICS, ROUNDS, TIMING = "metrics.jsonl", "rounds.jsonl", "timing.jsonl"


def recorded(folder: Path) -> dict[str, Any]:
    """What a run folder keeps of the run's identity, for reading only.

    One file is read once, however many runs look for those that were made before them.
    """
    path = folder / CONFIG
    try:
        found = path.stat()
    except OSError as error:
        raise RunError(f"could not read {path}: {error}.") from error
    return _recorded(path.resolve(), found.st_ino, found.st_mtime_ns)


@lru_cache(maxsize=2048)
def _recorded(path: Path, inode: int, written: int) -> dict[str, Any]:
    found: dict[str, Any] = read_json(path)
    return found


class Results:
    """One run's settings, numbers and summary; each file is read when it is first asked for.

    Of a run that is not finished, the last complete round is the last that counts, whatever was
    written since. Who has just written the last line of all says that the folder is ``whole``.
    """

    def __init__(self, path: Path, *, whole: bool = False) -> None:
        self.path = path
        self._whole = whole

    @property
    def is_finished(self) -> bool:
        return (self.path / RESULT).is_file()

    @cached_property
    def settings(self) -> dict[str, Any]:
        """What the run was begun with: its config, and the hashes of its code and data."""
        return recorded(self.path)

    @cached_property
    def config(self) -> Config:
        return make_config(self.settings["config"])

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The run in one dictionary; only a finished one has it."""
        if not self.is_finished:
            raise RunError(f"{self.path} is not a finished run; repeat its command to finish it.")
        found: dict[str, Any] = read_json(self.path / RESULT)
        return found

    @cached_property
    def rows(self) -> Rows:
        """Every measured number."""
        return read_rows(self.path / METRICS, self._length(METRICS))

    @cached_property
    def as_trained(self) -> Rows:
        """The rows of the main stage about models that were not adapted."""
        return self.rows.where(stage=MAIN, adapted="none")

    @cached_property
    def records(self) -> tuple[RoundRecord, ...]:
        """What happened in each round, besides its scores."""
        return tuple(read_lines(self.path / ROUNDS, _record, self._length(ROUNDS)))

    @cached_property
    def seconds(self) -> float:
        """How long all rounds took."""
        return sum(read_lines(self.path / TIMING, _seconds, self._length(TIMING)), start=0.0)

    def _length(self, name: str) -> int | None:
        """How much of a log counts; None for all of it."""
        if self._whole or self.is_finished:
            return None
        return int(self._committed.get(name, 0))

    @cached_property
    def _committed(self) -> dict[str, int]:
        path = self.path / CHECKPOINT
        return dict(read_json(path)["lengths"]) if path.exists() else {}


def _record(line: dict[str, Any]) -> RoundRecord:
    return RoundRecord(**{**line, "notes": tuple(line["notes"])})


def _seconds(line: dict[str, Any]) -> float:
    return float(line["seconds"])
