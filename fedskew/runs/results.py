"""The contents of a run folder, read once for figures, tables, comparisons and deployment."""

from __future__ import annotations

from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from fedskew.config import Config, config_of
from fedskew.errors import ConfigError, RunError, unknown
from fedskew.federate.metrics import MAIN
from fedskew.federate.own_models import NAMES, OWN, own_models
from fedskew.federate.progress import RoundRecord
from fedskew.runs.kept import Kept, read_kept
from fedskew.runs.logs import Extent, extents
from fedskew.runs.rows import Rows, read_lines, read_rows
from fedskew.runs.summary import checked_summary
from fedskew.store import check_sha256, read_sealed
from fedskew.trust.consent import code_named_in, found_in_file

CONFIG, CHECKPOINT, RESULT = "config.json", "checkpoint.json", "result.json"
METRICS, ROUNDS, TIMING = "metrics.jsonl", "rounds.jsonl", "timing.jsonl"
MODELS = "models"


def recorded(folder: Path) -> dict[str, Any]:
    """What a run folder keeps of the run's identity, for reading only.

    Each file is read once, however many runs search for earlier ones.
    """
    path = folder / CONFIG
    try:
        found = path.stat()
    except OSError as error:
        raise RunError(f"could not read {path}: {error}.") from error
    settings, code = _recorded(path.resolve(), found.st_ino, found.st_mtime_ns)
    found_in_file(path, code)
    return settings


@lru_cache(maxsize=2048)
def _recorded(path: Path, inode: int, written: int) -> tuple[dict[str, Any], frozenset[str]]:
    found = read_sealed(path)
    code = found.get("code", {})
    if (
        not isinstance(found["config"], dict)
        or not isinstance(found.get("data", ""), str)
        or not isinstance(code, dict)
        or not all(isinstance(file, dict) and "file" in file for file in code.values())
    ):
        raise RunError(f"{path} is not what a run was begun with.")
    return found, code_named_in(found)


class Results:
    """One run's settings, numbers and summary; each file is read when it is first asked for.

    In an unfinished run, the last complete round is the last that counts, whatever was written
    since. ``whole`` says that the caller has just written the last line of all.
    """

    def __init__(self, path: Path, *, whole: bool = False) -> None:
        self.path = path
        self._whole = whole

    @property
    def is_finished(self) -> bool:
        return (self.path / RESULT).is_file()

    @cached_property
    def settings(self) -> dict[str, Any]:
        """What the run was started with: its config, and the hashes of its code and data."""
        return recorded(self.path)

    @cached_property
    def config(self) -> Config:
        try:
            return config_of(self.settings["config"])
        except ConfigError as error:
            raise RunError(f"{self.path / CONFIG} holds no settings of a run: {error}") from error

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The run in one dictionary; only a finished one has it."""
        if not self.is_finished:
            raise RunError(f"{self.path} is not a finished run; repeat its command to finish it.")
        return checked_summary(self.path / RESULT, read_sealed(self.path / RESULT))

    @property
    def kept(self) -> Kept | None:
        """What each client keeps of a finished run, if that was decided."""
        return read_kept(self.path) if self.is_finished else None

    def model_file(self, round: str, client: str | None = None) -> Path:
        """The file of the global model or of a client's own; a damaged one is refused.

        ``round`` is "selected" or "last".
        """
        folder = self.path / MODELS / round
        self._check(folder / OWN / NAMES)
        saved = own_models(folder)
        if client is not None and client not in saved:
            raise unknown("client with a model of its own", client, saved)
        path = folder / "global.safetensors" if client is None else saved[client]
        if not path.is_file():
            raise RunError(f"no global model in {self.path}; there are: {', '.join(saved)}.")
        self._check(path)
        return path

    def _check(self, path: Path) -> None:
        """Refuse a file that is not as the run left it; earlier versions recorded no hashes."""
        hashes = self.summary.get("hashes", {})
        check_sha256(path, hashes.get(path.relative_to(self.path).as_posix()))

    @cached_property
    def rows(self) -> Rows:
        """Every measured number."""
        return read_rows(self.path / METRICS, *self._counts(METRICS))

    @cached_property
    def as_trained(self) -> Rows:
        """The rows of the main stage about models that were not adapted."""
        return self.rows.where(stage=MAIN, adapted="none")

    @cached_property
    def records(self) -> tuple[RoundRecord, ...]:
        """What happened in each round, besides its scores."""
        return tuple(read_lines(self.path / ROUNDS, _record, *self._counts(ROUNDS)))

    @cached_property
    def seconds(self) -> float:
        """How long all rounds took."""
        return sum(read_lines(self.path / TIMING, _seconds, *self._counts(TIMING)), start=0.0)

    def _counts(self, name: str) -> tuple[int | None, str | None]:
        """How much of a log counts (None: all of it), and its hash if it is known."""
        if self._whole:
            return None, None
        if self.is_finished:
            return None, self.summary.get("hashes", {}).get(name)
        found = self._committed.get(name, Extent())
        return found.length, found.sha256

    @cached_property
    def _committed(self) -> dict[str, Extent]:
        path = self.path / CHECKPOINT
        if not path.exists():
            return {}
        found = read_sealed(path)
        lengths = found.get("lengths")
        if not isinstance(lengths, dict) or not all(type(n) is int for n in lengths.values()):
            raise RunError(f"{path} does not say how long the logs of its rounds are.")
        return extents(found)


def _record(line: dict[str, Any]) -> RoundRecord:
    return RoundRecord(**{**line, "notes": tuple(line["notes"])})


def _seconds(line: dict[str, Any]) -> float:
    return float(line["seconds"])
