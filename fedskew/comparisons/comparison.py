"""Several methods on the same federations, side by side, ending in one leaderboard."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedskew.comparisons.crossing import Given, Pair, label, own_label, pairs, parse_method
from fedskew.comparisons.runner import Observer, Runner
from fedskew.comparisons.selection import Count, Members, curves_of, folds, left_out_of
from fedskew.config import Config, Named, make_config
from fedskew.errors import ConfigError
from fedskew.federate.recipe import find
from fedskew.federate.recipe import methods as registered
from fedskew.runs.experiment import Run, Tell
from fedskew.runs.identity import resolve
from fedskew.store import make_folder, write_atomically
from fedskew.views.domains import CENTRAL_TEST, UNSEEN, Matrix, Pick, picks_of
from fedskew.views.figures import draw_comparison
from fedskew.views.leaderboard import Standing, has_effective, to_csv, to_markdown, to_text
from fedskew.views.standings import common_metric, standings


@dataclass(frozen=True)
class Comparison:
    """A finished comparison: who stands where, and the folder with tables, figures and runs.

    ``matrix`` has the scores out of domain where objectives were crossed with aggregators.
    """

    path: Path
    metric: str
    higher_is_better: bool
    seeds: tuple[int, ...]
    leaderboard: tuple[Standing, ...]
    remarks: tuple[str, ...] = field(default=())
    matrix: Matrix | None = None

    def to_markdown(self) -> str:
        """The leaderboard as a Markdown table with its remarks."""
        return to_markdown(self.leaderboard, self.metric, self.caption, self.remarks)

    def to_csv(self) -> str:
        """The leaderboard with one number a cell, for further work."""
        return to_csv(self.leaderboard, self.metric)

    @property
    def caption(self) -> str:
        """What the numbers are: a sentence on the scores, and one on effective rounds."""
        several = len(self.seeds) > 1
        over = f", ± standard deviation over {len(self.seeds)} seeds" if several else ""
        scores = (
            f"Test {self.metric} per client at the round with the best validation score{over}; "
            "every client counts the same."
        )
        where = "in some seed" if several else "here"
        effective = (
            f" Effective rounds: those until a method's mean test {self.metric} first reached the "
            "best any other method ever had, earlier stages that share something included "
            f"(†: {where} it never did, so until its own best); effective MB: what a client sent "
            "and received by then."
        )
        return scores + effective * has_effective(self.leaderboard)

    def __str__(self) -> str:
        table = to_text(self.leaderboard, self.metric)
        crossed = [] if self.matrix is None else ["", str(self.matrix)]
        return "\n".join([table, "", self.caption, *self.remarks, *crossed])


def compare(
    methods: Iterable[Given] = (),
    config: Config | Mapping[str, Any] | None = None,
    *,
    objectives: Iterable[Given] | str = (),
    aggregators: Iterable[Given] | str = (),
    leave_out: Count = 0,
    seeds: int = 1,
    out: str | Path = "results",
    data_dir: str | Path | None = None,
    references: bool = True,
    watch: Observer | None = None,
    tell: Tell | None = None,
) -> Comparison:
    """Run methods on the same federations and rank them.

    A method is a name, ``"fedprox:mu=0.1"``, or ``{"name": "fedprox", "mu": 0.1}``; it takes the
    place of the config's own. ``seeds`` runs each with the config's seed and those that follow;
    the split follows the seed unless the config fixes it. ``local`` and ``central`` come along
    unless ``references`` is false. Finished runs in ``out`` are not run again,
    unless your code or data changed, which ``tell`` is told (see :func:`fedskew.run`).

    Every one of ``objectives`` is run with every one of ``aggregators``, and the result has a
    matrix of scores out of domain, a table for each rule of model selection. One rule needs runs
    that leave one client out each: ``leave_out`` of them for each pair and seed, or "all".

    >>> import tempfile
    >>> quick = {"model": "logistic", "train": {"rounds": 2}}
    >>> table = compare(["fedavg"], quick, out=tempfile.mkdtemp())
    >>> sorted(row.method for row in table.leaderboard)
    ['central', 'fedavg', 'local']
    """
    base = config if isinstance(config, Config) else make_config(config or {})
    if seeds < 1:
        raise ConfigError(f"seeds must be at least 1, not {seeds}.")
    crossed = {label(pair.method): pair for pair in pairs(objectives, aggregators)}
    if leave_out != 0 and not crossed:
        raise ConfigError("leave-out chooses rounds for objectives: name some objectives.")
    chosen = _chosen(methods, crossed.values(), references)
    configs = {
        seed: {
            name: resolve(base.model_copy(update={"method": method, "seed": seed}))
            for name, method in chosen.items()
        }
        for seed in range(base.seed, base.seed + seeds)
    }
    directory = None if data_dir is None else Path(data_dir)
    runner = Runner(Path(out) / "runs", directory, watch, tell)
    first = configs[base.seed]
    some = [first[name] for name in crossed][:1]
    each = sum(len(folds(config, runner.members(config), leave_out)) for config in some)
    runner.check(first.values())
    runner.total = seeds * (len(chosen) + each * len(crossed))
    runs: dict[str, list[Run]] = {name: [] for name in chosen}
    for own in configs.values():
        for name, config in own.items():
            runs[name].append(runner.run(config))
    comparison = _ranked(Path(out), runs, tuple(configs))
    if crossed:
        without = _leave_out(runner, configs, list(crossed), leave_out)
        comparison = replace(comparison, matrix=_matrix(crossed, runs, without))
    _write(comparison, runs)
    return comparison


def _chosen(
    methods: Iterable[Given], crossed: Iterable[Pair], references: bool
) -> dict[str, Named]:
    """Each method once, by its label, its settings checked before anything runs."""
    if isinstance(methods, str):
        methods = [methods]
    given = [pair.method for pair in crossed]
    given += [parse_method(m) if isinstance(m, str) else Named(**m) for m in methods]
    if not given:
        raise ConfigError("compare needs at least one method, or objectives.")
    if references:
        given += _references(given[0]).values()
    chosen: dict[str, Named] = {}
    for method in given:
        find(method.name).recipe(**method.knobs)
        chosen.setdefault(label(method), method)
    return chosen


def _references(beside: Named) -> dict[str, Named]:
    """By role, what minimises the same as the method beside it: alone, and on pooled data."""
    objective = find(beside.name).recipe(**beside.knobs).objective
    return {
        known.card.reference: Named(**objective.trained_by(name))
        for name, known in registered().items()
        if known.card.reference is not None
    }


def _role(method: Named) -> str | None:
    """Which reference a method is, if it is one."""
    roles = {label(known): role for role, known in _references(method).items()}
    return roles.get(label(method))


def _leave_out(
    runner: Runner, configs: Mapping[int, Mapping[str, Config]], names: Sequence[str], count: Count
) -> dict[tuple[str, int], list[Run]]:
    """Runs without one client each, by pair and seed; all pairs leave the same clients out."""
    plans: dict[int, dict[str, list[Config]]] = {}
    for seed, own in configs.items():
        members = runner.members(own[names[0]])
        # In another split fewer clients may have validation data than in the first.
        most = count if count == "all" else min(count, len(members.validated))
        plans[seed] = {name: folds(own[name], members, most) for name in names}
    runner.total = runner.position + sum(len(p) for plan in plans.values() for p in plan.values())
    found: dict[tuple[str, int], list[Run]] = {(n, seed): [] for n in names for seed in configs}
    for seed, plan in plans.items():
        for same_client in zip(*plan.values(), strict=True):
            for name, config in zip(plan, same_client, strict=True):
                done = runner.run(config, draw=False, without=left_out_of(config))
                found[name, seed].append(done)
    return found


def _matrix(
    crossed: Mapping[str, Pair],
    runs: Mapping[str, Sequence[Run]],
    without: Mapping[tuple[str, int], Sequence[Run]],
) -> Matrix:
    """What each rule of model selection makes of every pair."""
    cells = {
        name: (own_label(pair.objective), own_label(pair.aggregator))
        for name, pair in crossed.items()
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
    """What runs warned of, each sentence once, with the names of those it is about."""
    about: dict[str, list[str]] = {}
    for name, done in runs.items():
        for sentence in done.result["warnings"]:
            about.setdefault(sentence, []).append(name)
    for sentence, names in about.items():
        yield sentence if len(names) == len(runs) else f"{', '.join(names)}: {sentence}"


def _ranked(out: Path, runs: Mapping[str, Sequence[Run]], seeds: tuple[int, ...]) -> Comparison:
    roles = {name: _role(group[0].config.method) for name, group in runs.items()}
    metric, higher = common_metric(runs)
    ordered = standings(runs, roles, metric, higher)
    return Comparison(out, metric, higher, seeds, ordered, _remarks(ordered, roles, runs))


def _remarks(
    ordered: Sequence[Standing],
    roles: Mapping[str, str | None],
    runs: Mapping[str, Sequence[Run]],
) -> tuple[str, ...]:
    remarks = []
    best = next((s for s in ordered if roles[s.method] != "pooled"), None)
    if best and roles[best.method] == "alone" and any(not s.reference for s in ordered):
        remarks.append(
            f"No method beat local training ({best.score.mean:.3f}): with data this skewed, "
            "clients did best on their own."
        )
    for standing in ordered:
        mine = [run.result for run in runs[standing.method]]
        troubles = {
            "client updates were unusable and left out": sum(r["failures"] for r in mine),
            "models could not be fine-tuned": sum(len(r["notes"]) for r in mine),
        }
        remarks += [
            f"{standing.method}: {count} {what}; `fedskew show {standing.runs[0]}` says why."
            for what, count in troubles.items()
            if count
        ]
    return tuple(remarks)


def _write(comparison: Comparison, runs: Mapping[str, Sequence[Run]]) -> None:
    folder = make_folder(comparison.path)
    write_atomically(folder / "leaderboard.csv", comparison.to_csv().encode())
    write_atomically(folder / "leaderboard.md", comparison.to_markdown().encode())
    matrix = comparison.matrix
    if matrix is not None:
        write_atomically(folder / "matrix.csv", matrix.to_csv().encode())
        write_atomically(folder / "matrix.md", matrix.to_markdown().encode())
    ordered = {standing.method: runs[standing.method] for standing in comparison.leaderboard}
    pictures = [] if matrix is None else [matrix.picture()]
    draw_comparison(folder, ordered, comparison.metric, pictures)
