"""Options and arguments that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedskew.errors import unknown

Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change one setting, e.g. train.rounds=5 or federation.partition.alpha=0.1; may be "
        "given several times.",
        show_default=False,
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        metavar="DIR",
        help="Folder of datasets; FEDSKEW_DATA and ./data are searched too.",
        show_default=False,
    ),
]
AllowCode = Annotated[
    bool,
    typer.Option(
        "--allow-code",
        help="Let the file or folder name code of its own (module:function), which then runs; "
        "look at it first. FEDSKEW_TRUST lists folders that always may.",
    ),
]


def config_file(given: str) -> Path:
    """A config by its path, or by the name of an example in the package."""
    path = Path(given)
    if path.exists() or path.suffix == ".toml":
        return path
    from fedskew.cli.catalogue import shipped_examples

    known = shipped_examples()
    if given not in known:
        raise unknown("config (neither a file nor an example)", given, known)
    return known[given]
