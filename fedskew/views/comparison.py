"""A finished comparison: its leaderboard, its matrix of scores out of domain, and its files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedskew.comparisons.comparison import Compared
from fedskew.comparisons.crossing import own_label
from fedskew.comparisons.paired import MARGIN
from fedskew.comparisons.selection import Members, curves_of
from fedskew.comparisons.tuning import Tuned
from fedskew.runs.experiment import Run
from fedskew.store import make_folder, sweep, write_atomically
from fedskew.views.domains import CENTRAL_TEST, UNSEEN, Matrix, Pick, picks_of
from fedskew.views.figures import draw_comparison
from fedskew.views.gains import (
    ClientScore,
    client_scores,
    clients_csv,
    gain_caption,
    gains_markdown,
    gains_text,
    verdicts,
    without_alone,
)
from fedskew.views.leaderboard import (
    Standing,
    has_effective,
    has_gain,
    to_csv,
    to_markdown,
    to_text,
)
from fedskew.views.standings import common_metric, standings
from fedskew.views.tuning import trials_csv, tuning_markdown, tuning_text


@dataclass(frozen=True)
class Comparison:
    """A finished comparison: its ranking, and the folder with tables, figures and runs.

    ``clients`` has the score of every client under every method and seed, and its gain over itself
    trained alone. ``tuned`` has what each method tried and chose. ``matrix`` has the scores out of
    domain, if objectives were crossed with aggregators.
    """

    path: Path
    metric: str
    higher_is_better: bool
    seeds: tuple[int, ...]
    leaderboard: tuple[Standing, ...]
    remarks: tuple[str, ...] = field(default=())
    matrix: Matrix | None = None
    clients: tuple[ClientScore, ...] = ()
    tuned: tuple[Tuned, ...] = ()

    def to_markdown(self) -> str:
        """The leaderboard as a Markdown table, the gains over training alone, and remarks."""
        gains = gains_markdown(self.leaderboard, self.metric)
        told = [gains] if gains else []
        told += [tuning_markdown(self.tuned)] if self.tuned else []
        return to_markdown(self.leaderboard, self.metric, self.caption, [*told, *self.remarks])

    def to_csv(self) -> str:
        """The leaderboard with one number per cell, for further processing."""
        return to_csv(self.leaderboard, self.metric)

    @property
    def caption(self) -> str:
        """What the numbers are: scores, gains and effective rounds, one sentence each."""
        several = len(self.seeds) > 1
        half = f", ± half the 95 % t-interval over {len(self.seeds)} seeds" if several else ""
        paired = ", paired by client and seed" if several else ", paired by client"
        falls = "" if self.higher_is_better else " (lower is better)"
        scores = (
            f"Test {self.metric} per client{falls} at the round with the best validation "
            f"score{half}; every client counts the same."
        )
        gains = (
            f" Gain over local: the mean less that of training alone{paired}; positive is better."
        )
        where = "in some seed" if several else "here"
        effective = (
            f" Effective rounds: those until a method's mean test {self.metric} first reached the "
            "best any other method ever had, earlier stages that share something included "
            f"(†: {where} it never did, so until its own best); effective MB: what a client sent "
            "and received by then."
        )
        gains *= has_gain(self.leaderboard)
        return scores + gains + effective * has_effective(self.leaderboard)

    def __str__(self) -> str:
        table = to_text(self.leaderboard, self.metric)
        crossed = [] if self.matrix is None else ["", str(self.matrix)]
        gains = gains_text(self.leaderboard, self.metric)
        told = ["", gains, "", gain_caption(self.leaderboard, self.metric)] if gains else []
        tuned = ["", tuning_text(self.tuned)] if self.tuned else []
        return "\n".join([table, "", self.caption, *told, *self.remarks, *tuned, *crossed])


def tabulate(out: Path, compared: Compared, margin: float = MARGIN) -> Comparison:
    """Rank the methods of a comparison, and tabulate its pairs if it has any.

    Gains over training alone within the ``margin`` are ties.
    """
    runs, roles = compared.runs, compared.roles
    metric, higher = common_metric(runs)
    ordered = standings(runs, roles, metric, higher, margin)
    return Comparison(
        out,
        metric,
        higher,
        compared.seeds,
        ordered,
        (
            *verdicts(ordered, metric),
            *without_alone(ordered),
            *_unscored(runs),
            *_troubles(ordered, runs),
            *(f"{name} stopped and is left out: {why}" for name, why in compared.stopped.items()),
        ),
        _matrix(compared) if compared.crossed else None,
        tuple(client_scores(ordered, runs, metric)),
        tuple(compared.tuned.values()),
    )


def _matrix(compared: Compared) -> Matrix:
    """The scores of every pair under each rule of model selection."""
    runs, without = compared.runs, compared.without
    cells = {
        name: (own_label(pair.objective), own_label(pair.aggregator))
        for name, pair in compared.crossed.items()
    }
    picks: list[Pick] = []
    for name, cell in cells.items():
        for done in runs[name]:
            seed = done.config.seed
            picks += picks_of(cell, seed, curves_of(done, without[name, seed]))
    first = runs[next(iter(cells))]
    members = [Members.found_in(done.results.rows) for done in first]
    result = first[0].result
    return Matrix(
        objectives=tuple(dict.fromkeys(objective for objective, _ in cells.values())),
        aggregators=tuple(dict.fromkeys(aggregator for _, aggregator in cells.values())),
        metric=result["primary_metric"],
        higher_is_better=result["higher_is_better"],
        target=UNSEEN if members[0].unseen else CENTRAL_TEST,
        seeds=len(first),
        picks=tuple(picks),
        silent=tuple(sorted({name for found in members for name in found.silent})),
        remarks=tuple(_warnings({cells[name][0]: runs[name][0] for name in cells})),
    )


def _warnings(runs: Mapping[str, Run]) -> Iterator[str]:
    """The warnings of runs, each sentence once, with the names of the runs it is about."""
    about: dict[str, list[str]] = {}
    for name, done in runs.items():
        for sentence in done.result["warnings"]:
            about.setdefault(sentence, []).append(name)
    for sentence, names in about.items():
        yield sentence if len(names) == len(runs) else f"{', '.join(names)}: {sentence}"


def _unscored(runs: Mapping[str, Sequence[Run]]) -> Iterator[str]:
    """Which clients have no scores, each sentence once, with the seeds it is about."""
    about: dict[str, dict[int, None]] = {}
    seeds = {done.config.seed: None for group in runs.values() for done in group}
    for group in runs.values():
        for done in group:
            for sentence in done.result.get("unscored", ()):
                about.setdefault(sentence, {})[done.config.seed] = None
    for sentence, its in about.items():
        when = "" if len(its) == len(seeds) else f"Seed {', '.join(map(str, its))}: "
        yield when + sentence


def _troubles(ordered: Sequence[Standing], runs: Mapping[str, Sequence[Run]]) -> Iterator[str]:
    for standing in ordered:
        mine = [run.result for run in runs[standing.method]]
        troubles = {
            "client updates were unusable and left out": sum(r["failures"] for r in mine),
            "models could not be fine-tuned": sum(len(r["notes"]) for r in mine),
        }
        for what, count in troubles.items():
            if count:
                run = standing.runs[0]
                yield f"{standing.method}: {count} {what}; `fedskew show {run}` says why."


def write(comparison: Comparison, runs: Mapping[str, Sequence[Run]]) -> None:
    """Write the tables and figures of a comparison into its folder."""
    folder = make_folder(comparison.path)
    sweep(folder, "")
    sweep(folder / "figures")
    write_atomically(folder / "leaderboard.csv", comparison.to_csv().encode())
    write_atomically(folder / "leaderboard.md", comparison.to_markdown().encode())
    lines = clients_csv(comparison.clients, comparison.metric)
    write_atomically(folder / "clients.csv", lines.encode())
    if comparison.tuned:
        write_atomically(folder / "tuning.csv", trials_csv(comparison.tuned).encode())
    matrix = comparison.matrix
    if matrix is not None:
        write_atomically(folder / "matrix.csv", matrix.to_csv().encode())
        write_atomically(folder / "matrix.md", matrix.to_markdown().encode())
    ordered = {standing.method: runs[standing.method] for standing in comparison.leaderboard}
    pictures = [] if matrix is None else [matrix.picture()]
    draw_comparison(folder, ordered, comparison.metric, pictures)
