"""A server's folder: who it is, its keys, the sites it lets in, and the programs it runs."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from fedskew.config import Section, checked_section
from fedskew.errors import ConfigError, RunError, unknown
from fedskew.sites.flower import need_flower
from fedskew.sites.keys import (
    RENEW,
    authority_fingerprint,
    certificate_left,
    make_authority,
    make_certificate,
)
from fedskew.sites.lines import Application, Invitation
from fedskew.sites.programs import Program
from fedskew.sites.proxy import find_nginx, nginx_command, write_config
from fedskew.sites.site import settings_in
from fedskew.sites.versions import versions
from fedskew.store import make_folder, write_atomically

SERVER = "server.toml"
STUDY = """# A study on the sites of this server: fedskew run study.toml --sites .
# Data are at the sites; everything else is as in any other config (fedskew list examples).

seed = 0
model = "mlp"                  # fedskew list models
method = "fedavg"              # fedskew list methods

[federation]
validation = 0.1               # set aside at every client, to choose the round
test = 0.2                     # set aside at every client, to score models

[train]
rounds = 20
batch_size = 32
lr = 0.1
"""


class ServerFile(Section):
    """All that ``server.toml`` says."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
    address: str
    """Where sites reach this machine: a name, or an IP address, and a port."""
    port: Annotated[int, Field(ge=1, le=65535)] = 9092
    """The SuperLink's port, which only this machine can reach."""
    proxy: Literal["nginx", "none"] = "nginx"
    """Who stands between the sites and the SuperLink: nginx, or a program of your own."""


def host_and_port(address: str) -> tuple[str, int]:
    """The two parts of an address.

    >>> host_and_port("fl.example.org:443"), host_and_port("[::1]:8443")
    (('fl.example.org', 443), ('::1', 8443))
    """
    host, colon, port = address.rpartition(":")
    host = host.strip("[]")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ConfigError(
            f"an address is a name and a port, like fl.example.org:443, not {address!r}."
        )
    return host, int(port)


