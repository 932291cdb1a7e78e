"""``fedskew keep``: each client keeps what serves it best."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedskew.cli.options import AllowCode


def keep(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run.", metavar="RUN")],
    beside: Annotated[
        Path | None,
        typer.Option(
            help="The finished run in which the same clients trained alone; by default it is "
            "searched for among the folders beside RUN.",
            metavar="LOCAL_RUN",
            show_default=False,
        ),
    ] = None,
    allow_code: AllowCode = False,
) -> None:
    """Let each client keep what serves it best: its model alone, the run's, or a mean of both.

    Nothing is trained: the answers that both runs left for validation samples decide.

    What is kept stands in RUN; 'fedskew show' tells it, 'fedskew predict --client' uses it.

    With evaluate.keep = 'best' in the config, 'fedskew run' makes both runs and does this.
    """
    from fedskew.diagnosis.keep import keep as keep_best
    from fedskew.views.kept import kept_lines

    found = keep_best(run, beside=beside, allow_code=allow_code)
    typer.echo("\n".join(kept_lines(found, every_client=True)))
