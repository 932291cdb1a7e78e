"""The page: every bar with its figure, and what each fixed choice would have cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from benchmarks.recommend_parts.bakeoff import METHODS
from benchmarks.recommend_parts.federations import CASES, ROUNDS
from benchmarks.recommend_parts.outcomes import ALONE, Full, Shape, climb
from fedskew.comparisons.halving import SHAPES, USUAL, ladder
from fedskew.comparisons.statistics import mean
from fedskew.papers.markdown import table

WITHIN, ENOUGH, HALF = 1.0, 0.8, 0.5
DESIGN = {case.name for case in CASES if case.design}
Choose = Callable[[Full], str]


def page(fulls: Sequence[Full], same: Sequence[str], made: Sequence[tuple[str, str]]) -> str:
    """What came out, in Markdown."""
    held_out = [full for full in fulls if full.case not in DESIGN]
    methods = METHODS
    seeds = len({full.seed for full in fulls})
    cases, apart = (len({full.case for full in group}) for group in (fulls, held_out))
    parts = [
        "# How good are recommendations?",
        f"`fedskew recommend` against full bake-offs of {len(methods) - 1} methods and training "
        f"alone, {ROUNDS} rounds each, on {cases} federations of real data"
        f"{f' with {seeds} seeds' if seeds > 1 else ''}: {len(fulls)} bake-offs. "
        f"{apart} federations ({len(held_out)} bake-offs) were not looked at when the ladder was "
        "chosen. *Regret*: how many points of test accuracy (mean over clients) a choice falls "
        "short of the best of all methods after all rounds, which only somebody who looks at test "
        "data can know; the noise of test data counts as regret. The full bake-off itself takes a "
        "method by validation data.",
        "```\nFEDSKEW_DATA=... python -m benchmarks.recommending --out DIR\n```",
        "## Bars",
        bars(fulls, held_out),
        "## Every fixed choice beside it",
        choices(fulls, held_out, methods),
        "## Federation by federation",
        by_case(fulls),
        "## Where it falls short by more than a point",
        "\n".join(f"- {line}" for line in missed(fulls)) or "Nowhere.",
        "What decides is validation data, a fifth of the clients' rows: the full bake-off, which "
        "has all rounds of all methods, misses about as often. Models are small, rounds few, and "
        "methods have their defaults: nothing larger, tuned, or at real sites was tried.",
        "## Ladders",
        "The usual one was chosen by the first two columns alone, those of the federations used "
        "for design. A rung is `rounds: how many methods go on`.",
        ladders(fulls, held_out, len(methods) - 1),
        "## The same as run for real",
        "\n".join(f"- {line}" for line in same),
        "## Made with",
        table(("", ""), made),
    ]
    return "\n\n".join(parts) + "\n"


def recommended(full: Full) -> str:
    return climb(full, USUAL).method


def bars(fulls: Sequence[Full], held_out: Sequence[Full]) -> str:
    """Each bar, over all bake-offs and over those held out."""
    rows = []
    for name, group in (("all", fulls), ("held out", held_out)):
        if not group:
            continue
        regrets = [full.regret(recommended(full)) for full in group]
        short = [short_of(full, recommended(full)) for full in group]
        near, near_short = share(regrets), share(short)
        cost = mean(climb(full, USUAL).rounds for full in group)
        sent = mean(climb(full, USUAL).bytes for full in group)
        fixed = best_fixed(group)
        least = mean(full.regret(fixed) for full in group)
        rows += [
            (name, f"within {WITHIN:g} point of the best on test data, on at least {ENOUGH:.0%}",
             f"{near:.0%}", met(near >= ENOUGH)),
            (name, f"within {WITHIN:g} point of what the full bake-off takes, on at least "
             f"{ENOUGH:.0%}", f"{near_short:.0%}", met(near_short >= ENOUGH)),
            (name, f"at most {HALF:.0%} of its rounds", f"{cost:.0%} (bytes {sent:.0%})",
             met(cost <= HALF)),
            (name, "mean regret below that of every fixed choice",
             f"{mean(regrets):.2f} against {least:.2f} (always `{fixed}`)",
             met(mean(regrets) < least)),
        ]  # fmt: skip
    return table(("federations", "bar", "figure", ""), rows)


def met(yes: bool) -> str:
    return "met" if yes else "**missed**"


def share(short: Sequence[float]) -> float:
    """The share of choices that fall short by no more than a point."""
    return mean(float(value <= WITHIN + 1e-9) for value in short)


def short_of(full: Full, method: str) -> float:
    """Points of test score less than what the full bake-off takes by validation data."""
    return full.regret(method) - full.regret(full.by_validation())


def best_fixed(group: Sequence[Full]) -> str:
    """The method that would have been the best one to take always."""
    return min(METHODS, key=lambda name: mean(full.regret(name) for full in group))


def choices(fulls: Sequence[Full], held_out: Sequence[Full], methods: Sequence[str]) -> str:
    fixed: dict[str, Choose] = {
        f"always `{name}`": lambda full, name=name: name  # type: ignore[misc]
        for name in methods
    }
    known: dict[str, Choose] = {
        "**recommend**": recommended,
        "the full bake-off, by validation data": Full.by_validation,
    }
    order = sorted(fixed, key=lambda name: mean(f.regret(fixed[name](f)) for f in fulls))
    rows = []
    for name in [*known, *order]:
        choose = {**known, **fixed}[name]
        row = [name]
        for group in (fulls, held_out):
            regrets = [full.regret(choose(full)) for full in group]
            row += [f"{mean(regrets):.2f}", f"{max(regrets):.1f}", f"{share(regrets):.0%}"]
        rows.append(tuple(row))
    head = ("choice", "mean regret", "largest", "within a point",
            "held out: mean", "largest", "within a point")  # fmt: skip
    return table(head, rows)


def by_case(fulls: Sequence[Full]) -> str:
    about = {case.name: case.about for case in CASES}
    rows = []
    for full in fulls:
        found = climb(full, USUAL)
        best = min(full.lines, key=full.regret)
        taken = full.by_validation()
        rows.append(
            (full.case, about[full.case], str(full.seed),
             "design" if full.case in DESIGN else "held out",
             f"`{found.method}` {full.test(found.method):.3f}",
             f"`{taken}` {full.test(taken):.3f}", f"`{best}` {full.test(best):.3f}",
             f"{full.test(ALONE):.3f}", f"{full.regret(found.method):.1f}", f"{found.rounds:.0%}")
        )  # fmt: skip
    head = ("federation", "clients", "seed", "", "recommend", "full bake-off takes",
            "best on test data", "local", "regret", "cost")  # fmt: skip
    return table(head, rows)


def missed(fulls: Sequence[Full]) -> Iterator[str]:
    """Every such bake-off, with the number of samples that decided and that regret is told by."""
    for full in fulls:
        chosen, taken = recommended(full), full.by_validation()
        if full.regret(chosen) <= WITHIN:
            continue
        best = min(full.lines, key=full.regret)
        line = full.lines[ALONE]
        judged, tested = (
            sum(n for _, n in line[split]["1"].values()) for split in ("validation", "test")
        )
        yield (
            f"{full.case}, seed {full.seed}: `{chosen}`, {full.regret(chosen):.1f} points short of "
            f"`{best}`; the full bake-off takes `{taken}`, {full.regret(taken):.1f} short. "
            f"{judged} validation samples decide, {tested} test samples tell."
        )


def ladders(fulls: Sequence[Full], held_out: Sequence[Full], contenders: int) -> str:
    design = [full for full in fulls if full.case in DESIGN]
    rows = []
    for shape in SHAPES:
        mark = " (usual)" if shape == USUAL else ""
        row = [said(shape, contenders) + mark]
        for group in (design, held_out):
            found = [climb(full, shape) for full in group]
            regrets = [f.regret(c.method) for f, c in zip(group, found, strict=True)]
            row += [f"{mean(c.rounds for c in found):.0%}", f"{mean(regrets):.2f}"]
        rows.append(tuple(row))
    head = ("ladder", "design: cost", "mean regret", "held out: cost", "mean regret")
    return table(head, rows)


def said(shape: Shape, contenders: int) -> str:
    steps = ladder(shape, contenders, ROUNDS)
    return ", ".join(f"{rung.rounds}: {rung.keeps}" for rung in steps)
