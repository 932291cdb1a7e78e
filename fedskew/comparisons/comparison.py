"""Several methods on the same federations, side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fedskew.comparisons.at_once import Wanted
from fedskew.comparisons.crossing import Given, Pair, label, pairs, parse_method
from fedskew.comparisons.runner import Runner, run_name
from fedskew.comparisons.selection import Count, folds, left_out_of
from fedskew.comparisons.trials import Setting, Tuning
from fedskew.comparisons.tuning import Tuned, tune
from fedskew.config import Config, Named
from fedskew.errors import ConfigError, RunStopped
from fedskew.methods import METHODS, find
from fedskew.runs.experiment import Run
from fedskew.runs.identity import resolve


@dataclass(frozen=True)
class Compared:
    """The finished runs of a comparison: those of each method, one per seed.

    ``roles`` says which methods are references. ``crossed`` are the pairs of an objective and an
    aggregator by the name of their method, ``without`` their runs that each leave one client out.
    ``stopped`` says by run why it stopped; a method with such a run is left out of all others.
    """

    seeds: tuple[int, ...]
    runs: Mapping[str, Sequence[Run]]
    roles: Mapping[str, str | None]
    crossed: Mapping[str, Pair]
    without: Mapping[tuple[str, int], Sequence[Run]]
    stopped: Mapping[str, str] = field(default_factory=dict)
    tuned: Mapping[str, Tuned] = field(default_factory=dict)
    """What each method tried and chose, if they were tuned."""


def run_comparison(
    runner: Runner,
    base: Config,
    methods: Iterable[Given] = (),
    *,
    objectives: Iterable[Given] | str = (),
    aggregators: Iterable[Given] | str = (),
    leave_out: Count = 0,
    seeds: int = 1,
    references: bool = True,
    tuning: Tuning | None = None,
) -> Compared:
    """Run all methods with all seeds; see :func:`fedskew.compare`."""
    if seeds < 1:
        raise ConfigError(f"seeds must be at least 1, not {seeds}.")
    crossed = {label(pair.method): pair for pair in pairs(objectives, aggregators)}
    if leave_out != 0 and not crossed:
        raise ConfigError("leave-out chooses rounds for objectives: name some objectives.")
    chosen = _chosen(methods, crossed.values(), references)
    plain = {name: base.model_copy(update={"method": method}) for name, method in chosen.items()}
    some = [resolve(plain[name]) for name in crossed][:1]
    each = sum(len(folds(config, runner.members(config), leave_out)) for config in some)
    runner.total = seeds * (len(chosen) + each * len(crossed))
    tuned = {} if tuning is None else tune(runner, plain, tuning)
    settings = {name: tuned[name].setting if tuned else Setting() for name in chosen}
    configs = {
        seed: {
            name: resolve(settings[name].applied(own).model_copy(update={"seed": seed}))
            for name, own in plain.items()
        }
        for seed in range(base.seed, base.seed + seeds)
    }
    runner.check(configs[base.seed].values())
    runs: dict[str, list[Run]] = {name: [] for name in chosen}
    wanted = [(name, Wanted(config)) for own in configs.values() for name, config in own.items()]
    found = runner.attempt_all([each for _, each in wanted])
    for (name, _), done in zip(wanted, found, strict=True):
        if done:
            runs[name].append(done)
    runs = {name: group for name, group in runs.items() if len(group) == seeds}
    if not runs:
        name, reason = next(iter(runner.stopped.items()))
        raise RunStopped(f"no method finished with every seed; {name}: {reason}")
    crossed = {name: pair for name, pair in crossed.items() if name in runs}
    without = _leave_out(runner, configs, list(crossed), leave_out) if crossed else {}
    roles = {name: role(chosen[name]) for name in runs}
    return Compared(tuple(configs), runs, roles, crossed, without, dict(runner.stopped), tuned)


def _chosen(
    methods: Iterable[Given], crossed: Iterable[Pair], references: bool
) -> dict[str, Named]:
    """Each method once, by its label; knobs are checked before anything runs."""
    if isinstance(methods, str):
        methods = [methods]
    given = [pair.method for pair in crossed]
    given += [parse_method(m) if isinstance(m, str) else Named(**m) for m in methods]
    if not given:
        raise ConfigError("compare needs at least one method, or objectives.")
    if references:
        given += references_of(given[0]).values()
    chosen: dict[str, Named] = {}
    for method in given:
        find(method.name).recipe(**method.knobs)
        chosen.setdefault(label(method), method)
    return chosen


def references_of(beside: Named) -> dict[str | None, Named]:
    """By role, the references with the same objective as ``beside``: alone, and on pooled data."""
    objective = find(beside.name).recipe(**beside.knobs).objective
    return {
        known.card.reference: Named(**objective.trained_by(name))
        for name, known in METHODS.items()
        if known.card.reference is not None
    }


def role(method: Named) -> str | None:
    """Which reference a method is, if it is one."""
    roles = {label(known): role for role, known in references_of(method).items()}
    return roles.get(label(method))


def _leave_out(
    runner: Runner, configs: Mapping[int, Mapping[str, Config]], names: Sequence[str], count: Count
) -> dict[tuple[str, int], list[Run]]:
    """Runs that each leave one client out, by pair and seed; the same clients for all pairs."""
    plans: dict[int, dict[str, list[Config]]] = {}
    for seed, own in configs.items():
        members = runner.members(own[names[0]])
        # In another split fewer clients may have validation data than in the first.
        most = count if count == "all" else min(count, len(members.validated))
        plans[seed] = {name: folds(own[name], members, most) for name in names}
    runner.total = runner.position + sum(len(p) for plan in plans.values() for p in plan.values())
    found: dict[tuple[str, int], list[Run]] = {(n, seed): [] for n in names for seed in configs}
    wanted = [
        (name, seed, Wanted(config, f"{run_name(config)}, without {left_out_of(config)}", False))
        for seed, plan in plans.items()
        for same_client in zip(*plan.values(), strict=True)
        for name, config in zip(plan, same_client, strict=True)
    ]
    done = runner.attempt_all([each for *_, each in wanted])
    for (name, seed, _), run in zip(wanted, done, strict=True):
        if run:
            found[name, seed].append(run)
    return found
