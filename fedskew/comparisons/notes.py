"""What bake-offs of a folder have found out so far, in a file: nothing is decided or run twice."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fedskew.comparisons.budget import Spent
from fedskew.comparisons.halving import Ladder, Rung
from fedskew.comparisons.judging import Judged
from fedskew.federate.rounds import Score
from fedskew.store import make_folder, read_sealed, write_sealed

FILE = "bakeoff.json"
VERSION = 1
"""Of the file; one of another version counts as none."""


@dataclass
class Notes:
    """Scores by run and length, why runs stopped, and of each bake-off its ladder and its time.

    Runs are known by the hash of what decides their numbers, so that another budget or more
    methods find the scores that are there.
    """

    path: Path
    scores: dict[str, dict[str, Any]] = field(default_factory=dict)
    stopped: dict[str, str] = field(default_factory=dict)
    ladders: dict[str, list[list[int]]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: Path) -> Notes:
        """Those of a folder, or empty ones."""
        path = make_folder(folder) / FILE
        if not path.is_file() or (found := read_sealed(path)).get("version") != VERSION:
            return cls(path)
        plain = json.loads(json.dumps(found))
        return cls(path, **{name: plain[name] for name in plain if name != "version"})

    def keep(self) -> None:
        found = asdict(self)
        del found["path"]
        write_sealed(self.path, {"version": VERSION, **found})

    def judged(self, run: str, rounds: int) -> Judged | None:
        """What a run of this hash and length scored, if it was judged."""
        found = self.scores.get(f"{run}/{rounds}")
        if found is None:
            return None
        made = {"score": Score(**found["score"]), "spent": Spent(**found["spent"])}
        return Judged(**{**found, **made})

    def note(self, run: str, rounds: int, judged: Judged) -> None:
        self.scores[f"{run}/{rounds}"] = asdict(judged)

    def ladder(self, key: str) -> Ladder:
        """The rungs of a bake-off as far as they are planned."""
        return tuple(Rung(rounds, keeps) for rounds, keeps in self.ladders.get(key, []))

    def plan(self, key: str, rungs: Ladder) -> None:
        self.ladders[key] = [[rung.rounds, rung.keeps] for rung in rungs]
