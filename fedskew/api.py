"""The functions that tie the layers together: run an experiment or a comparison, then draw it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedskew.comparisons.bakeoff import bake_off
from fedskew.comparisons.budget import Budget
from fedskew.comparisons.candidates import field_of
from fedskew.comparisons.comparison import run_comparison
from fedskew.comparisons.crossing import Given
from fedskew.comparisons.hands import hands
from fedskew.comparisons.paired import MARGIN
from fedskew.comparisons.runner import Observer, Runner
from fedskew.comparisons.selection import Count
from fedskew.comparisons.trials import Given as ToTune
from fedskew.comparisons.trials import tuning_of
from fedskew.config import Config, make_config
from fedskew.data.federation import Federation
from fedskew.data.fingerprint import fingerprint
from fedskew.data.scaling import scaled_targets
from fedskew.data.telling import told_of
from fedskew.diagnosis.keep import keep_after, keep_compared
from fedskew.diagnosis.recommendation import Recommendation, recommended
from fedskew.errors import ConfigError, at_least
from fedskew.federate.holdings import roster_of
from fedskew.models.given import chosen
from fedskew.models.registry import MODELS
from fedskew.runs.experiment import (
    MakeBackend,
    Run,
    Tell,
    Watch,
    carry_out,
    local_backend,
    make_federation,
    on_data,
)
from fedskew.runs.given import on_given
from fedskew.runs.identity import identify, resolve
from fedskew.trust.consent import typed
from fedskew.views.comparison import Comparison, tabulate, write
from fedskew.views.figures import draw_run
from fedskew.views.recommendation import write as write_recommendation


def run(
    config: Config | Mapping[str, Any],
    *,
    out: str | Path = "runs",
    data_dir: str | Path | None = None,
    watch: Watch | None = None,
    federation: Federation | None = None,
    model: Any = None,
    draw: bool = True,
    tell: Tell | None = None,
    backend: MakeBackend = local_backend,
) -> Run:
    """Run one experiment, or finish it, or return it if it is finished already.

    A run is known by what decided its numbers: settings, your own code, and data (see
    :mod:`fedskew.runs.identity`). ``federation`` is one of :func:`fedskew.federation_from`, or any
    other, in place of the one the config describes; targets that are numbers are scaled, unless its
    problem has units: then they are already. ``model`` replaces the config's: a name, a factory, or
    a ``torch.nn.Module``, whose weights are where training starts. ``tell`` is called with a
    sentence when a run starts again because code or data changed; without it that is a Python
    warning. ``draw=False`` leaves figures out, for programs that make hundreds of runs. ``backend``
    makes the object that carries tasks to clients.

    >>> import tempfile
    >>> settings = {"train": {"rounds": 2}, "model": {"name": "logistic"}}
    >>> done = run(settings, out=tempfile.mkdtemp())
    >>> done.result["rounds"], sorted(done.result["bytes"])
    (2, ['down', 'up'])
    """
    config = _on(config, federation, model)
    config = resolve(config)
    directory = None if data_dir is None else Path(data_dir)
    data = make_federation(config, directory) if federation is None else scaled_targets(federation)
    if tell is not None:
        for sentence in told_of(data, config.federation):
            tell(sentence)
    hashed = fingerprint(data)

    def carried_out(config: Config) -> Run:
        identity = identify(config, lambda: roster_of(data), hashed)
        made = on_data(config, lambda: data, backend)
        done = carry_out(identity, made, Path(out), watch, tell=tell)
        if draw:
            draw_run(done, lambda: data)
        return done

    done = carried_out(config)
    keep_after(done, config, carried_out, tell)
    return done


def compare(
    methods: Iterable[Given] = (),
    config: Config | Mapping[str, Any] | None = None,
    *,
    objectives: Iterable[Given] | str = (),
    aggregators: Iterable[Given] | str = (),
    leave_out: Count = 0,
    tune: ToTune = False,
    trials: int | None = None,
    seeds: int = 1,
    out: str | Path = "results",
    data_dir: str | Path | None = None,
    references: bool = True,
    margin: float = MARGIN,
    federation: Federation | None = None,
    model: Any = None,
    watch: Observer | None = None,
    tell: Tell | None = None,
    jobs: int = 1,
    workers: str | None = None,
) -> Comparison:
    """Run methods on the same federations and rank them.

    A method is a name, ``"fedprox:mu=0.1"``, or ``{"name": "fedprox", "mu": 0.1}``; it replaces
    the config's own. ``seeds`` is how many seeds each method runs with, counted up from the
    config's seed; the split follows the seed unless the config fixes it. ``local`` and ``central``
    are added unless ``references`` is false. Finished runs in ``out`` are not run again, unless
    your code or data changed; ``tell`` is then called (see :func:`fedskew.run`).

    Each of ``objectives`` is run with each of ``aggregators``, and the result has a matrix of
    scores out of domain: one table for each rule of model selection. One rule needs further runs
    that each leave one client out: ``leave_out`` of them for each pair and seed, or "all".

    With ``tune`` every method first chooses settings on the validation data of the first seed:
    ``{"lr": [0.01, 0.1], "mu": [0.1, 1]}`` (or ``"lr=0.01,0.1 mu=0.1,1"``) tries all combinations
    of what a method has; True draws learning rates, and knobs from the range they declare.
    ``trials`` is how many settings each method tries, by default all combinations, or eight draws.

    ``jobs`` runs are carried out at the same time, each by a process of its own. With ``workers``
    clients or, if there are several jobs, whole runs are dealt to the cores of a Ray cluster:
    "ray", or "ray:" and its address. No number changes.

    Every client is held against itself trained alone: gains of less than the ``margin`` are ties
    (of a metric from 0 to 1 the margin itself, of others that part of the score alone).

    With ``federation`` and ``model`` (see :func:`fedskew.run`) all runs are on that federation,
    whose split no seed changes, and train that model.

    >>> import tempfile
    >>> quick = {"model": "logistic", "train": {"rounds": 2}}
    >>> table = compare(["fedavg"], quick, out=tempfile.mkdtemp())
    >>> sorted(row.method for row in table.leaderboard)
    ['central', 'fedavg', 'local']
    """
    if not 0 <= margin < math.inf:
        raise ConfigError(f"margin must be a number of at least 0, not {margin}.")
    methods, objectives, aggregators = map(_kept, (methods, objectives, aggregators))
    typed(methods, objectives, aggregators)
    tuning = tuning_of(tune, trials)
    base = _on(config or {}, federation, model)
    _check_crew(base, jobs > 1 or bool(workers))
    directory = None if data_dir is None else Path(data_dir)
    with hands(workers, jobs, tell) as (backend, crew):
        given = None if federation is None else scaled_targets(federation)
        runner = Runner(Path(out) / "runs", directory, watch, tell, draw_run, backend, crew, given)
        compared = run_comparison(
            runner,
            base,
            methods,
            objectives=objectives,
            aggregators=aggregators,
            leave_out=leave_out,
            seeds=seeds,
            tuning=tuning,
            references=references,
        )
    keep_compared(compared, tell)
    comparison = tabulate(Path(out), compared, margin)
    write(comparison, compared.runs)
    return comparison


def recommend(
    config: Config | Mapping[str, Any] | None = None,
    *,
    budget: str | float | None = None,
    methods: Iterable[Given] = (),
    seeds: int = 1,
    out: str | Path = "recommendation",
    data_dir: str | Path | None = None,
    federation: Federation | None = None,
    model: Any = None,
    watch: Observer | None = None,
    tell: Tell | None = None,
    jobs: int = 1,
) -> Recommendation:
    """Find a method for these clients: a bake-off that stops the worse early, then the evidence.

    All methods that fit the task take part, or those named; each with its own defaults, the
    config's own method as the config has it. Training alone is the yardstick and stays in to the
    end. Methods are judged by validation data; test data are looked at once, at the end.

    ``budget`` is in rounds of all runs together (200), minutes ("30m") or megabytes ("500MB");
    without one it takes about half of what all methods to the end would. The finalists are trained
    with so many ``seeds``, on the same split, on top of the budget. Repeated, it goes on where it
    stopped. The other arguments are those of :func:`fedskew.compare`.

    >>> import tempfile
    >>> quick = {"model": "logistic", "train": {"rounds": 2}, "federation": {"samples": 300}}
    >>> found = recommend(quick, methods=["fedavg", "ditto"], out=tempfile.mkdtemp())
    >>> found.answer in ("federate", "stay alone", "cannot tell"), found.alone
    (True, 'local')
    """
    methods = _kept(methods)
    typed(methods)
    at_least("seeds", seeds, 1)
    limit = None if budget is None else Budget.of(budget)
    base = _on(config or {}, federation, model)
    _check_crew(base, jobs > 1)
    directory = None if data_dir is None else Path(data_dir)
    with hands(None, jobs, tell) as (backend, crew):
        given = None if federation is None else scaled_targets(federation)
        runner = Runner(
            Path(out) / "runs", directory, watch, tell, None, backend, crew, given, grows=True
        )
        entered = field_of(runner, base, methods)
        found = bake_off(runner, entered, limit, Path(out), tell or (lambda _: None))
        result = recommended(runner, entered, found, seeds)
    write_recommendation(Path(out), result)
    return result


def _check_crew(base: Config, others: bool) -> None:
    """Refuse to send an object of this process to others."""
    if others and MODELS.find(base.model.name).handed_over:
        raise ConfigError(
            f"model {base.model.name!r} is an object of this process, but jobs and workers are "
            "others: write a factory into a file and name it 'module:factory'."
        )


def _on(config: Config | Mapping[str, Any], federation: Federation | None, model: Any) -> Config:
    """The config with what was handed over beside it in place of its own."""
    made = config if isinstance(config, Config) else make_config(config)
    if federation is not None:
        if not isinstance(federation, Federation):
            raise ConfigError(
                f"federation must be a fedskew Federation, not {type(federation).__name__}: make "
                "one of your data with fedskew.federation_from."
            )
        made = on_given(made, federation)
    if model is not None:
        named = make_config({"model": chosen(model)}).model
        made = made.model_copy(update={"model": named})
    return made


def _kept(given: Iterable[Given] | str) -> list[Given]:
    """What can be read only once, as a list; a text stays one."""
    return [given] if isinstance(given, str) else list(given)
