"""The table of a setting: every arm with its scores, beside the source's number."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from fedskew.comparisons.statistics import interval
from fedskew.papers.format import Suite
from fedskew.papers.markdown import table
from fedskew.papers.measure import Measured
from fedskew.papers.numbers import cell
from fedskew.papers.printed import source, stand_apart
from fedskew.papers.scores import WEIGHTS, At, Headline, ScoreName, meaning
from fedskew.papers.verdict import Key, Results

Column = tuple[str, ScoreName, At]
"""Its head, the score it shows, and of which round."""

COLUMNS: tuple[Column, ...] = (
    ("last round", "clients", "last"),
    ("selected round", "clients", "selected"),
    ("worst client", "worst", "last"),
    ("fine-tuned", "fine-tuned", "last"),
    ("central test", "central", "last"),
)
CENTRAL_COLUMNS: tuple[Column, ...] = (
    ("central test", "central", "last"),
    ("selected round", "central", "selected"),
    ("first round", "first", "last"),
    ("clients' own tests", "clients", "last"),
    ("worst client", "worst", "last"),
    ("fine-tuned", "fine-tuned", "last"),
)
"""Of a suite about the global model; here a column without numbers is left out."""
OOD_COLUMNS: tuple[Column, ...] = (
    ("out of domain", "ood", "last"),
    ("selected round", "ood", "selected"),
    ("environment round", "ood", "environment"),
    ("left-out round", "ood", "left-out"),
    ("oracle round", "ood", "oracle"),
    ("clients' own tests", "clients", "last"),
    ("worst client", "worst", "last"),
    ("fine-tuned", "fine-tuned", "last"),
)
"""Of a suite about clients nobody trained with; the same."""
MAIN_COLUMNS: dict[Headline, tuple[Column, ...]] = {
    "clients": COLUMNS, "central": CENTRAL_COLUMNS, "ood": OOD_COLUMNS,
}  # fmt: skip
EXTRA_COLUMNS: tuple[Column, ...] = (
    ("self-weight", "self-weight", "last"),
    ("row entropy", "entropy", "last"),
    ("own models, central test", "own-central", "last"),
    ("best of own models", "ensemble", "last"),
    ("reconstruction, central", "reconstruction", "last"),
    ("reconstruction, own tests", "own-reconstruction", "last"),
    ("legacy", "legacy", "last"),
    ("CAS", "cas", "last"),
    ("Fréchet", "frechet", "last"),
    ("precision", "precision", "last"),
    ("recall", "recall", "last"),
    ("divergence", "divergence", "last"),
    ("follows divergence", "follows", "last"),
    ("weight entropy", "weight-entropy", "last"),
    ("clients kept", "kept", "last"),
)
"""Only where an arm has them: most servers give everybody the same model."""

ABOUT_WEIGHTS = (
    "“Self-weight” is the weight a client has in its own model, “row entropy” how evenly the "
    "weights of all who make it up are spread: 1 if they are equal, 0 if one has everything. Both "
    "are means over clients after the last round."
)
ABOUT_CLIENTS = (
    "Mean over clients on each client's own test data, unless the column says otherwise; "
    "± is half the 95 % t-interval over seeds. “Selected round” is the round with the best "
    "validation score. “Sent” counts both directions over all rounds and clients; what a "
    "reference sends is not comparable (`central` moves the raw data, which is not counted)."
)
ABOUT_CENTRAL = (
    "The {metric} ({better} is better), unless the column says otherwise; ± is half the 95 % "
    "t-interval over seeds. “Central test”, “selected round” and “first round” are of the global "
    "model on the central test set, after the last round, the round with the best validation score "
    "and the first scored round; “clients' own tests” is the mean over clients of each client's "
    "main model on its own test data, “worst client” the worst of them. “Sent” counts both "
    "directions over all rounds and clients; what a reference sends is not comparable (`central` "
    "moves the raw data, which is not counted)."
)
ABOUT_OOD = (
    "The {metric} ({better} is better), unless the column says otherwise; ± is half the 95 % "
    "t-interval over seeds. “Out of domain” is the score of the last round on clients nobody "
    "trained with or, where there are none, on the central test set; “selected round” the same "
    "for the round with the best validation score, “oracle round” for the best round by that very "
    "score, which peeks at the test data. “Clients' own tests” is the mean over training clients, "
    "“worst client” the worst of them, both after the last round. “Sent” counts both directions "
    "over all rounds and clients; what a reference sends is not comparable (`central` moves the "
    "raw data, which is not counted)."
)


def about_columns(suite: Suite, settings: Sequence[str], results: Results) -> list[str]:
    """What the tables of these settings show, in words."""
    opening = ABOUT_CLIENTS
    if not results:
        return []
    if suite.headline != "clients":
        first = next(iter(results.values()))
        better = "higher" if first.higher_is_better(suite.headline) else "lower"
        opening = ABOUT_OOD if suite.headline == "ood" else ABOUT_CENTRAL
        opening = opening.format(metric=first.result["primary_metric"], better=better)
    shown = {column for setting in settings for column in _columns(suite, setting, results)}
    extra = [column for column in (*EXTRA_COLUMNS, *_asked(suite)) if column in shown]
    weighed = any(score in WEIGHTS for _, score, _ in extra)
    others = [f"- {h}: {meaning(score)}" for h, score, _ in extra if score not in WEIGHTS]
    return [
        opening,
        *([ABOUT_WEIGHTS] if weighed else ()),
        *(["Further columns, after the last round:", "\n".join(others)] if others else ()),
    ]


def results_table(
    suite: Suite,
    setting: str,
    arms: Sequence[str],
    results: Results,
    stopped: Collection[Key] = (),
) -> str:
    columns = _columns(suite, setting, results)
    heads = ["arm", "role", *(head for head, _, _ in columns), "sent (MB)"]
    beside = bool(suite.numbers) and not stand_apart(suite)
    heads += ["the source's number"] if beside else []
    rows = []
    for arm in arms:
        runs = [m for (s, a, _), m in results.items() if (s, a) == (setting, arm)]
        row = [suite.arm(arm).label, suite.arm(arm).role]
        ended = sum((s, a) == (setting, arm) for s, a, _ in stopped)
        row += [_score(runs, score, at, ended) for _, score, at in columns]
        row.append(f"{interval([m.megabytes for m in runs]).mean:.1f}")
        if beside:
            mine = [n for n in suite.numbers if (n.setting, n.arm) == (setting, arm)]
            printed = [f"{source(number)} ({number.where})" for number in mine]
            row.append("; ".join(printed) or "–")
        rows.append(row)
    return table(heads, rows)


def _columns(suite: Suite, setting: str, results: Results) -> list[Column]:
    runs = [m for (where, _, _), m in results.items() if where == setting]

    def filled(columns: Sequence[Column]) -> list[Column]:
        return [c for c in columns if not all(math.isnan(m.score(c[1], c[2])) for m in runs)]

    main: Sequence[Column] = MAIN_COLUMNS[suite.headline]
    if suite.headline != "clients" or suite.columns:
        main = filled(main)
    return [*main, *filled(EXTRA_COLUMNS), *filled(_asked(suite))]


def _asked(suite: Suite) -> list[Column]:
    """Columns the suite asks for by the names of their scores."""
    return [(score, score, "last") for score in suite.columns]


def _score(runs: Sequence[Measured], score: ScoreName, at: At, stopped: int) -> str:
    """The mean over seeds; those that diverged, or stopped, are counted beside it."""
    values = [measured.score(score, at) for measured in runs]
    kept = [v for m, v in zip(runs, values, strict=True) if math.isfinite(v) or not m.diverged]
    lost = stopped + len(values) - len(kept)
    text = cell(interval(kept), score, bool(runs) and runs[0].is_share)
    return f"{text} (diverged in {lost} of {stopped + len(values)} seeds)" if lost else text
