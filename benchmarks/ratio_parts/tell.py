"""The page, from the results of all finished runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from benchmarks.ratio_parts.measure import Result, Spread, over_seeds
from benchmarks.ratio_parts.plan import (
    DIMENSIONS,
    ESTIMATORS,
    IMAGES,
    LAWS,
    OWNERS,
    ROWS,
    TEST,
    VALIDATION,
    Setting,
)
from fedskew.papers.machine import Provenance
from fedskew.papers.markdown import table

TITLE = "Estimating density ratios where the truth is known"
OPENING = (
    "FedDisk weighs a client's samples by α(x) = p(x)/q_k(x): how likely a sample is among "
    "everybody's data, over how likely it is among the client's own. Nobody knows that ratio of "
    "real clients. This page takes clients whose laws are written down, and asks how near each "
    "estimator comes to the truth, and whether its weights are better than none."
)
TEXT = {
    "pearson": "Correlation of log weights with true log ratios (Pearson). 1 is right, 0 knows "
    "nothing; weights that are all equal count as 0.",
    "spearman": "The same of ranks (Spearman): whether samples are in the right order.",
    "slope": "Slope of the true log ratio over the log weight. 1 is right, below 1 says that "
    "weights differ too much, above 1 too little. Median over clients, without those whose "
    "weights are all equal: the slope of weights that hardly differ may be anything.",
    "effective": "Effective share of the samples, (Σα)²/Σα² over their number; below the true one "
    "says that weights differ too much.",
    "error": "Error of the weights: mean |α - α*|, where α* is true and both have a mean of 1, "
    "relative to the error of weights that are all 1. Below 1 is better than no weights at all.",
}
HEADINGS = {
    "pearson": "Correlation", "spearman": "Correlation of ranks", "slope": "Calibration",
    "effective": "Effective share", "error": "Error of the weights",
}  # fmt: skip
BEST: dict[str, Callable[[Sequence[float]], float]] = {
    "pearson": max, "spearman": max, "error": min,
}  # fmt: skip


@dataclass(frozen=True)
class Facts:
    """Everything the page tells."""

    results: Sequence[Result]
    planned: int
    pictures: Sequence[str]
    figures: str
    command: str
    made: Provenance
    jobs: int
    wall_seconds: float | None = None
    reading: str = ""
    quick: bool = False


def page(facts: Facts) -> str:
    """The page as Markdown."""
    results = facts.results
    parts = [f"# {TITLE}", OPENING, f"```\n{facts.command}\n```"]
    if facts.quick:
        parts.append("**Made with `--quick`: the numbers only show that the command works.**")
    elif len(results) < facts.planned:
        parts.append(f"**{len(results)} of {facts.planned} runs are finished.**")
    parts += ["## In short", facts.reading] if facts.reading else []
    apart = [result for result in results if result.setting.shift > 0]
    alike = [result for result in results if result.setting.shift == 0]
    parts += ["## Which estimator", *ranking(apart)] if apart else []
    titles = {
        "correlation": "Correlation by number of dimensions",
        "samples": "One client's samples",
    }
    parts += [f"![{titles[name]}]({facts.figures}/{name}.png)" for name in facts.pictures]
    for measure, heading in HEADINGS.items() if apart else ():
        parts += [f"## {heading}", TEXT[measure], by_federation(apart, measure)]
    parts += ["## Clients that are all alike", *identical(alike)] if alike else []
    csv = f"Every run's numbers, means over its clients: [runs.csv]({facts.figures}/runs.csv)."
    return "\n\n".join([*parts, "## Set-up", *set_up(facts), csv, *made_with(facts)]) + "\n"


def ranking(results: Sequence[Result]) -> list[str]:
    """Estimators, the one that correlates most first, by means over all federations."""
    settings = _settings(results)
    rows = []
    for estimator in ESTIMATORS:
        means = {
            measure: fmean(over_seeds(_of(results, s, estimator), measure).mean for s in settings)
            for measure in ("pearson", "spearman", "error", "equal")
        }
        wins = {
            measure: sum(estimator in best(results, s, measure) for s in settings)
            for measure in ("pearson", "error")
        }
        errors = [over_seeds(_of(results, s, estimator), "error").mean for s in settings]
        # As the page shows them: what rounds to 1 is no better than no weights.
        better = sum(float(_number(error)) < 1 for error in errors)
        rows.append((means, wins, better, estimator))
    rows.sort(key=lambda row: -row[0]["pearson"])
    heads = ("estimator", "correlation", "of ranks", "error", "most correlated", "least error",
             "better than no weights", "clients with equal weights")  # fmt: skip
    count = len(settings)
    about = (
        f"Means over the {count} federations whose clients differ, each the mean of its clients "
        "and seeds; in how many federations the estimator correlates most or errs least, and in "
        "how many its error is below that of equal weights; the share of clients for which it "
        "gave up and left all weights equal."
    )
    shown = [
        (f"`{estimator}`", *(_number(means[m]) for m in ("pearson", "spearman", "error")),
         *(f"{wins[m]} of {count}" for m in ("pearson", "error")), f"{better} of {count}",
         f"{means['equal']:.0%}")
        for means, wins, better, estimator in rows
    ]  # fmt: skip
    return [about, table(heads, shown)]


def by_federation(results: Sequence[Result], measure: str) -> str:
    """Mean over seeds and, in brackets, their range; the best of a row is bold."""
    truth = measure == "effective"
    rows = []
    for setting in _settings(results):
        marked = best(results, setting, measure) if measure in BEST else set()
        cells = [setting.label]
        if truth:
            cells.append(_cell(over_seeds(_of(results, setting), "true_effective")))
        for estimator in ESTIMATORS:
            text = _cell(over_seeds(_of(results, setting, estimator), measure))
            cells.append(f"**{text}**" if estimator in marked else text)
        rows.append(cells)
    return table(("federation", *(["true"] if truth else []), *ESTIMATORS), rows)


def best(results: Sequence[Result], setting: Setting, measure: str) -> set[str]:
    """The estimators with the best mean on a federation: one, unless the page shows them equal."""
    means = {
        estimator: _number(over_seeds(_of(results, setting, estimator), measure).mean)
        for estimator in ESTIMATORS
    }
    first = BEST[measure]([float(text) for text in means.values()])
    return {estimator for estimator, text in means.items() if float(text) == first}


def identical(results: Sequence[Result]) -> list[str]:
    """What estimators make of clients that do not differ: all they find is false."""
    about = (
        "With shift 0 all true weights are 1, so whatever an estimator finds is noise. Mean "
        "|α - 1|, 0 is right; in brackets the effective share, which should be 1."
    )
    rows = []
    for setting in _settings(results):
        texts = []
        for estimator in ESTIMATORS:
            own = _of(results, setting, estimator)
            apart, effective = (over_seeds(own, m).mean for m in ("apart", "effective"))
            texts.append(f"{_number(apart)} ({_number(effective)})")
        rows.append((f"{setting.law}, {setting.dimensions} dimensions", *texts))
    return [about, table(("federation", *ESTIMATORS), rows)]


def set_up(facts: Facts) -> list[str]:
    if facts.quick:
        return ["As small as can be."]
    laws = {result.setting.law for result in facts.results}
    dimensions = ", ".join(str(number) for number in DIMENSIONS[:-1])
    seeds = max((result.setting.seeds for result in facts.results), default=0)
    about = (
        f"Gaussian and Bernoulli clients: {OWNERS} owners with {ROWS} rows each, in {dimensions} "
        f"and {DIMENSIONS[-1]} dimensions; shift is how far a client's law lies from the shared "
        "one, in deviations, whatever the dimensions. Digits: "
        f"{IMAGES:,} images over {OWNERS} clients. {TEST:.0%} of a client's rows are for tests, "
        f"{VALIDATION:.0%} of the rest for validation. {seeds} seeds (one where clients are "
        "alike), each of which draws data, split and models anew; cells are means over clients, "
        "then over seeds, with the range over seeds in brackets. MADEs are trained once a "
        "federation and seed, as method `feddisk` does by default, and all estimators see the same "
        "ones. Weights are clipped as it does, true ones are not."
    )
    known = [(law, text) for law, text in LAWS.items() if law in laws]
    estimators = [(f"`{name}`", text) for name, text in ESTIMATORS.items()]
    return [about, table(("law", ""), known), table(("estimator", ""), estimators)]


def made_with(facts: Facts) -> list[str]:
    made = facts.made
    other = sorted({result.code for result in facts.results} - {made.code})
    computing = sum(result.seconds for result in facts.results)
    rows = [
        ("fedskew", made.code),
        *([("runs finished by other code", "; ".join(other))] if other else ()),
        ("machine", f"{made.cores} cores, {made.processor}, {made.memory}"),
        ("software", f"Python {made.python}, torch {made.arithmetic['torch']}"),
        ("runs", f"{len(facts.results)}, one thread each"),
        ("all runs, one after the other", _minutes(computing)),
    ]
    if facts.wall_seconds is not None:
        what = f"this command, {facts.jobs} at a time, runs finished before not counted"
        rows.append((what, _minutes(facts.wall_seconds)))
    return ["## Made with", table(("what", ""), rows)]


def _settings(results: Sequence[Result]) -> list[Setting]:
    return list(dict.fromkeys(result.setting for result in results))


def _of(results: Sequence[Result], setting: Setting, estimator: str | None = None) -> list[Result]:
    return [
        result
        for result in results
        if result.setting == setting and estimator in (None, result.estimator)
    ]


def _cell(spread: Spread) -> str:
    if math.isnan(spread.mean):
        return "–"
    mean, least, most = (_number(value) for value in (spread.mean, spread.least, spread.most))
    return mean if least == most else f"{mean} ({least} to {most})"


def _number(value: float) -> str:
    """Two digits; adding zero takes the sign off what rounds to minus zero.

    >>> _number(0.126), _number(-0.001)
    ('0.13', '0.00')
    """
    return f"{round(value, 2) + 0.0:.2f}"


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
