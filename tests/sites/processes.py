"""A server and sites as real processes on loopback, ended with whatever they started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from here import write_clients

from fedskew.sites.flower.link import FlowerLink
from fedskew.sites.lab import Lab, known_to
from fedskew.sites.programs import Program, site_program
from fedskew.sites.proxy import find_nginx
from fedskew.sites.site import Site
from fedskew.sites.trial import free_ports

NAMES = ("ann", "bob", "north")
SILENT = (
    "site ann: it did not answer in time",
    "site ann: Flower says: Error: Node Unavailable",  # where rounds take longer than a minute
)
LIAR = str(Path(__file__).with_name("liar.py"))


class Lot:
    """A SuperLink, nginx where it is installed, and three sites, each killed and started alone."""

    def __init__(self, folder: Path, host: str = "127.0.0.1") -> None:
        self.folder = folder
        files = write_clients(folder / "all")
        self.held = {
            "ann": files["ann"], "bob": files["bob"],
            "north": _together(folder / "north-data", [files["cleo"], files["dan"]]),
        }  # fmt: skip
        port, door = free_ports(2)
        proxy = "nginx" if find_nginx() else "none"
        address = f"{host}:{door if proxy == 'nginx' else port}"
        self.lab = Lab.create(folder / "server", "lot", address, port=port, proxy=proxy)
        self.programs: dict[str, Program] = {}
        self.gone: dict[str, str] = {}
        self.sites = {name: self.make_site(name, self.held[name]) for name in NAMES}

    def make_site(self, name: str, data: Path) -> Site:
        site = Site.create(self.folder / name, name, data)
        site.join(self.lab.add(site.application))
        return site

    def start_server(self) -> None:
        programs = self.lab.programs()
        for program in programs:
            self.start(program.name, program)
        self.lab.wait_until_up(programs, 180)
        known_to(self.lab)

    def start_server_again(self) -> None:
        """The SuperLink with its database, after it was killed."""
        programs = self.lab.programs()
        self.start("SuperLink", programs[0])

    def start(self, name: str, program: Program) -> None:
        self.programs[name] = program
        program.environment = {**program.environment, "OMP_NUM_THREADS": "1"}
        program.start()

    def start_site(self, name: str, before: Sequence[str] = ()) -> None:
        program = site_program(self.folder / name, self.folder / f"{name}.log")
        program.command = [*before, *program.command]
        self.start(name, program)

    def start_sites(self, before: Callable[[str], Sequence[str]] = lambda name: ()) -> None:
        """All sites, and wait until they are connected; ``before`` are words before a command."""
        for name in self.sites:
            self.start_site(name, before(name))
        for name in self.sites:
            self.wait_for(name)

    def start_liar(self, name: str) -> None:
        """A site that answers as the file ``lie`` in its folder says."""
        command = [sys.executable, LIAR, str(self.folder / name)]
        self.start(name, Program(name, command, self.folder / f"{name}.log"))

    def kill(self, name: str) -> None:
        if name in self.sites:
            self.gone[name] = known_to(self.lab)[name].seen
        self.programs.pop(name).end(signal.SIGKILL)

    def signal(self, name: str, number: int) -> None:
        process = self.programs[name].process
        assert process is not None
        os.kill(process.pid, number)

    def link(
        self, wait: float = 180, deadline: float = 180, least: int | None = None
    ) -> FlowerLink:
        return FlowerLink(
            self.lab.link_address, self.lab.authority, self.lab.sites(), wait, deadline, least
        )

    def signs(self, name: str) -> tuple[int, str]:
        """How often a site answered, and when it last came or went."""
        audit = self.folder / name / "audit.jsonl"
        lines = audit.read_text().splitlines() if audit.is_file() else []
        return len(lines), known_to(self.lab)[name].seen

    def wait_for_sign(self, name: str, before: tuple[int, str], seconds: float = 180) -> None:
        """Until a site has answered once more, or connected once more."""
        until = time.monotonic() + seconds
        answers, seen = before
        while self.signs(name)[0] == answers and (
            (node := known_to(self.lab)[name]).status != "online" or node.seen == seen
        ):
            if time.monotonic() > until:
                raise TimeoutError((self.folder / f"{name}.log").read_text()[-2000:])
            time.sleep(0.1)

    def wait_for(self, name: str, seconds: float = 180) -> None:
        """Until a site is connected: one that was killed counts as such for a while."""
        until = time.monotonic() + seconds
        while (node := known_to(self.lab)[name]).status != "online" or (
            node.seen == self.gone.get(name)
        ):
            if time.monotonic() > until:
                raise TimeoutError((self.folder / f"{name}.log").read_text()[-2000:])
            time.sleep(0.2)

    def end(self) -> None:
        for program in reversed(self.programs.values()):
            program.end()


class Haste:
    """Lets sites answer as long as they need until one of them is going to be silent.

    From then on they have the time of ten rounds of this machine, as busy as it is: enough for all
    that answer, and no longer than that for the one that does not.
    """

    def __init__(self, link: FlowerLink) -> None:
        self._link, self._ended, self._seconds = link, time.monotonic(), 0.0

    def round_ended(self) -> None:
        now = time.monotonic()
        self._ended, self._seconds = now, now - self._ended

    def begin(self) -> None:
        self._link._deadline = 5 + 10 * self._seconds


def _together(folder: Path, files: Sequence[Path]) -> Path:
    folder.mkdir()
    for file in files:
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


@contextmanager
def running(folder: Path) -> Iterator[Lot]:
    """Everything up and connected; everything ended, whatever happens."""
    folder.mkdir(parents=True, exist_ok=True)
    lot = Lot(folder)
    try:
        lot.start_server()
        lot.start_sites()
        yield lot
    finally:
        lot.end()


def fedskew(*arguments: str | Path, **environment: str) -> subprocess.Popen[str]:
    """The command line as a process of its own."""
    command = [sys.executable, "-m", "fedskew", *map(str, arguments)]
    made: Mapping[str, str] = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=made,
        start_new_session=True,
    )  # fmt: skip


def ended(process: subprocess.Popen[str]) -> int:
    """The exit code of a process that is asked to end; killed if it does not."""
    os.kill(process.pid, signal.SIGTERM)
    try:
        process.communicate(timeout=120)
    finally:
        killed(process)
    return process.returncode


def killed(process: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
