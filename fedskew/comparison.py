"""Several methods on the same federations, side by side, ending in one leaderboard."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from fedskew.config import Config, Named, apply_overrides, make_config
from fedskew.data.federation import Federation
from fedskew.errors import ConfigError
from fedskew.experiment import Run, make_federation, resolve, run
from fedskew.folder import RunFolder
from fedskew.parts.density import DensityLoss
from fedskew.parts.generative import VaeLoss
from fedskew.recipe import find, methods
from fedskew.report.figures import draw_comparison
from fedskew.report.leaderboard import Standing, has_effective, to_csv, to_markdown, to_text
from fedskew.report.standings import common_metric, standings
from fedskew.score import Row
from fedskew.server import Progress, RoundRecord
from fedskew.store import make_folder, write_atomically

REFERENCES = ("local", "central")
"""No federation, and all data in one place: what any method must be held against."""


class Observer(Protocol):
    """Somebody who wants to know how far a comparison is."""

    def begin(self, config: Config, position: int, total: int) -> None: ...

    def __call__(self, progress: Progress, record: RoundRecord, rows: Sequence[Row]) -> None: ...

    def end(self, run: Run, repeated: bool) -> None: ...


@dataclass(frozen=True)
class Comparison:
    """A finished comparison: who stands where, and the folder with tables, figures and runs."""

    path: Path
    metric: str
    higher_is_better: bool
    seeds: tuple[int, ...]
    leaderboard: tuple[Standing, ...]
    remarks: tuple[str, ...] = field(default=())

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
        return "\n".join([table, "", self.caption, *self.remarks])


def compare(
    methods: Iterable[str | Mapping[str, Any]],
    config: Config | Mapping[str, Any] | None = None,
    *,
    seeds: int = 1,
    out: str | Path = "results",
    data_dir: str | Path | None = None,
    references: bool = True,
    watch: Observer | None = None,
) -> Comparison:
    """Run methods on the same federations and rank them.

    A method is a name, ``"fedprox:mu=0.1"``, or ``{"name": "fedprox", "mu": 0.1}``; it takes the
    place of the config's own. ``seeds`` runs each with the config's seed and those that follow;
    the split follows the seed unless the config fixes it. ``local`` and ``central`` come along
    unless ``references`` is false. Finished runs in ``out`` are not run again.

    >>> import tempfile
    >>> quick = {"model": "logistic", "train": {"rounds": 2}}
    >>> table = compare(["fedavg"], quick, out=tempfile.mkdtemp())
    >>> sorted(row.method for row in table.leaderboard)
    ['central', 'fedavg', 'local']
    """
    base = config if isinstance(config, Config) else make_config(config or {})
    if seeds < 1:
        raise ConfigError(f"seeds must be at least 1, not {seeds}.")
    chosen = _chosen(methods, references)
    numbers = tuple(range(base.seed, base.seed + seeds))
    folder = Path(out)
    runs = _run_all(base, chosen, numbers, folder, data_dir, watch)
    comparison = _ranked(folder, runs, numbers)
    _write(comparison)
    return comparison


def parse_method(text: str) -> Named:
    """A method as the command line names it.

    >>> parse_method("fedprox:mu=0.1,weights=uniform").knobs
    {'mu': 0.1, 'weights': 'uniform'}
    >>> parse_method("my_rules:median:trim=2").name
    'my_rules:median'
    """
    name, colon, knobs = text.partition(":")
    if colon and name not in methods() and "=" not in knobs.partition(":")[0]:
        function, colon, knobs = knobs.partition(":")
        name = f"{name}:{function}"
    # A comma inside a list is not followed by another setting's name and equals sign.
    settings = re.split(r",(?=\s*\w+\s*=)", knobs) if knobs else []
    if colon and not settings:
        raise ConfigError(f"method {text!r} wants settings after the colon, like 'fedprox:mu=0.1'.")
    for setting in settings:
        if "=" not in setting:
            raise ConfigError(f"method {text!r} wants name=value, not {setting!r}.")
    return Named(**{**apply_overrides({}, settings), "name": name.strip()})


def label(method: Named) -> str:
    """A method with those of its settings that are not the default.

    >>> label(Named(name="fedprox", mu=0.1, weights="size"))
    'fedprox (mu=0.1)'
    """
    defaults = find(method.name).defaults
    changed = [f"{k}={v}" for k, v in sorted(method.knobs.items()) if defaults.get(k) != v]
    return f"{method.name} ({', '.join(changed)})" if changed else method.name


def _chosen(methods: Iterable[str | Mapping[str, Any]], references: bool) -> list[Named]:
    """Each method once, its settings checked before anything runs."""
    if isinstance(methods, str):
        methods = [methods]
    given = [parse_method(m) if isinstance(m, str) else Named(**m) for m in methods]
    if not given:
        raise ConfigError("compare needs at least one method.")
    if references:
        given += [_reference(name, given[0]) for name in REFERENCES]
    chosen: dict[str, Named] = {}
    for method in given:
        find(method.name).recipe(**method.knobs)
        chosen.setdefault(label(method), method)
    return list(chosen.values())


def _reference(role: str, beside: Named) -> Named:
    """A reference that minimises what the method beside it does."""
    objective = find(beside.name).recipe(**beside.knobs).objective
    if isinstance(objective, DensityLoss):
        return Named(name="made", base=role)
    if not isinstance(objective, VaeLoss):
        return Named(name=role)
    changed = {k: v for k, v in asdict(objective).items() if v != getattr(VaeLoss, k)}
    return Named(name="vae", base=role, **changed)


def _role(method: Named) -> str | None:
    """Which reference a method is, if it is one."""
    name = method.knobs["base"] if method.name in ("vae", "made") else method.name
    return str(name) if name in REFERENCES else None


def _run_all(
    base: Config,
    methods: Sequence[Named],
    seeds: Sequence[int],
    out: Path,
    data_dir: str | Path | None,
    watch: Observer | None,
) -> dict[str, list[Run]]:
    runs: dict[str, list[Run]] = {label(method): [] for method in methods}
    total, position = len(methods) * len(seeds), 0
    directory = None if data_dir is None else Path(data_dir)
    configs = {
        seed: [resolve(base.model_copy(update={"method": m, "seed": seed})) for m in methods]
        for seed in seeds
    }
    for seed in seeds:
        federation: Federation | None = None
        for method, config in zip(methods, configs[seed], strict=True):
            position += 1
            finished = RunFolder.of(config, out / "runs").is_finished
            if not finished and federation is None:
                federation = make_federation(config, directory)
            if watch:
                watch.begin(config, position, total)
            done = run(
                config, out=out / "runs", data_dir=directory, watch=watch, federation=federation
            )
            if watch:
                watch.end(done, finished)
            runs[label(method)].append(done)
    return runs


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
    best = next((s for s in ordered if roles[s.method] != "central"), None)
    if best and roles[best.method] == "local" and any(not s.reference for s in ordered):
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


def _write(comparison: Comparison) -> None:
    folder = make_folder(comparison.path)
    write_atomically(folder / "leaderboard.csv", comparison.to_csv().encode())
    write_atomically(folder / "leaderboard.md", comparison.to_markdown().encode())
    runs = {standing.method: standing.runs for standing in comparison.leaderboard}
    draw_comparison(folder, runs, comparison.metric)
