"""Every client of a method beside the same client trained alone: same seed, same test samples.

What varies is told apart. Seeds are the units of a method's mean gain: clients of one seed share a
model, so they are no independent witnesses of it. Where every seed has the same clients with the
same test samples, as real sites do, another seed does not draw these anew, so the chance in the
samples is added. Of a single client there is nothing but its test samples, and its seeds if it has
several.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from fedskew.comparisons.per_sample import Answered, Differences, answered, differences
from fedskew.comparisons.statistics import Interval, estimate, interval, paired, welch_freedom
from fedskew.federate.metrics import MAIN, plain_mean, summarise
from fedskew.parts.measures import Floats
from fedskew.parts.metrics import is_share
from fedskew.runs.experiment import Run

Verdict = Literal["better", "worse", "tie", "cannot tell"]
MARGIN = 0.01
"""Gains of less are a tie: of a share itself, of other metrics this part of the score alone."""
WON_AND_LOST = (1.0, -1.0)


@dataclass(frozen=True, eq=False)
class Side:
    """What one run's clients scored on their test samples at the selected round."""

    seed: int
    data: str
    """The hash of all data; empty if an older run did not record it."""
    scores: Mapping[str, float]
    samples: Mapping[str, int]
    answers: Mapping[str, Answered] = field(default_factory=dict)


@dataclass(frozen=True)
class ClientGain:
    """A client's gain over itself trained alone; ``seed`` is None where all have the same clients.

    The interval is of the client's own test samples, and has no ends where these are not known one
    by one.
    """

    client: str
    seed: int | None
    samples: int
    score: float
    alone: float
    gain: Interval

    @property
    def is_worse(self) -> bool:
        """A model that gives no usable answer is worse than one that does."""
        return self.gain.mean < 0 or (math.isnan(self.score) and math.isfinite(self.alone))

    @property
    def is_clearly_worse(self) -> bool:
        return self.gain.high < 0

    @property
    def is_clearly_better(self) -> bool:
        return self.gain.low > 0


@dataclass(frozen=True)
class Against:
    """A method against training alone.

    ``by_seed`` has every client of every seed. ``clients`` are those who may be worse off: the same
    or, where all seeds have the same clients, each of these once. ``unpaired`` counts clients that
    only one of the two scored.
    """

    gain: Interval
    margin: float
    verdict: Verdict
    by_seed: tuple[ClientGain, ...]
    clients: tuple[ClientGain, ...]
    unpaired: int = 0

    @property
    def worse(self) -> int:
        """How many clients are worse off than alone, chance included."""
        return sum(client.is_worse for client in self.clients)

    @property
    def clearly_worse(self) -> int | None:
        """How many are so by more than chance in their test samples; None if none can be judged."""
        if not any(math.isfinite(client.gain.high) for client in self.clients):
            return None
        return sum(client.is_clearly_worse for client in self.clients)

    @property
    def worst(self) -> ClientGain | None:
        """Who loses most; None if nobody loses."""
        losers = [client for client in self.clients if client.gain.mean < 0]
        return min(losers, key=lambda client: client.gain.mean, default=None)


def side_of(run: Run, metric: str, adapted: str = "none") -> Side:
    """What a finished run's clients scored with models as trained, or as ``adapted``."""
    result = run.result
    rows = run.results.rows.where(
        stage=MAIN, round=result["selected_round"], model=result["primary_model"], on="seen",
        adapted=adapted, split="test", metric=metric,
    )  # fmt: skip
    samples = dict(zip(rows.texts("client"), rows.n.tolist(), strict=True))
    data = str(run.results.settings.get("data", ""))
    return Side(result["seed"], data, rows.by_client(), samples, answered(run, metric, adapted))


