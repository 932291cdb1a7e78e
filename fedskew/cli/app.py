"""The command line: its commands, and what becomes of errors.

Only typer and rich are imported at the top of this folder's modules, so that ``fedskew --help``
answers at once; what a command needs it imports itself.
"""

from __future__ import annotations

import os
import re
import sys
import traceback
from bdb import BdbQuit
from collections.abc import Sequence
from typing import Annotated

import click
import typer

import fedskew
from fedskew.cli import deploy
from fedskew.cli.compare import compare
from fedskew.cli.data import data
from fedskew.cli.diagnose import diagnose, summarise
from fedskew.cli.export import export
from fedskew.cli.keep import keep
from fedskew.cli.lists import list_
from fedskew.cli.many_values import ManyValues
from fedskew.cli.monitor import monitor
from fedskew.cli.recommend import recommend
from fedskew.cli.reproduce import reproduce
from fedskew.cli.run import run, show
from fedskew.cli.server import server
from fedskew.cli.signals import exit_code, listen
from fedskew.cli.site import site
from fedskew.cli.sites import sites
from fedskew.cli.watching import Stopped
from fedskew.errors import (
    SHOWN,
    FedskewError,
    RunStopped,
    StoppedAtOnce,
    TooFewSites,
    clients_may_fail,
    debugging,
    is_from_own_code,
    place_of,
)

app = typer.Typer(
    name="fedskew",
    epilog="Start with: fedskew compare fedavg fedprox ditto",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fedskew {fedskew.__version__}")
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


app.command()(run)
app.command(cls=ManyValues)(compare)
app.command()(diagnose)
app.command(cls=ManyValues)(recommend)
app.command()(summarise)
app.command(name="list")(list_)
app.command()(show)
app.command()(keep)
app.command()(reproduce)
for command in (deploy.adapt, deploy.predict, deploy.generate, export, deploy.drift):
    app.command()(command)
app.command()(monitor)
app.add_typer(data, name="data")
app.add_typer(server, name="server")
app.add_typer(site, name="site")
app.command()(sites)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    0 is done, 2 a user's mistake, 1 one of ours or a run that everybody failed in, 3 too few sites;
    monitor adds 4 (something changed) and 5 (too few rows to tell).
    """
    if arguments is None:
        listen()
    try:
        with clients_may_fail():
            code = app(args=arguments, standalone_mode=False)
        sys.stdout.flush()
    except FedskewError as error:
        if debugging():
            traceback.print_exc()
        on_its_way = isinstance(error, RunStopped) and not isinstance(error, StoppedAtOnce)
        code = 1 if on_its_way else 3 if isinstance(error, TooFewSites) else 2
        return _say(f"error: {error}", code)
    except click.ClickException as error:
        return _say(f"error: {_sentence(error.format_message())}", error.exit_code)
    except Stopped as stopped:
        return _say(str(stopped), stopped.code)
    except (KeyboardInterrupt, BdbQuit) as error:
        return _say("stopped", exit_code(error))
    except SystemExit as error:
        if not is_from_own_code(error):
            raise  # the parser's, when the reader of our output has gone
        return _say(f"error: code of your own ended Python (SystemExit: {error}).", 2)
    except MemoryError:
        return _say("error: not enough memory for this: ask for fewer samples or less width.", 2)
    except BrokenPipeError:
        # The reader of our output has gone; the interpreter must not complain when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        if debugging():
            traceback.print_exc()
        place = f"{str(error.filename)[:SHOWN]}: " if error.filename else ""
        return _say(f"error: {place}{error.strerror or error}.", 2)
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
    start = re.sub(r"( Did you mean [^?]*\?)\1+", r"\1", start)  # said by typer and by click
    return start if start.endswith("?") else f"{start}; see --help."


def _say(sentence: str, code: int) -> int:
    """One line on stderr, whatever line breaks a message carries."""
    print(" ".join(sentence.split()), file=sys.stderr)
    return code
