"""``fedskew monitor``: are new samples like those a model was trained on?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fedskew.cli.deploy import ClientName, DataDir, LabelColumn
from fedskew.cli.options import AllowCode


def monitor(
    model: Annotated[
        Path,
        typer.Argument(
            help="The folder of a finished run, or of an adapted or exported model.",
            metavar="MODEL",
        ),
    ],
    new: Annotated[
        list[Path],
        typer.Argument(
            help="New samples: CSV or Parquet files, npz files or folders of images; several are "
            "taken together.",
            metavar="NEW...",
        ),
    ],
    client: ClientName = None,
    label: LabelColumn = None,
    alpha: Annotated[
        float, typer.Option(help="How probable an alarm may be where nothing changed.")
    ] = 0.01,
    out: Annotated[
        Path | None,
        typer.Option(help="A JSON file for all that was compared.", metavar="FILE"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of words.")] = False,
    data_dir: DataDir = None,
    allow_code: AllowCode = False,
) -> None:
    """Say whether new samples, and a model's answers for them, are as they were in training.

    Exit code 0: nothing found; 4: something changed; 5: too few rows to tell; 2: bad input.
    """
    from fedskew.deploy.monitor import monitor as compare_samples

    found = compare_samples(
        model,
        new,
        client=client,
        label=label,
        alpha=alpha,
        data_dir=data_dir,
        allow_code=allow_code,
    )
    if out is not None:
        found.save(out)
    typer.echo(json.dumps(found.as_dict(), indent=2) if as_json else str(found))
    if found.code:
        raise typer.Exit(found.code)
