"""The command line: run, compare, list, show, reproduce, and what deployed clients need.

Only typer and rich are imported at the top, so that ``fedskew --help`` answers at once; what a
command needs it imports itself.
"""

from __future__ import annotations

import os
import sys
import traceback
from bdb import BdbQuit
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click
import typer
from rich.console import Console

from fedskew.cli.listing import Listing, count
from fedskew.deploy import commands
from fedskew.errors import (
    FedskewError,
    clients_may_fail,
    debugging,
    is_from_own_code,
    place_of,
    unknown,
)

if TYPE_CHECKING:
    from fedskew.cli.progress import Observer
    from fedskew.config import Config

app = typer.Typer(
    name="fedskew",
    epilog="Start with: fedskew compare fedavg fedprox ditto",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

WIDE = 240
"""Columns of a table in a file or a pipe, where no window folds it."""

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


class Stopped(Exception):
    """The user pressed Ctrl-C; the message says how far the work was."""


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fedskew {version('fedskew')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and exit.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Federated learning for clients whose data differ."""


@app.command()
def run(
    config: Annotated[
        str,
        typer.Argument(
            help="A TOML file, or the name of a shipped example (fedskew list examples).",
            metavar="CONFIG",
        ),
    ],
    overrides: Overrides = None,
    out: Annotated[Path, typer.Option(help="Folder of run folders.", metavar="DIR")] = Path("runs"),
    data_dir: DataDir = None,
) -> None:
    """Run one experiment; repeat the command to go on after an interruption.

    The run's folder is named by its settings, data and code, so a finished run is not run again;
    asked for more rounds, it goes on from those it has.
    """
    from fedskew.comparisons.runner import Runner
    from fedskew.config import load_config
    from fedskew.runs.identity import resolve
    from fedskew.views.terminal import run_summary

    settings = resolve(load_config(config_file(config), overrides or ()))
    with _watching(settings) as watch:
        runner = Runner(out, data_dir, watch, watch.tell)
        runner.total = 1
        done = runner.run(settings)
    typer.echo(run_summary(done))


@app.command(cls=Listing)
def compare(
    methods: Annotated[
        list[str] | None,
        typer.Argument(
            help="Methods, with settings of their own where wanted: fedprox:mu=0.1 "
            "(fedskew list methods).",
            metavar="METHOD...",
            show_default=False,
        ),
    ] = None,
    objectives: Annotated[
        list[str] | None,
        typer.Option(
            help="What clients minimise, for scores out of domain: erm irm:lam=10 …, or all; each "
            "is run with every aggregator. Methods stand before it.",
            metavar="NAME...",
            show_default=False,
        ),
    ] = None,
    aggregators: Annotated[
        list[str] | None,
        typer.Option(
            help="Who combines them: fedavg fedprox:mu=0.1 …, or all; fedavg if there are none.",
            metavar="NAME...",
            show_default=False,
        ),
    ] = None,
    leave_out: Annotated[
        str,
        typer.Option(
            help="For rule left-out: so many more runs of each pair and seed, each without one "
            "client, or all.",
            metavar="N|all",
        ),
    ] = "0",
    config: Annotated[
        str | None,
        typer.Option(
            help="A TOML file or a shipped example with everything but the method; without it, "
            "the scikit-learn digits over ten clients with skewed labels.",
            metavar="CONFIG",
            show_default=False,
        ),
    ] = None,
    overrides: Overrides = None,
    seeds: Annotated[
        int, typer.Option(help="How many seeds; the split into clients follows the seed.")
    ] = 1,
    out: Annotated[
        Path, typer.Option(help="Folder for leaderboard, figures and runs.", metavar="DIR")
    ] = Path("results"),
    data_dir: DataDir = None,
    no_references: Annotated[
        bool, typer.Option("--no-references", help="Leave out 'local' and 'central'.")
    ] = False,
) -> None:
    """Run several methods on the same clients and print a leaderboard.

    'local' (no federation) and 'central' (all data pooled) come along as references. Repeat the
    command to go on after an interruption; finished runs are not run again.

    With --objectives a matrix of objectives by aggregators follows: scores on clients nobody
    trained with or, without any (federation.unseen), on the central test set; one table a rule of
    choosing the round (last, validation, left-out, oracle).
    """
    from fedskew.comparisons.comparison import compare as compare_methods
    from fedskew.config import apply_overrides, make_config, read_toml

    values = read_toml(config_file(config)) if config else {}
    settings = make_config(apply_overrides(values, overrides or ()))
    with _watching(settings) as watch:
        comparison = compare_methods(
            methods or (),
            settings,
            objectives=objectives or (),
            aggregators=aggregators or (),
            leave_out=count("--leave-out", leave_out),
            seeds=seeds,
            out=out,
            data_dir=data_dir,
            references=not no_references,
            watch=watch,
            tell=watch.tell,
        )
    typer.echo(f"\n{comparison}\n\nTables, figures and runs are in {out}.")


@app.command(name="list")
def list_(
    kind: Annotated[
        str,
        typer.Argument(
            help="datasets, partitions, skews, models, methods, examples or suites.",
            metavar="KIND",
        ),
    ],
    name: Annotated[
        str | None, typer.Argument(help="One of them, in full.", metavar="[NAME]")
    ] = None,
) -> None:
    """Say what there is to choose from, one line each, or all about one of them."""
    from fedskew.cli.catalogue import CATALOGUES
    from fedskew.views.terminal import table

    if kind not in CATALOGUES:
        raise unknown("kind of thing to list", kind, CATALOGUES)
    entries = CATALOGUES[kind]()
    if name is None:
        rows = [[entry.name, entry.summary, entry.settings] for entry in entries.values()]
        _console().print(table(["name", "what it is", "settings"], rows))
        return
    if name not in entries:
        raise unknown(kind.removesuffix("s"), name, entries)
    typer.echo(entries[name].full())


@app.command()
def show(
    run_folder: Annotated[Path, typer.Argument(help="The folder of a run.", metavar="RUN_FOLDER")],
) -> None:
    """Sum up a run: how far it is, its scores, what it sent, and what went wrong."""
    from fedskew.runs.experiment import load_run
    from fedskew.views.terminal import run_summary

    typer.echo(run_summary(load_run(run_folder)))


@app.command()
def reproduce(
    suite: Annotated[
        str, typer.Argument(help="The suite's name (fedskew list suites).", metavar="SUITE")
    ],
    scale: Annotated[
        str,
        typer.Option(help="smoke (a minute), desk (under an hour) or paper (the source's own)."),
    ] = "smoke",
    out: Annotated[
        Path, typer.Option(help="Folder for the runs and the page of results.", metavar="DIR")
    ] = Path("results"),
    data_dir: DataDir = None,
) -> None:
    """Run a source's experiments again and hold its claims against our numbers.

    Repeat the command to go on after an interruption.
    """
    from fedskew.cli.progress import SuiteObserver
    from fedskew.papers.suite import reproduce as reproduce_suite

    with SuiteObserver(_console()) as watch, _stoppable(watch.stopped):
        done = reproduce_suite(suite, scale=scale, out=out, data_dir=data_dir, report=watch)
    for verdict in done.verdicts:
        typer.echo(f"{verdict.claim.name}: {verdict.text}")
    typer.echo(f"The whole page is {done.page}.")


commands.register(app)


def config_file(given: str) -> Path:
    """A config by its path, or by the name of one that travels with the package."""
    path = Path(given)
    if path.exists() or path.suffix == ".toml":
        return path
    from fedskew.cli.catalogue import shipped_examples

    known = shipped_examples()
    if given not in known:
        raise unknown("config (neither a file nor an example)", given, known)
    return known[given]


@contextmanager
def _watching(config: Config) -> Iterator[Observer]:
    from fedskew.cli.progress import observer

    with observer(_console(), config) as watch, _stoppable(watch.stopped):
        yield watch


@contextmanager
def _stoppable(sentence: Callable[[], str]) -> Iterator[None]:
    try:
        yield
    except (KeyboardInterrupt, BdbQuit):
        raise Stopped(sentence()) from None


def _console() -> Console:
    return Console() if sys.stdout.isatty() else Console(width=WIDE)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0, 2 for a user's mistake, 1 for one of ours."""
    try:
        with clients_may_fail():
            code = app(args=arguments, standalone_mode=False)
        sys.stdout.flush()
    except FedskewError as error:
        if debugging():
            traceback.print_exc()
        return _say(f"error: {error}", 2)
    except click.ClickException as error:
        return _say(f"error: {_sentence(error.format_message())}", error.exit_code)
    except Stopped as stopped:
        return _say(str(stopped), 130)
    except (KeyboardInterrupt, BdbQuit):
        return _say("stopped", 130)
    except BrokenPipeError:
        # Whoever read our output has gone; the interpreter must not complain when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as error:
        if debugging():
            traceback.print_exc()
        place = f" ({place_of(error)})" if place_of(error) else ""
        hint = "" if debugging() else "; FEDSKEW_DEBUG=1 shows the traceback"
        sentence = f"error: {type(error).__name__}: {error}{place}{hint}."
        if place and is_from_own_code(error):
            return _say(sentence, 2)
        return _say(f"internal {sentence}", 1)
    return code if isinstance(code, int) else 0


def _sentence(message: str) -> str:
    """The parser's message in the form of our own."""
    start = message[:1].lower() + message[1:].rstrip(".")
    return start if start.endswith("?") else f"{start}; see --help."


def _say(sentence: str, code: int) -> int:
    """One line on stderr, whatever line breaks a message carries."""
    print(" ".join(sentence.split()), file=sys.stderr)
    return code
