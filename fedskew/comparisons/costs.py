"""What a client must send and receive to reach a score: effective rounds, numbers and bytes.

The rule is that of the FedDisk paper (its section VI.C and equations 18 and 19). A method's
effective rounds are those of earlier stages that share something, and those of the main stage
until its curve first reaches a target, the best score any rival ever had. A method without a
target, or one that never reaches it, counts the rounds to its own best.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedskew.federate.metrics import MAIN

if TYPE_CHECKING:
    from fedskew.federate.progress import RoundRecord

Curve = Mapping[int, float]
"""Score by round, for the rounds that were scored."""


@dataclass(frozen=True)
class Exchange:
    """A number of rounds, and how many parameters a client sends and receives in each."""

    rounds: int
    parameters: float
    """One way; NaN if an older run does not record it."""


def cost(exchanges: Iterable[Exchange]) -> float:
    """Numbers a client sends and receives: C = 2 Σ S·R over the stages (equations 18 and 19).

    >>> cost([Exchange(rounds=15, parameters=614_000), Exchange(rounds=105, parameters=447_000)])
    112290000.0
    """
    return float(2 * sum(e.parameters * e.rounds for e in exchanges))


@dataclass(frozen=True)
class Spending:
    """One run: the score after each round of its main stage, and what had been sent by then."""

    curve: Curve
    higher_is_better: bool
    prepared: tuple[Exchange, ...]
    """The stages before the main one that share something."""
    parameters: float
    """In the main stage, per round and one way; NaN if an older run does not record it."""
    bytes_until: Mapping[int, float]
    """By round of the main stage: bytes a client has sent and received so far, in all stages."""
    exchanging: frozenset[int]
    """The rounds of the main stage in which anything was sent."""

    @property
    def best(self) -> float:
        """The best score of any round; NaN if there is none."""
        return best_of(self.curve.values(), self.higher_is_better)

    @property
    def sends(self) -> bool:
        return any(self.bytes_until.values())


def best_of(values: Iterable[float], higher_is_better: bool) -> float:
    """The best of some scores; NaN if there are none.

    >>> best_of([0.2, math.nan, 0.5], higher_is_better=False)
    0.2
    """
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return math.nan
    return max(finite) if higher_is_better else min(finite)


def round_reaching(curve: Curve, target: float, higher_is_better: bool) -> int | None:
    """The first scored round whose score is at least as good as the target.

    >>> round_reaching({5: 0.4, 10: 0.7, 15: 0.6}, 0.6, higher_is_better=True)
    10
    """
    for number, value in sorted(curve.items()):
        if value >= target if higher_is_better else value <= target:
            return number
    return None


@dataclass(frozen=True)
class Effort:
    """What a run spent until it reached its target."""

    prepared: tuple[Exchange, ...]
    main: Exchange
    reached: bool
    """Whether it reached its target; if not, the effort is that until its own best."""
    bytes: float
    """What a client sent and received by then: the mean over all clients, sampled or not."""

    @property
    def prepared_rounds(self) -> int:
        return sum(stage.rounds for stage in self.prepared)

    @property
    def rounds(self) -> int:
        return self.prepared_rounds + self.main.rounds

    @property
    def numbers(self) -> float:
        """Parameters sent and received by a client that takes part in every round."""
        return cost((*self.prepared, self.main))


def effort(spent: Spending, target: float | None = None) -> Effort | None:
    """The effort until the target, or until the own best; None if nothing is sent or scored.

    >>> spent = Spending({1: 0.5, 2: 0.8}, True, (), 10, {1: 80, 2: 160}, frozenset({1, 2}))
    >>> effort(spent, 0.4).rounds, effort(spent, 0.9).rounds, effort(spent, 0.9).reached
    (1, 2, False)
    """
    if not spent.sends or math.isnan(spent.best):
        return None
    higher = spent.higher_is_better
    found = None if target is None else round_reaching(spent.curve, target, higher)
    own = round_reaching(spent.curve, spent.best, higher)
    until = own if found is None else found
    assert until is not None, "a curve reaches its own best"
    rounds = sum(number <= until for number in spent.exchanging)
    main = Exchange(rounds, spent.parameters)
    return Effort(spent.prepared, main, found is not None, spent.bytes_until[until])


def efforts_of_all(runs: Mapping[str, Spending]) -> dict[str, Effort | None]:
    """Every method of one seed, with the best score of all others that send anything as target."""
    found: dict[str, Effort | None] = {}
    for name, spent in runs.items():
        others = [other for n, other in runs.items() if n != name and other.sends]
        target = best_of((other.best for other in others), spent.higher_is_better)
        found[name] = effort(spent, None if math.isnan(target) else target)
    return found


def times_cheaper(mine: Spending, baselines: Sequence[Spending]) -> float:
    """How many times fewer numbers this run sends than the cheapest baseline.

    The baseline counts until its own best, this run until it reaches the best baseline's best
    score. A run that never does counts all its rounds and one more: its own best may be early and
    poor, which would be no saving.
    """
    efforts = [found for b in baselines if (found := effort(b)) is not None]
    target = best_of((b.best for b in baselines if b.sends), mine.higher_is_better)
    own = effort(mine, target)
    if own is None or not efforts:
        return math.nan
    spent = own.numbers
    if not own.reached:
        spent = cost((*mine.prepared, Exchange(len(mine.exchanging) + 1, mine.parameters)))
    cheapest = min(found.numbers for found in efforts)
    unknown = any(math.isnan(found.numbers) for found in efforts)
    return math.nan if unknown or not spent else cheapest / spent


def spending(
    result: Mapping[str, Any],
    records: Sequence[RoundRecord],
    curve: Curve,
    higher_is_better: bool,
) -> Spending:
    """What a finished run spent, from its summary, the records of its rounds and its curve."""
    known = {stage["name"]: float(stage["parameters"]) for stage in result.get("stages") or ()}
    scored = (entry["clients"] for entry in result["scores"] if entry["on"] == "seen")
    asked = (record.participants + len(record.failures) for record in records)
    clients = max(1, *scored, *asked)
    prepared = []
    for name in dict.fromkeys(record.stage for record in records if record.stage != MAIN):
        parameters = known.get(name, math.nan)
        # What one stage hands over counts for the next stage, which may share nothing itself.
        shares = parameters > 0 or math.isnan(parameters)
        mine = [r for r in records if r.stage == name and shares and r.bytes_up + r.bytes_down]
        if mine:
            prepared.append(Exchange(len(mine), parameters))
    until: dict[int, float] = {}
    exchanging, total = set(), 0
    for record in records:
        sent = record.bytes_up + record.bytes_down
        total += sent
        if record.stage == MAIN:
            until[record.round] = total / clients
            if sent:
                exchanging.add(record.round)
    return Spending(
        curve, higher_is_better, tuple(prepared), known.get(MAIN, math.nan), until,
        frozenset(exchanging),
    )  # fmt: skip
