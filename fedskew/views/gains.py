"""Who gains over training alone and who loses: the table, the sentence, and a line per client."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from fedskew.comparisons.paired import Against, ClientGain, Verdict
from fedskew.comparisons.statistics import Interval
from fedskew.runs.experiment import Run
from fedskew.views.leaderboard import Standing, aligned, has_gain, in_metric
from fedskew.views.learning import tested

HEADER = (
    "against local",
    "gain [95 % interval]",
    "verdict",
    "worse off",
    "clearly",
    "largest loss",
)
SAID: dict[Verdict, str] = {
    "better": "Better than training alone",
    "tie": "As good as training alone, within ±{margin}",
    "worse": "Worse than training alone",
    "cannot tell": "Cannot tell, the interval is too wide",
}


@dataclass(frozen=True)
class ClientScore:
    """A client's test score under a method and seed, and its gain over itself trained alone.

    The interval is that of its own test samples. NaN stands for what is not known.
    """

    method: str
    seed: int
    client: str
    samples: int
    score: float
    alone: float = math.nan
    gain: float = math.nan
    low: float = math.nan
    high: float = math.nan


def gain_lines(leaderboard: Sequence[Standing], metric: str) -> tuple[list[str], list[list[str]]]:
    """Header and rows: every method against training alone."""
    rows = [
        [
            f"{standing.method} *" if standing.reference else standing.method,
            with_ends(a.gain, metric),
            a.verdict,
            f"{a.worse} of {len(a.clients)}",
            "–" if a.clearly_worse is None else str(a.clearly_worse),
            _loss(a.worst, metric),
        ]
        for standing in leaderboard
        if (a := standing.against) is not None
    ]
    return list(HEADER), rows


def gains_text(leaderboard: Sequence[Standing], metric: str) -> str:
    """The table for a terminal; empty without training alone."""
    header, rows = gain_lines(leaderboard, metric)
    return "\n".join(aligned(header, rows)) if rows else ""


def gains_markdown(leaderboard: Sequence[Standing], metric: str) -> str:
    """The same in Markdown, with its caption."""
    header, rows = gain_lines(leaderboard, metric)
    if not rows:
        return ""
    rule = ["---", "---:", "---", *["---:"] * 3]
    escaped = [[cell.replace("*", "\\*") for cell in row] for row in rows]
    table = "\n".join(f"| {' | '.join(row)} |" for row in [header, rule, *escaped])
    return f"## Against training alone\n\n{table}\n\n{gain_caption(leaderboard, metric)}"


def gain_caption(leaderboard: Sequence[Standing], metric: str) -> str:
    """What the columns mean, and what they rest on."""
    some = [s.against for s in leaderboard if s.against is not None]
    if not some:
        return ""
    once = any(client.seed is None for a in some for client in a.clients)
    several = some[0].gain.n > 1
    rests = "seeds and test samples" if once else "seeds"
    margin = in_metric(some[0].margin, metric)
    intervals = (
        f"Intervals are of single methods, over {rests}; a tie lies within ±{margin}."
        if several
        else "A gain of one seed has no interval."
    )
    whose = "the same clients in all seeds" if once else f"clients{' of every seed' * several}"
    clearly = (
        "by more than chance in the client's own test samples explains (95 % interval: of clients "
        "without any difference one in 40)"
        if any(a.clearly_worse is not None for a in some)
        else "not known, as there are no answers for single test samples"
    )
    return (
        f"{intervals} Worse off: {whose} that score below their own model trained alone, "
        f"chance included; clearly: {clearly}."
    )


def verdicts(leaderboard: Sequence[Standing], metric: str) -> Iterator[str]:
    """What the evidence says, a sentence for each answer; references are left out."""
    rivals = [(s.method, s.against) for s in leaderboard if not s.reference and s.against]
    if not rivals:
        return
    if all(a.gain.n < 2 for _, a in rivals):
        yield "One seed does not tell gains over training alone from chance: run more (--seeds 5)."
        return
    groups: dict[Verdict, list[tuple[str, Against]]] = {verdict: [] for verdict in SAID}
    for name, against in rivals:
        groups[against.verdict].append((name, against))
    if not groups["better"]:
        yield "No method is shown to be better than training alone."
    for verdict, group in groups.items():
        if group:
            start = SAID[verdict].format(margin=in_metric(group[0][1].margin, metric))
            told = ", ".join(f"{name} {with_ends(a.gain, metric)}" for name, a in group)
            yield f"{start}: {told}."
    for name, a in rivals:
        if a.unpaired:
            yield f"{name}: {a.unpaired} clients have a score with or without it, but not both."


def without_alone(leaderboard: Sequence[Standing]) -> Iterator[str]:
    """How to have gains, where training alone was left out."""
    if not has_gain(leaderboard) and any(not standing.reference for standing in leaderboard):
        yield (
            "Who is better off than alone is not known: compare without --no-references "
            "(references=False), or name the method that trains alone."
        )


def client_scores(
    leaderboard: Sequence[Standing], runs: Mapping[str, Sequence[Run]], metric: str
) -> Iterator[ClientScore]:
    """Every method, the best first, with its clients of every seed."""
    for standing in leaderboard:
        found = () if standing.against is None else standing.against.by_seed
        gains = {(one.seed, one.client): one for one in found}
        for run in runs[standing.method]:
            seed = int(run.result["seed"])
            for row in tested(run, metric).where(round=run.result["selected_round"]).rows():
                score = ClientScore(standing.method, seed, row.client, row.n, row.value)
                if (pair := gains.get((seed, row.client))) is not None:
                    gain = pair.gain
                    score = replace(
                        score, alone=pair.alone, gain=gain.mean, low=gain.low, high=gain.high
                    )
                yield score


def clients_csv(clients: Sequence[ClientScore], metric: str) -> str:
    """A row for each method, client and seed, unrounded; empty cells where nothing is known."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    numbers = ("score", "alone", "gain", "low", "high")
    writer.writerow(["method", "seed", "client", "test_samples", "metric", *numbers])
    for one in clients:
        cells = (getattr(one, name) for name in numbers)
        writer.writerow(
            [
                *(one.method, one.seed, one.client, one.samples, metric),
                *("" if math.isnan(cell) else cell for cell in cells),
            ]
        )
    return text.getvalue()


def with_ends(found: Interval, metric: str) -> str:
    """A gain with the ends of its interval, if it has one.

    >>> with_ends(Interval(0.0213, 0.0021, 0.0405, 3), "accuracy")
    '+0.021 [+0.002, +0.041]'
    """
    if math.isnan(found.mean):
        return "–"
    ends = f" [{in_metric(found.low, metric, '+')}, {in_metric(found.high, metric, '+')}]"
    return in_metric(found.mean, metric, "+") + ends * math.isfinite(found.low)


def _loss(worst: ClientGain | None, metric: str) -> str:
    if worst is None:
        return "–"
    where = worst.client if worst.seed is None else f"{worst.client}, seed {worst.seed}"
    return f"{in_metric(worst.gain.mean, metric, '+')} ({where})"
