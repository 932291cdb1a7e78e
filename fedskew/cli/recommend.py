"""``fedskew recommend``: a method for these clients, with evidence."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedskew.cli.options import AllowCode, ConfigFile, DataDir, Jobs, Label, Overrides, given_config
from fedskew.cli.watching import watching

Budget = Annotated[
    str | None,
    typer.Option(
        metavar="ROUNDS|MINUTES|MB",
        help="What all runs together may cost: 200 (rounds), 30m or 500MB. By default about half "
        "of what all methods to the end would.",
        show_default=False,
    ),
]
Methods = Annotated[
    list[str] | None,
    typer.Option(
        help="Only these, with knobs if wanted: fedavg fedprox:mu=0.1 (fedskew list methods). By "
        "default all that fit the task.",
        metavar="METHOD...",
        show_default=False,
    ),
]


def recommend(
    config: ConfigFile,
    budget: Budget = None,
    methods: Methods = None,
    overrides: Overrides = None,
    label: Label = None,
    seeds: Annotated[
        int,
        typer.Option(
            help="Train the finalists with so many seeds on the same split, on top of the budget.",
            min=1,
        ),
    ] = 1,
    out: Annotated[
        Path, typer.Option(help="Folder for the recommendation and its runs.", metavar="DIR")
    ] = Path("recommendation"),
    data_dir: DataDir = None,
    allow_code: AllowCode = False,
    jobs: Jobs = 1,
) -> None:
    """Find a method for these clients: which one, what it gains, who loses, and why.

    All methods start; on validation data the worse are stopped early, and the rest train on.
    Training alone stays in to the end. "Stay alone" and "cannot tell" are possible answers. Repeat
    the command to go on after an interruption.
    """
    from fedskew.api import recommend as find_method
    from fedskew.comparisons.crossing import split_names
    from fedskew.views.recommendation import written

    settings = given_config(config, overrides, label, allow_code)
    with watching(settings) as watch:
        watch.trials(under_way=True)
        found = find_method(
            settings,
            budget=budget,
            methods=[name for text in methods or () for name in split_names(text)],
            seeds=seeds,
            out=out,
            data_dir=data_dir,
            watch=watch,
            tell=watch.tell,
            jobs=jobs,
        )
    typer.echo(f"\n{written(found)}\n\nThe recommendation and its runs are in {out}.")