@dataclass(frozen=True)
class Lab:
    """A server's folder and settings.

    ``server.toml``  name, address, ports
    ``keys/``        the authority that sites trust, and the server's certificate
    ``sites/``       a file for each site that is let in: the line it sent
    ``link/``        the SuperLink's database, nginx' configuration, logs
    """

    folder: Path
    settings: ServerFile

    @classmethod
    def open(cls, folder: Path) -> Lab:
        return cls(folder, settings_in(folder, SERVER, "server", ServerFile))

    @classmethod
    def create(cls, folder: Path, name: str, address: str, **settings: Any) -> Lab:
        """A new folder with new keys."""
        if (folder / SERVER).exists():
            raise ConfigError(f"{folder} is a server's folder already: choose another name.")
        host, _ = host_and_port(address)
        lab = cls(
            folder,
            checked_section(ServerFile, {"name": name, "address": address, **settings}, SERVER),
        )
        make_folder(lab.keys)
        make_authority(lab.keys, name)
        make_certificate(lab.keys, host)
        make_folder(lab.folder / "sites")
        given = lab.settings
        lines = [
            f'name = "{given.name}"',
            f'address = "{given.address}"    # where sites reach this machine',
            f"port = {given.port}    # of the SuperLink, on this machine only",
            f'proxy = "{given.proxy}"    # nginx, or none if a program of yours does its work',
        ]
        (folder / "study.toml").write_text(STUDY)
        write_atomically(folder / SERVER, ("\n".join(lines) + "\n").encode())
        return lab

    @property
    def keys(self) -> Path:
        return self.folder / "keys"

    @property
    def authority(self) -> bytes:
        return (self.keys / "ca.crt").read_bytes()

    @property
    def link_address(self) -> str:
        return f"127.0.0.1:{self.settings.port}"

    @property
    def fingerprint(self) -> str:
        return authority_fingerprint(self.authority)

    def sites(self) -> dict[str, bytes]:
        """The public keys of the sites that are let in, by name."""
        found = [
            Application.read(path.read_text())
            for path in sorted((self.folder / "sites").glob("*.line"))
        ]
        return {each.name: each.key for each in found}

    def add(self, application: Application) -> Invitation:
        """Let a site in from the next start, or at once where the SuperLink runs."""
        known = self.sites()
        if known.get(application.name, application.key) != application.key:
            raise ConfigError(
                f"site {application.name!r} is let in with another key: remove it first "
                f"('fedskew server remove {application.name}')."
            )
        taken = [name for name, key in known.items() if key == application.key]
        if taken and taken != [application.name]:
            raise ConfigError(f"this key is that of site {taken[0]!r} already.")
        path = self._line_of(application.name)
        make_folder(path.parent)
        write_atomically(path, f"{application}\n".encode())
        return Invitation(
            application.name, self.settings.name, self.settings.address,
            self.authority.decode(), versions(),
        )  # fmt: skip

    def remove(self, name: str) -> None:
        """Let a site in no longer."""
        if name not in (known := self.sites()):
            raise unknown("site", name, known)
        self._line_of(name).unlink()

    def _line_of(self, name: str) -> Path:
        return self.folder / "sites" / f"{name}.line"

    def programs(self) -> list[Program]:
        """The SuperLink and, unless somebody else does its work, nginx."""
        need_flower()
        link = make_folder(self.folder / "link")
        host, listen = host_and_port(self.settings.address)
        if certificate_left(self.keys / "server.crt") < RENEW:
            make_certificate(self.keys, host)
        superlink = Program(
            "SuperLink",
            [
                str(Path(sys.executable).parent / "flower-superlink"),
                "--host", "127.0.0.1", "--port", str(self.settings.port),
                "--ssl-ca-certfile", str(self.keys / "ca.crt"),
                "--ssl-certfile", str(self.keys / "server.crt"),
                "--ssl-keyfile", str(self.keys / "server.key"),
                "--enable-supernode-auth", "--isolation", "process",
                "--disable-runtime-dependency-installation",
                "--database", str(link / "state.db"),
            ],
            link / "superlink.log",
            {"FLWR_HOME": str(link.resolve() / "flwr")},
        )  # fmt: skip
        if self.settings.proxy == "none":
            return [superlink]
        nginx = find_nginx()
        if nginx is None:
            raise ConfigError(
                "nginx is not installed (apt-get install nginx-light): install it, or set "
                f'proxy = "none" in {self.folder / SERVER} if a program of yours does its work.'
            )
        config = write_config(link, self.keys, listen, self.settings.port, versions())
        return [superlink, Program("nginx", nginx_command(nginx, config), link / "nginx.out")]

    def wait_until_up(self, programs: list[Program], patience: float = 120.0) -> None:
        """Return when everything accepts connections, or say what a program died of."""
        ports = [self.settings.port]
        if len(programs) > 1:
            ports.append(host_and_port(self.settings.address)[1])
        until = time.monotonic() + patience
        for program, port in zip(programs, ports, strict=True):
            while not _answers(port):
                if not program.runs:
                    words = program.last_words() or "it printed nothing"
                    raise RunError(f"{program.name} did not start: {words}")
                if time.monotonic() > until:
                    raise RunError(f"{program.name} does not accept connections at port {port}.")
                time.sleep(0.1)


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 1):
            return True
    except OSError:
        return False


def find_folder(given: Path | None, file: str, what: str) -> Path:
    """The folder that holds a file: the one given, this one, or the only one in it that does."""
    if given is not None:
        return given
    here = Path()
    if (here / file).is_file():
        return here
    found = sorted(path.parent for path in here.glob(f"*/{file}"))
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(map(str, found))
        raise ConfigError(f"there are several folders of {what}s here ({names}): name one.")
    raise ConfigError(f"there is no folder of a {what} here: name one, or make it with 'init'.")


def known_to(lab: Lab) -> Mapping[str, Any]:
    """What the SuperLink knows of the sites that are let in, by name."""
    from fedskew.sites.flower.link import registered

    return registered(lab.link_address, lab.authority, lab.sites())