def against_alone(
    ours: Sequence[Side], alone: Sequence[Side], metric: str, higher: bool, margin: float = MARGIN
) -> Against:
    """A method's runs against those of training alone with the same seeds."""
    by_seed = {side.seed: side for side in alone}
    pairs = [(side, by_seed[side.seed]) for side in ours if side.seed in by_seed]
    both = [[name for name in mine.scores if name in its.scores] for mine, its in pairs]
    rows = [
        {name: _differences(mine, its, name, higher) for name in names}
        for (mine, its), names in zip(pairs, both, strict=True)
    ]
    single = tuple(
        _client_gain([mine], [its], name, [found[name]], higher)
        for (mine, its), names, found in zip(pairs, both, rows, strict=True)
        for name in names
    )
    same = _same_clients(pairs, both)
    merged = single
    if same:
        mine, its = zip(*pairs, strict=True)
        merged = tuple(
            _client_gain(mine, its, name, [found[name] for found in rows], higher)
            for name in both[0]
        )
    means = [
        (
            summarise([mine.scores[name] for name in names]).mean,
            summarise([its.scores[name] for name in names]).mean,
        )
        for (mine, its), names in zip(pairs, both, strict=True)
    ]
    tables = [tables_of([found[name] for found in rows]) for name in both[0]] if same else []
    gain = mean_gain(means, higher, tables)
    width = margin if is_share(metric) else margin * abs(plain_mean([its for _, its in means]))
    everyone = [mine.scores.keys() | its.scores.keys() for mine, its in pairs]
    unpaired = sum(len(names) - len(common) for names, common in zip(everyone, both, strict=True))
    equal = all(client.gain.mean == 0 for client in single)
    return Against(gain, width, judged(gain, width, equal), single, merged, unpaired)


def judged(gain: Interval, margin: float, equal: bool = False) -> Verdict:
    """What an interval says; ``equal`` that every client of every seed scored the same.

    >>> judged(Interval(0.02, 0.01, 0.03, 3), 0.01), judged(Interval(0.0, -0.005, 0.005, 3), 0.01)
    ('better', 'tie')
    >>> judged(Interval(0.02, -0.01, 0.05, 3), 0.01), judged(interval([0.2]), 0.01)
    ('cannot tell', 'cannot tell')
    """
    if not math.isfinite(gain.low) or (gain.is_constant and not equal):
        return "cannot tell"
    if -margin <= gain.low and gain.high <= margin:
        return "tie"
    if gain.low > 0:
        return "better"
    return "worse" if gain.high < 0 else "cannot tell"


def mean_gain(
    means: Sequence[tuple[float, float]], higher: bool, tables: Sequence[Floats | None] = ()
) -> Interval:
    """The gain over clients and seeds, from both means of every seed.

    ``tables`` [seeds, samples], one for each client, are differences by sample where all seeds have
    the same clients with the same samples; then chance in both is counted, and what is both but
    once. A client whose samples are not known is taken to be like the others.
    """
    ours, theirs = [mine for mine, _ in means], [its for _, its in means]
    over_seeds = paired(ours, theirs) if higher else paired(theirs, ours)
    known = [table for table in tables if table is not None]
    if over_seeds.n < 2 or not known:
        return over_seeds
    seeds, parts = over_seeds.n, len(known) * len(tables)
    of_seeds = over_seeds.std**2 / seeds
    of_samples, freedom = _of_samples(known, parts)
    both = sum(map(_of_both, known)) / parts
    return _with_seeds(over_seeds.mean, of_seeds, seeds, of_samples, freedom, both)


def gain_of_models(ours: Side, other: Side, higher: bool) -> Interval:
    """The mean gain over clients of models as they are: those of one seed, not of any training.

    Clients and models are given, so what varies is which samples of each client were tested. The
    interval has no ends where answers are not known one by one.
    """
    names = [name for name in ours.scores if name in other.scores]
    means = [summarise([side.scores[name] for name in names]).mean for side in (ours, other)]
    mean = means[0] - means[1] if higher else means[1] - means[0]
    tables = [tables_of([_differences(ours, other, name, higher)]) for name in names]
    known = [table for table in tables if table is not None]
    if not known or len(known) < len(tables):
        return Interval(mean, math.nan, math.nan, 1)
    return estimate(mean, *_of_samples(known, len(known) ** 2))


