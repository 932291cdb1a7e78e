"""What a page needs of a finished run, as plain values: its folder need not be kept for that."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pydantic import BaseModel, ConfigDict

from fedskew.comparisons.selection import Curve, Curves, Members, chosen
from fedskew.federate.progress import RoundRecord
from fedskew.federate.rounds import Score
from fedskew.papers.scores import At

BOTH = "both"
"""At the last and the selected round."""
Scores = dict[int, tuple[float, float, int]]
"""By round: value, loss and number of clients, the parts of a score."""


class Plain(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Series(Plain):
    """The main scores of models as trained, by round: mean over the clients and the worst."""

    model: str
    on: str
    split: str
    rounds: dict[int, tuple[float, float]]


class OfClients(Plain):
    """Test scores after the last round, in the order of the clients' names; NaN where none is."""

    on: str
    adapted: str
    metric: str
    values: list[float]


class Together(Plain):
    """Clients' own models on the central test set: their mean, and the score of all together."""

    round: int
    metric: str
    mean: float
    together: float


class Exchanged(Plain):
    """Rounds of a stage one after the other in which as many sent as much."""

    stage: str
    first: int
    last: int
    participants: int
    failures: int
    down: int
    up: int


class Outcome(Plain):
    """One finished run. A page made from it is the same as one made from the run's folder.

    ``summary`` is the run's, but for what no page reads; its scores are rows of ``scores``: at,
    model, on, adapted, split, metric, then mean, worst and number of clients. Where the last round
    is the selected one too, a row that is the same for both is "both".
    """

    code: str
    summary: dict[str, Any]
    scores: list[tuple[str, str, str, str, str, str, float, float, int]]
    curves: list[Series]
    validation: Scores
    ood: Scores
    environment: Scores
    in_domain: dict[int, float]
    left_out: Scores
    """Of the client a fold leaves out, by its validation data."""
    seen: list[str]
    unseen: list[str]
    silent: list[str]
    """Seen clients without validation data."""
    clients: list[OfClients]
    weights: dict[int, list[float]]
    """Clients' weights in the global model, after the last and the selected round."""
    together: list[Together]
    divergences: dict[int, dict[str, float]]
    """By round and entry of the model: mean distance of the clients' from their mean."""
    exchanged: list[Exchanged]
    parameters: float
    aurc: float
    risks: list[float]
    """Of the surest answers for unseen clients, by the coverages of figures; empty: none."""

    @cached_property
    def result(self) -> dict[str, Any]:
        """The run's summary, as far as it is kept."""
        heads = ("model", "on", "adapted", "split", "metric", "mean", "worst", "clients")
        rows = [
            {"at": at, **dict(zip(heads, row, strict=True))}
            for at in ("last", "selected")
            for told, *row in self.scores
            if told in (at, BOTH)
        ]
        return {**self.summary, "scores": rows}

    @property
    def members(self) -> Members:
        validated = [name for name in self.seen if name not in self.silent]
        return Members(tuple(self.seen), tuple(self.unseen), tuple(validated))

    @property
    def records(self) -> list[RoundRecord]:
        """What was sent round by round; of failures only their number is known."""
        return [
            RoundRecord(
                part.stage, number, part.participants, math.nan, part.down, part.up,
                failures={str(n): "" for n in range(part.failures)},
            )
            for part in self.exchanged
            for number in range(part.first, part.last + 1)
        ]  # fmt: skip

    def by_client(self, on: str, adapted: str, metric: str) -> dict[str, float]:
        """Test scores after the last round of those clients that have one."""
        names = {"seen": self.seen, "unseen": self.unseen}.get(on, [])
        wanted = (on, adapted, metric)
        found = [c.values for c in self.clients if (c.on, c.adapted, c.metric) == wanted]
        values = found[-1] if found else []
        return {n: v for n, v in zip(names, values, strict=False) if not math.isnan(v)}

    def by_round(self, left_out: Sequence[Curve] = ()) -> ByRound:
        """The main scores by round; ``left_out`` are those of the clients left out by its folds."""
        own = Curves(
            validation=scores_of(self.validation),
            ood=scores_of(self.ood),
            higher_is_better=bool(self.summary["higher_is_better"]),
            in_domain=self.in_domain,
            environment=scores_of(self.environment),
        )
        return ByRound(tuple(self.curves), own.with_left_out(left_out))


def scores_of(found: Scores) -> dict[int, Score]:
    return {number: Score(*parts) for number, parts in found.items()}


@dataclass(frozen=True)
class ByRound:
    """The main scores of a finished run by round, and what the rules of selection look at."""

    curves: Sequence[Series]
    selection: Curves

    def round_of(self, at: At) -> int:
        """The round a rule of selection picks; 0, which no round is, where it has no data."""
        if isinstance(at, int):
            return at
        return chosen("validation" if at == "selected" else at, self.selection) or 0

    def ood(self, at: At) -> float:
        """The score out of domain in that round."""
        found = self.selection.ood.get(self.round_of(at))
        return math.nan if found is None else found.value

    def score(self, at: At, model: str, on: str, split: str, of: str) -> float:
        """The clients' "mean" or "worst" score in that round."""
        none = (math.nan, math.nan)
        mean, worst = self._of(model, on, split).get(self.round_of(at), none)
        return worst if of == "worst" else mean

    def curve(self, model: str, on: str) -> dict[int, float]:
        """The mean test score by round."""
        return {number: mean for number, (mean, _) in self._of(model, on, "test").items()}

    def has(self, on: str) -> bool:
        """Whether anybody was scored there."""
        return any(series.on == on for series in self.curves)

    def _of(self, model: str, on: str, split: str) -> dict[int, tuple[float, float]]:
        wanted = (model, on, split)
        found = [s.rounds for s in self.curves if (s.model, s.on, s.split) == wanted]
        return found[0] if found else {}
