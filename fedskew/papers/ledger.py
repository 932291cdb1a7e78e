"""A file of outcomes, a line a run: who finds its run there need not run it again."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from fedskew.config import Config
from fedskew.errors import RunError
from fedskew.papers.grid import Cell
from fedskew.papers.outcome import Outcome, Plain
from fedskew.runs.identity import Identity, hash_of
from fedskew.store import disk_error, make_folder


class Line(Plain):
    """A finished run of a suite, and what it scored.

    ``identity`` is the hash of all that decides its numbers but the rounds; ``settings`` of the
    same without the data, for where the data are not; ``rounds`` are those that were asked for.
    ``seconds`` is what the whole run took, scoring and adapting at its end included, if that was
    measured; in the summary stand those of the rounds alone.
    """

    suite: str
    scale: str
    setting: str
    arm: str
    seed: int
    left_out: str = ""
    identity: str
    settings: str
    rounds: int
    seconds: float | None = None
    outcome: Outcome

    def is_of(self, suite: str, scale: str, cell: Cell) -> bool:
        mine = (self.suite, self.scale, self.setting, self.arm, self.seed, self.left_out)
        return mine == (suite, scale, cell.setting, cell.arm, cell.seed, cell.left_out)


def settings_hash(config: Config) -> str:
    """Of the settings that decide a run's numbers, data and earlier stages aside."""
    return hash_of(Identity(config, (), (), {}, "").settings)


@dataclass
class Ledger:
    """The lines of a file, which may not exist yet; a new one is on disk before ``add`` returns."""

    path: Path
    lines: list[Line] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> Ledger:
        if not path.exists():
            return cls(path)
        try:
            text = path.read_text()
        except OSError as error:
            raise RunError(f"could not read {path}: {error.strerror or error}.") from error
        return cls(path, [_line(path, n, t) for n, t in enumerate(text.splitlines(), start=1)])

    def of_run(self, identity: str, rounds: int) -> Line | None:
        """The line of a run, whichever suite it was made for."""
        found = [x for x in self.lines if (x.identity, x.rounds) == (identity, rounds)]
        return found[-1] if found else None

    def of_settings(self, suite: str, scale: str, cell: Cell) -> Line | None:
        """The line of a cell with the same settings, whatever its data were."""
        wanted = (settings_hash(cell.config), cell.config.train.rounds)
        found = [
            x for x in self.lines
            if x.is_of(suite, scale, cell) and (x.settings, x.rounds) == wanted
        ]  # fmt: skip
        return found[-1] if found else None

    def add(self, line: Line) -> None:
        """Append a line, unless the same run of the same cell has one."""
        if any(_same(line, known) for known in self.lines):
            return
        text = json.dumps(line.model_dump(), separators=(",", ":")) + "\n"
        make_folder(self.path.parent)
        try:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise disk_error(self.path, error) from error
        self.lines.append(line)


def _same(line: Line, known: Line) -> bool:
    """Whether both are of one run in one place."""
    parts = ("suite", "scale", "setting", "arm", "seed", "left_out", "identity", "rounds")
    return all(getattr(line, part) == getattr(known, part) for part in parts)


def _line(path: Path, number: int, text: str) -> Line:
    try:
        return Line.model_validate(json.loads(text))
    except (ValueError, ValidationError) as error:
        what = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
        raise RunError(f"line {number} of {path} is no outcome of a run: {what}.") from None
