"""What clients of a finished run keep, as its folder tells: ``kept.json``."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from fedskew.runs.summary import Count, checked
from fedskew.store import read_sealed, write_sealed

KEPT = "kept.json"
ALONE, FEDERATED = "alone", "federated"
JOINED = " + "
"""Between the names of two models whose answers are averaged."""
Share = Annotated[float, Field(ge=0, le=1)]


class KeptClient(BaseModel):
    """What one client keeps.

    ``gain`` is what it is expected to be better by than the client's model alone, and ``worse``
    the probability that it is worse; both 0 where that is what is kept. The rest was measured on
    its test samples, which decided nothing: scores of the three (None without samples), whether
    the federated model and what is kept are worse by more than two standard errors, and the score
    of the best candidate.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    client: str
    kept: str
    rows: Count
    gain: float
    worse: Share
    test_rows: Count = 0
    alone: float | None = None
    federated: float | None = None
    score: float | None = None
    best: float | None = None
    clearly_before: bool = False
    clearly_after: bool = False


class Kept(BaseModel):
    """What all clients keep. ``beside`` is the folder of the run of clients alone, ``chosen_by``
    the samples that decided, ``metric`` what scores are."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    beside: str
    beside_identity: str
    chosen_by: str
    metric: str
    rising: bool
    candidates: list[str]
    clients: list[KeptClient]

    def of(self, client: str) -> KeptClient | None:
        return next((each for each in self.clients if each.client == client), None)

    @property
    def counts(self) -> dict[str, int]:
        """How many clients keep what, the most frequent first."""
        return dict(Counter(each.kept for each in self.clients).most_common())

    def gains(self, of: str = "score") -> list[float]:
        """What tested clients win on their model alone by another of their scores."""
        found = [(getattr(each, of), each.alone) for each in self.clients]
        sign = 1 if self.rising else -1
        return [sign * (new - old) for new, old in found if new is not None and old is not None]

    @property
    def expected_worse(self) -> float:
        """How many clients are expected to be worse than alone."""
        return sum(each.worse for each in self.clients)


def write_kept(run: Path, kept: Kept) -> None:
    write_sealed(run / KEPT, kept.model_dump())


def read_kept(run: Path) -> Kept | None:
    """What a run's clients keep, if that was decided."""
    path = run / KEPT
    if not path.is_file():
        return None
    return checked(path, read_sealed(path), TypeAdapter(Kept), "what clients of a run keep")
