"""The page of ``benchmarks/keeping.py``: the bars, each with its figure, and tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.keeping_parts.worlds import DESIGN, SMALL, WORLDS
from fedskew.comparisons.statistics import Interval, interval, mean
from fedskew.diagnosis.keep_rule import BORROWED, CAUTION
from fedskew.papers.machine import provenance
from fedskew.papers.markdown import table
from fedskew.runs.kept import ALONE

Line = Mapping[str, Any]
OPENING = (
    'With `evaluate.keep = "best"` each client keeps what serves it best: its model trained alone, '
    "the federated one, that one fine-tuned (5 epochs), or a mean of their answers. No client "
    "shall be worse off than alone. This page says how nearly that holds. "
    "[How to](../how-to/keep.md), and the rule: `fedskew/diagnosis/keep_rule.py`."
)
REMARK = (
    "Expected is what clients' own samples say, without the chance of a test set. Windows of HAR "
    "overlap, so its validation samples tell less than their number, which the rule does not know."
)
IDENTICAL = {world.name for world in WORLDS if world.identical}


@dataclass(frozen=True)
class Protocol:
    """What is run on each federation."""

    methods: tuple[str, ...]
    seeds: int
    rounds: int
    sizes: tuple[str, ...]

    @property
    def command(self) -> str:
        return (
            f"FEDSKEW_DATA=... python -m benchmarks.keeping --methods {' '.join(self.methods)} "
            f"--sizes {' '.join(self.sizes)} --seeds {self.seeds} --rounds {self.rounds}"
        )


def page(lines: Sequence[Line], protocol: Protocol) -> str:
    skewed = [line for line in lines if line["world"] not in IDENTICAL]
    made = provenance()
    seconds = sum({(x["world"], x["few"], x["seed"], x["method"]): x["seconds"]
                   for x in lines}.values())  # fmt: skip
    parts = [
        "# Each client keeps what serves it best", OPENING, f"```\n{protocol.command}\n```",
        "## The bars",
        bars(skewed, [line for line in lines if line["world"] in IDENTICAL]),
        "A client is *worse* if it has fewer right answers on its own test samples than alone, by "
        "one sample or by chance, and *clearly* worse if that is more than two standard errors of "
        "the paired difference. The oracle picks by the very test samples it is scored on, so part "
        "of its gain is luck that no rule can have; one that picks by one half of them and is "
        "scored on the other stands in the last column below. Shares are of clients, seeds and "
        "methods together; federations of many clients weigh more. Keeping costs identical clients "
        "nothing if the interval over clients reaches zero.",
        reading(skewed),
        "## By federation",
        *_tables(skewed),
        "Gains are in points of accuracy against alone, means over clients.",
        "## What is kept, and how sure that was", kept_table(lines),
        "## How it was measured", measured(protocol, {line["world"] for line in lines}),
        table(("", ""), [
            ("fedskew", made.code),
            ("machine", f"{made.cores} cores, {made.processor}, {made.memory}"),
            ("software", f"Python {made.python}, "
             + ", ".join(f"{n} {v}" for n, v in made.arithmetic.items() if v)),
            ("training and scoring of the federated runs", f"{seconds / 60:.1f} min, machine busy"),
        ]),
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def reading(skewed: Sequence[Line]) -> str:
    """Where the clients are that are worse off, and whether as many as were expected to be."""
    said = []
    for few in _sizes(skewed):
        found = tested([line for line in skewed if line["few"] is few])
        lost = Counter(line["world"] for line in found if worse()(line))
        where = ", ".join(f"{name} ({count})" for name, count in lost.most_common())
        expected = mean(line["worse"] for line in found)
        said.append(
            f"With {_named(few).lower()}, {sum(lost.values())} of {len(found)} are worse"
            f"{f': {where}' if where else ''}; {percent(expected)} were expected to be."
        )
    return " ".join([*said, REMARK])


def _tables(skewed: Sequence[Line]) -> Iterator[str]:
    """By federation, for the sizes of validation sets that there are."""
    for few in _sizes(skewed):
        yield f"**{_named(few)} a client**"
        yield by_world(skewed, few=few)


def _sizes(lines: Sequence[Line]) -> list[bool]:
    return sorted({bool(line["few"]) for line in lines}, reverse=True)


def _named(few: bool) -> str:
    return f"{SMALL} validation samples" if few else "All validation samples"


def measured(protocol: Protocol, there: Collection[str]) -> str:
    """What was run, on what, and what was chosen where."""
    of = [world for world in WORLDS if world.name in there]
    natural = ", ".join(world.name for world in of if world.natural)
    others = ", ".join(w.name for w in of if not (w.natural or w.identical))
    alike = ", ".join(w.name for w in of if w.identical)
    left = ", ".join(w.name for w in WORLDS if w.name not in there)
    return (
        "Federations that played no part in the design: of natural owners "
        f"{natural or 'none'}; made of other data {others or 'none'}; of identical clients "
        f"{alike or 'none'}. {f'**Not measured yet: {left}.** ' * bool(left)}"
        "The rule's form and its constants (scores half right answers and half Brier, variances "
        f"that borrow {BORROWED:g} samples, {CAUTION:g} deviations off, the veto) were chosen on "
        f"{'; '.join(DESIGN)}, then frozen; nothing was changed after these figures were seen. "
        f"Methods: {', '.join(protocol.methods)}; seeds: {protocol.seeds}; {protocol.rounds} "
        "rounds of one epoch, scored every second round, learning rate 0.1, batches of 32, one "
        "hidden layer of 64. Two thirds of a client's validation samples decide what it keeps, the "
        "others which round is selected; test samples decide nothing. Alone means as many rounds; "
        "fine-tuned models have had five epochs more."
    )


def tested(lines: Sequence[Line]) -> list[Line]:
    return [line for line in lines if line["score"] is not None]


def gain(line: Line, of: str = "score") -> float:
    return float(line[of]) - float(line["alone"])


def share(lines: Sequence[Line], holds: Callable[[Line], bool]) -> float:
    return mean(float(holds(line)) for line in lines)


def worse(of: str = "score") -> Callable[[Line], bool]:
    return lambda line: gain(line, of) < 0


def of_oracle(lines: Sequence[Line]) -> float:
    """Which share of the oracle's gain is had."""
    best = mean(gain(line, "best") for line in lines)
    return mean(gain(line) for line in lines) / best if best else float("nan")


