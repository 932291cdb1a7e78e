"""``fedskew compare``: several methods on the same clients."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedskew.cli.many_values import count
from fedskew.cli.options import (
    AllowCode,
    DataDir,
    Jobs,
    Label,
    Overrides,
    Workers,
    given_config,
    with_label,
)
from fedskew.cli.watching import watching

Methods = Annotated[
    list[str] | None,
    typer.Argument(
        help="Methods, with knobs if wanted: fedprox:mu=0.1 (fedskew list methods).",
        metavar="METHOD...",
        show_default=False,
    ),
]
Objectives = Annotated[
    list[str] | None,
    typer.Option(
        help="What clients minimise, for scores out of domain: erm irm:lam=10 …, or all; each "
        "is run with every aggregator. Put METHODS before this option.",
        metavar="NAME...",
        show_default=False,
    ),
]
Aggregators = Annotated[
    list[str] | None,
    typer.Option(
        help="The methods that combine them: fedavg fedprox:mu=0.1 …, or all; fedavg by default.",
        metavar="NAME...",
        show_default=False,
    ),
]
LeaveOut = Annotated[
    str,
    typer.Option(
        help="For the rule left-out: number of extra runs for each pair and seed, each without "
        "one client; or all.",
        metavar="N|all",
    ),
]
Tune = Annotated[
    list[str] | None,
    typer.Option(
        help="Choose settings of each method on validation data first: lr=0.01,0.1 mu=0.1,1 tries "
        "all combinations a method has; without a name, learning rates and what knobs declare. "
        "Put METHODS before this option.",
        metavar="[NAME=VALUE,VALUE ...]",
        show_default=False,
    ),
]
Trials = Annotated[
    int | None,
    typer.Option(
        help="With --tune: the same number of settings for every method; by default all "
        "combinations, or 8 of those that are drawn.",
        metavar="N",
        show_default=False,
    ),
]
BaseConfig = Annotated[
    str | None,
    typer.Option(
        help="A TOML file or a shipped example with everything but the method; by default, the "
        "scikit-learn digits divided among ten clients with skewed labels.",
        metavar="CONFIG",
        show_default=False,
    ),
]


def compare(
    methods: Methods = None,
    objectives: Objectives = None,
    aggregators: Aggregators = None,
    leave_out: LeaveOut = "0",
    tune: Tune = None,
    trials: Trials = None,
    config: BaseConfig = None,
    overrides: Overrides = None,
    label: Label = None,
    seeds: Annotated[
        int, typer.Option(help="How many seeds; the split into clients follows the seed.")
    ] = 1,
    out: Annotated[
        Path, typer.Option(help="Folder for leaderboard, figures and runs.", metavar="DIR")
    ] = Path("results"),
    data_dir: DataDir = None,
    allow_code: AllowCode = False,
    no_references: Annotated[
        bool, typer.Option("--no-references", help="Leave out 'local' and 'central'.")
    ] = False,
    margin: Annotated[
        float,
        typer.Option(
            help="Gains over local of less are a tie: of a score from 0 to 1 so much of it, of "
            "other metrics this part of the score alone.",
        ),
    ] = 0.01,
    jobs: Jobs = 1,
    workers: Workers = None,
) -> None:
    """Run several methods on the same clients and print a leaderboard.

    'local' (no federation) and 'central' (all data pooled) are added as references. Repeat the
    command to resume after an interruption; finished runs are not run again.

    With --objectives a matrix of objectives by aggregators follows: scores on clients that took
    no part in training or, if there are none (federation.unseen), on the central test set; one
    table per rule for choosing the round (last, validation, environment, left-out,
    oracle).
    """
    from fedskew.api import compare as compare_methods
    from fedskew.config import apply_overrides, make_config

    if config is None:
        settings = make_config(apply_overrides({}, with_label(overrides, label)))
    else:
        settings = given_config(config, overrides, label, allow_code)
    with watching(settings) as watch:
        comparison = compare_methods(
            methods or (),
            settings,
            objectives=objectives or (),
            aggregators=aggregators or (),
            leave_out=count("--leave-out", leave_out),
            tune=tune or False,
            trials=trials,
            seeds=seeds,
            out=out,
            data_dir=data_dir,
            references=not no_references,
            margin=margin,
            watch=watch,
            tell=watch.tell,
            jobs=jobs,
            workers=workers,
        )
    typer.echo(f"\n{comparison}\n\nTables, figures and runs are in {out}.")
