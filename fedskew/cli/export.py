"""``fedskew export``: a run's model for use elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedskew.cli.deploy import DataDir, FinishedRun
from fedskew.cli.options import AllowCode


def export(
    run: FinishedRun,
    out: Annotated[Path, typer.Option(help="Folder for the files.", metavar="DIR")] = Path(
        "exported"
    ),
    form: Annotated[
        str,
        typer.Option(
            "--format",
            help="onnx or torch: one file that answers by itself, preparation inside; safetensors: "
            "the model's numbers, in every variant.",
            metavar="onnx|torch|safetensors",
        ),
    ] = "safetensors",
    client: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="This client's own model if the run has one, tested on its data alone.",
            show_default=False,
        ),
    ] = None,
    int8: Annotated[
        bool, typer.Option("--int8/--no-int8", help="Also write a file with 8-bit weights.")
    ] = True,
    prune: Annotated[
        float | None,
        typer.Option(
            help="Also write a file with this share of the weights, the smallest, set to zero.",
            metavar="SHARE",
        ),
    ] = None,
    data_dir: DataDir = None,
    allow_code: AllowCode = False,
) -> None:
    """Write a run's model for use elsewhere, and the three lines that load it there.

    With the run's data at hand it prints the accuracy of every variant; without them it works too.
    """
    from fedskew.deploy.export import export as export_model

    report = export_model(
        run,
        out,
        form=form,
        client=client,
        int8=int8,
        prune=prune,
        data_dir=data_dir,
        allow_code=allow_code,
    )
    typer.echo(str(report))
