"""The functions that tie the layers together: run an experiment or a comparison, then draw it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedskew.comparisons.comparison import run_comparison
from fedskew.comparisons.crossing import Given
from fedskew.comparisons.runner import Observer, Runner
from fedskew.comparisons.selection import Count
from fedskew.config import Config, make_config
from fedskew.data.federation import Federation
from fedskew.runs.experiment import (
    MakeBackend,
    Run,
    Tell,
    Watch,
    carry_out,
    local_backend,
    make_federation,
)
from fedskew.runs.identity import identify, resolve
from fedskew.trust.consent import typed
from fedskew.views.comparison import Comparison, tabulate, write
from fedskew.views.figures import draw_run


def run(
    config: Config | Mapping[str, Any],
    *,
    out: str | Path = "runs",
    data_dir: str | Path | None = None,
    watch: Watch | None = None,
    federation: Federation | None = None,
    draw: bool = True,
    tell: Tell | None = None,
    backend: MakeBackend = local_backend,
) -> Run:
    """Run one experiment, or finish it, or return it if it is finished already.

    A run is known by what decided its numbers: settings, your own code, and data (see
    :mod:`fedskew.runs.identity`). ``tell`` is called with a sentence when a run starts again
    because code or data changed; without it that is a Python warning. ``draw=False`` leaves figures
    out, for programs that make hundreds of runs. ``backend`` makes the object that carries tasks
    to clients.

    >>> import tempfile
    >>> settings = {"train": {"rounds": 2}, "model": {"name": "logistic"}}
    >>> done = run(settings, out=tempfile.mkdtemp())
    >>> done.result["rounds"], sorted(done.result["bytes"])
    (2, ['down', 'up'])
    """
    config = resolve(config if isinstance(config, Config) else make_config(config))
    directory = None if data_dir is None else Path(data_dir)
    data = federation or make_federation(config, directory)
    identity = identify(config, data)
    done = carry_out(identity, lambda: data, Path(out), watch, tell=tell, backend=backend)
    if draw:
        draw_run(done, lambda: data)
    return done


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

    A method is a name, ``"fedprox:mu=0.1"``, or ``{"name": "fedprox", "mu": 0.1}``; it replaces
    the config's own. ``seeds`` is how many seeds each method runs with, counted up from the
    config's seed; the split follows the seed unless the config fixes it. ``local`` and ``central``
    are added unless ``references`` is false. Finished runs in ``out`` are not run again, unless
    your code or data changed; ``tell`` is then called (see :func:`fedskew.run`).

    Each of ``objectives`` is run with each of ``aggregators``, and the result has a matrix of
    scores out of domain: one table for each rule of model selection. One rule needs further runs
    that each leave one client out: ``leave_out`` of them for each pair and seed, or "all".

    >>> import tempfile
    >>> quick = {"model": "logistic", "train": {"rounds": 2}}
    >>> table = compare(["fedavg"], quick, out=tempfile.mkdtemp())
    >>> sorted(row.method for row in table.leaderboard)
    ['central', 'fedavg', 'local']
    """
    methods, objectives, aggregators = map(_kept, (methods, objectives, aggregators))
    typed(methods, objectives, aggregators)
    base = config if isinstance(config, Config) else make_config(config or {})
    directory = None if data_dir is None else Path(data_dir)
    runner = Runner(Path(out) / "runs", directory, watch, tell, draw_run)
    compared = run_comparison(
        runner,
        base,
        methods,
        objectives=objectives,
        aggregators=aggregators,
        leave_out=leave_out,
        seeds=seeds,
        references=references,
    )
    comparison = tabulate(Path(out), compared)
    write(comparison, compared.runs)
    return comparison


def _kept(given: Iterable[Given] | str) -> list[Given]:
    """What can be read only once, as a list; a text stays one."""
    return [given] if isinstance(given, str) else list(given)