def of_halves(lines: Sequence[Line]) -> float:
    """The same of the oracle that picks by the other half of the test samples."""
    known = [line for line in lines if line["apart"] is not None]
    best = mean(line["apart"] for line in known)
    return mean(gain(line) for line in known) / best if best else float("nan")


def percent(value: float, digits: int = 1) -> str:
    return f"{100 * value:.{digits}f} %"


def points(found: Interval) -> str:
    return f"{100 * found.mean:+.2f} [{100 * found.low:+.2f}, {100 * found.high:+.2f}]"


def bars(skewed: Sequence[Line], identical: Sequence[Line]) -> str:
    """Every bar with its figure; a missed one is said to be."""
    rows = []
    for few in _sizes(skewed):
        found = tested([line for line in skewed if line["few"] is few])
        name = _named(few).lower()
        clear = share(found, lambda line: line["clearly_after"])
        lost, oracle = share(found, worse()), of_oracle(found)
        before = percent(share(found, lambda line: line["clearly_before"]))
        rows += [
            (f"clearly worse than alone, {name}", "≤ 1 %", percent(clear),
             f"{before} all federated", said(clear <= 0.01)),
            (f"worse at all, {name}", "≤ 5 %" if few else "–", percent(lost),
             f"{percent(share(found, worse('federated')))} all federated",
             said(lost <= 0.05) if few else ""),
            (f"share of the oracle's gain, {name}", "≥ 75 %", percent(oracle, 0),
             f"{100 * mean(gain(x) for x in found):+.2f} points of "
             f"{100 * mean(gain(x, 'best') for x in found):+.2f}", said(oracle >= 0.75)),
            (f"the same of an oracle by halves, {name}", "–", percent(of_halves(found), 0), "", ""),
        ]  # fmt: skip
    for few in _sizes(identical):
        found = tested([line for line in identical if line["few"] is few])
        cost = interval([gain(line) - gain(line, "federated") for line in found])
        name = _named(few).lower()
        rows.append(
            (f"identical clients, kept − federated, {name}", "no cost", points(cost), "points",
             said(cost.high >= 0))
        )  # fmt: skip
    return table(("bar", "wanted", "found", "beside it", ""), rows)


def said(holds: bool) -> str:
    return "met" if holds else "**missed**"


def by_world(lines: Sequence[Line], few: bool) -> str:
    rows = []
    for world in WORLDS:
        found = tested([x for x in lines if x["world"] == world.name and x["few"] is few])
        if not found:
            continue
        clients = len({(x["client"], x["seed"]) for x in found})
        apart = [x["apart"] for x in found if x["apart"] is not None]
        rows.append(
            (world.name + (" (owners)" if world.natural else ""), str(clients),
             *told(found, "federated", "clearly_before"), *told(found, "score", "clearly_after"),
             f"{100 * mean(gain(x, 'best') for x in found):+.1f}", percent(of_oracle(found), 0),
             f"{100 * mean(apart):+.1f}")
        )  # fmt: skip
    head = ("federation", "clients", "federated: gain", "worse", "clearly", "worst", "kept: gain",
            "worse", "clearly", "worst", "oracle", "of it", "by halves")  # fmt: skip
    return table(head, rows)


def told(found: Sequence[Line], of: str, clearly: str) -> tuple[str, str, str, str]:
    gains = [gain(line, of) for line in found]
    return (
        f"{100 * mean(gains):+.1f}", percent(share(found, worse(of))),
        percent(share(found, lambda line: line[clearly])), f"{100 * min(gains):+.1f}",
    )  # fmt: skip


def kept_table(lines: Sequence[Line]) -> str:
    """Which candidates are kept, and whether as many are worse as were expected to be."""
    rows = []
    for few in _sizes(lines):
        found = tested([line for line in lines if line["few"] is few])
        counts = Counter(line["kept"] for line in found)
        names = sorted(counts, key=lambda name: -counts[name])
        other = [line for line in found if line["kept"] != ALONE]
        rows.append(
            (f"{SMALL}" if few else "all",
             ", ".join(f"{name} {percent(counts[name] / len(found), 0)}" for name in names),
             percent(mean(line["worse"] for line in found)), percent(share(found, worse())),
             percent(share(other, worse())) if other else "–")
        )  # fmt: skip
    head = ("validation samples", "kept", "worse: expected", "worse: on test samples",
            "of those who do not keep alone")  # fmt: skip
    return table(head, rows)
