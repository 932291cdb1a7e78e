"""A site's process: answers its server, and connects again whenever a connection breaks."""

from __future__ import annotations

import fcntl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedskew.errors import RunError
from fedskew.sites.flower.node import serve
from fedskew.sites.keys import KeyPair
from fedskew.sites.site import Site
from fedskew.sites.worker import Worker
from fedskew.store import make_folder, write_atomically

SHORT, LONG = 1.0, 15.0
"""Seconds before a broken connection is tried again: more each time."""


def say(sentence: str) -> None:
    print(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {sentence}", flush=True)


def answer(site: Site, stop: threading.Event) -> None:
    """Serve until told to stop, whatever happens to the connection."""
    worker = Worker(site, say)
    invitation, keys = site.invitation, KeyPair.load(site.key_file)
    number = site.folder / "state" / "number"
    pause, last = SHORT, ""

    def connected(mine: int) -> None:
        nonlocal pause, last
        pause, last = SHORT, ""
        make_folder(number.parent)
        write_atomically(number, str(mine).encode())
        say(f"site {site.name!r} is connected to {invitation.address}")

    while not stop.is_set():
        try:
            serve(
                worker.handle, invitation.address, invitation.authority.encode(), keys, stop,
                connected, _number_in(number),
            )  # fmt: skip
        except RunError as error:
            if str(error) != last:
                say(f"{error} Trying again until it works.")
            last = str(error)
            stop.wait(pause)
            pause = min(1.5 * pause, LONG)


def _number_in(path: Path) -> int | None:
    """The number under which the SuperLink knew this site's last process."""
    with suppress(OSError, ValueError):
        return int(path.read_text())
    return None


@contextmanager
def alone(site: Site) -> Iterator[None]:
    """Refuse a second process for the same site: the two would push each other out."""
    make_folder(site.folder / "state")
    with open(site.folder / "state" / "lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise RunError(f"site {site.name!r} runs already, from {site.folder}.") from error
        yield
