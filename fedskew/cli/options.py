"""Options and arguments that several commands share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedskew.errors import DataError, unknown

if TYPE_CHECKING:
    from fedskew.config import Config

ConfigFile = Annotated[
    str,
    typer.Argument(
        help="A TOML file, the name of a shipped example (fedskew list examples), or data of your "
        "own: a folder with a file per client, or one file.",
        metavar="CONFIG",
    ),
]
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
Label = Annotated[
    list[str] | None,
    typer.Option(
        "--label",
        metavar="COLUMN",
        help="The column of labels in CSV and Parquet files of your own (else 'label'); several "
        "times for labels of which a sample may have many. The same as federation.label.",
        show_default=False,
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        metavar="DIR",
        help="Folder of datasets; FEDSKEW_DATA, ./data and the cache are searched too.",
        show_default=False,
    ),
]
Sites = Annotated[
    Path | None,
    typer.Option(
        help="Run it on the sites of this server: the folder that 'fedskew server init' made. "
        "Data stay there; CONFIG says everything else.",
        metavar="FOLDER",
        show_default=False,
    ),
]
Wait = Annotated[float, typer.Option(help="With --sites: seconds to wait for sites.", min=0)]
Deadline = Annotated[
    float, typer.Option(help="With --sites: seconds that a site may take to answer.", min=1)
]
MinSites = Annotated[
    int | None,
    typer.Option(
        help="With --sites: go on with so many sites after waiting, else stop with exit code "
        "3. By default all sites must be there at the start, and one later.",
        min=1,
        metavar="N",
        show_default=False,
    ),
]
ServerFolder = Annotated[
    Path | None,
    typer.Option(
        "--server",
        metavar="FOLDER",
        help="The server's folder; by default this one, or the only one in it.",
        show_default=False,
    ),
]
SiteFolder = Annotated[
    Path | None,
    typer.Option(
        "--site",
        metavar="FOLDER",
        help="The site's folder; by default this one, or the only one in it.",
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
Workers = Annotated[
    str | None,
    typer.Option(
        metavar="ray[:ADDRESS]",
        help="Deal clients to the cores of a Ray cluster: one started on this machine, or the one "
        "at an address. No number changes; docs/ray.md says when it pays.",
        show_default=False,
    ),
]
Presum = Annotated[
    bool,
    typer.Option(
        "--presum",
        help="With --workers: let them add up clients' models where the server only averages them. "
        "Less to move with thousands of clients; last digits change.",
    ),
]
Jobs = Annotated[
    int,
    typer.Option(
        metavar="N",
        help="Carry out so many runs at the same time, each in a process of its own; with "
        "--workers on the cores of a Ray cluster whose machines share the folder of runs.",
    ),
]


def with_label(overrides: list[str] | None, label: list[str] | None) -> list[str]:
    """The overrides, and what --label stands for."""
    if not label:
        return overrides or []
    named = json.dumps(label[0] if len(label) == 1 else label, ensure_ascii=False)
    return [*(overrides or ()), f"federation.label={named}"]


def given_config(
    given: str, overrides: list[str] | None, label: list[str] | None, allow_code: bool
) -> Config:
    """The settings of a config or example, or those for data of one's own: a folder whose files
    or folders are clients, or a file, whose rows are divided among clients.
    """
    from fedskew.config import apply_overrides, load_config, make_config
    from fedskew.data.own import CLIENT_FILES

    changes, path = with_label(overrides, label), Path(given)
    is_data = path.suffix.lower() in CLIENT_FILES if path.is_file() else path.is_dir()
    if not is_data or (path / "config.json").exists():
        return load_config(config_file(given), changes, allow_code=allow_code)
    section: dict[str, Any] = {"dataset": given}
    if path.is_dir():
        section |= {"partition": "owner", "clients": "all"}
    return make_config(apply_overrides({"federation": section}, changes))


def config_file(given: str) -> Path:
    """A config by its path, or by the name of an example in the package."""
    path = Path(given)
    if path.exists() or path.suffix == ".toml":
        return path
    from fedskew.cli.catalogue import shipped_examples
    from fedskew.data.own import CLIENT_FILES

    if path.suffix.lower() in CLIENT_FILES:
        raise DataError(f"{given} does not exist.")

    known = shipped_examples()
    if given not in known:
        raise unknown("config (neither a file nor an example)", given, known)
    return known[given]