def _of_samples(tables: Sequence[Floats], parts: int) -> tuple[float, float]:
    """The variance that chance in test samples gives a mean over clients, and its freedom.

    ``parts`` divides the sum of the clients' own variances.
    """
    of_each = [float(t.mean(axis=0).var(ddof=1)) / t.shape[1] / parts for t in tables]
    freedom = welch_freedom(zip(of_each, (table.shape[1] - 1 for table in tables), strict=True))
    return sum(of_each), freedom


def client_interval(gains: Sequence[float], rows: Floats | None, counted: bool) -> Interval:
    """One client's gain over its seeds, from differences by sample [seeds, samples].

    Of right samples it is Bonett and Price's interval for paired proportions (2012): a sample won
    and a sample lost are added, or a client none of whose few answers changed would be certain of
    a gain of nothing.
    """
    mean, seeds = plain_mean(gains), len(gains)
    if rows is None or not math.isfinite(mean):
        return Interval(mean, math.nan, math.nan, seeds)
    values = rows.mean(axis=0)
    if counted:
        values = np.append(values, WON_AND_LOST)
        centre, variance, freedom = float(values.mean()), float(values.var()), math.inf
    else:
        centre, variance, freedom = mean, float(values.var(ddof=1)), len(values) - 1.0
    of_rows = variance / len(values)
    of_seeds = interval(gains).std ** 2 / seeds if seeds > 1 else 0.0
    found = _with_seeds(centre, of_seeds, seeds, of_rows, freedom, _of_both(rows))
    return Interval(mean, found.low, found.high, seeds)


def tables_of(rows: Sequence[Differences | None]) -> Floats | None:
    """Differences by seed and sample; None where those of a seed are not known."""
    known = [found.values for found in rows if found is not None]
    return np.stack(known) if len(known) == len(rows) else None


def _with_seeds(
    mean: float, of_seeds: float, seeds: int, of_rows: float, freedom: float, both: float
) -> Interval:
    """The interval of a crossed design: what counts as both is taken off once.

    Each variance has its own t: one for the sum would trust the few seeds as much as the samples.
    """
    found = [estimate(mean, of_rows, freedom, seeds)]
    if seeds > 1:
        found.append(estimate(mean, max(0.0, of_seeds - both), seeds - 1.0, seeds))
    half = math.hypot(*(each.half for each in found))
    return Interval(mean, mean - half, mean + half, seeds)


def _of_both(table: Floats) -> float:
    """The part of a mean's variance that is neither a seed's nor a sample's alone."""
    seeds, samples = table.shape
    if seeds < 2:
        return 0.0
    rest = table - table.mean(axis=0) - table.mean(axis=1, keepdims=True) + table.mean()
    freedom = (seeds - 1) * (samples - 1)
    return float(np.square(rest).sum() / (freedom * seeds * samples))


def _differences(mine: Side, its: Side, name: str, higher: bool) -> Differences | None:
    ours, alone = mine.answers.get(name), its.answers.get(name)
    return None if ours is None or alone is None else differences(ours, alone, higher)


def _client_gain(
    ours: Sequence[Side],
    alone: Sequence[Side],
    name: str,
    rows: Sequence[Differences | None],
    higher: bool,
) -> ClientGain:
    scores = [(mine.scores[name], its.scores[name]) for mine, its in zip(ours, alone, strict=True)]
    gains = [mine - its if higher else its - mine for mine, its in scores]
    counted = any(found is not None and found.counted for found in rows)
    return ClientGain(
        name,
        ours[0].seed if len(ours) == 1 else None,
        ours[0].samples[name],
        plain_mean([mine for mine, _ in scores]),
        plain_mean([its for _, its in scores]),
        client_interval(gains, tables_of(rows), counted),
    )


def _same_clients(pairs: Sequence[tuple[Side, Side]], both: Sequence[Sequence[str]]) -> bool:
    """Whether several seeds have the very same data, and scored the same clients."""
    data = {side.data for pair in pairs for side in pair}
    return len(pairs) > 1 and data != {""} and len(data) == 1 and len(set(map(tuple, both))) == 1
