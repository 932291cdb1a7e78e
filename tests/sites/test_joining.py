"""What stands between a site and its server is said in a sentence."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from fedskew.errors import ConfigError, RunError
from fedskew.sites.joining import check_connection
from fedskew.sites.keys import (
    KeyPair,
    authority_fingerprint,
    certificate_left,
    fingerprint,
    make_authority,
    make_certificate,
)
from fedskew.sites.lab import Lab, host_and_port
from fedskew.sites.lines import Application, Invitation
from fedskew.sites.site import Site
from fedskew.sites.versions import versions


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    make_authority(folder, "lab")
    make_certificate(folder, "fl.example.org")
    return folder


@contextmanager
def server(keys: Path, told: dict[str, Any], ahead: timedelta = timedelta()) -> Iterator[int]:
    """A server that tells versions, and whose clock is ahead of ours."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(told).encode()
            self.send_response_only(200)
            self.send_header("Date", format_datetime(datetime.now(UTC) + ahead, usegmt=True))
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    made = HTTPServer(("127.0.0.1", 0), Answers)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keys / "server.crt", keys / "server.key")
    made.socket = context.wrap_socket(made.socket, server_side=True)
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    try:
        yield made.server_port
    finally:
        made.shutdown()
        made.server_close()


def invitation(keys: Path, address: str) -> Invitation:
    return Invitation("ann", "lab", address, (keys / "ca.crt").read_text(), versions())


def why_not(invited: Invitation) -> str:
    with pytest.raises(RunError) as caught:
        check_connection(invited, KeyPair.new(), lambda sentence: None)
    return str(caught.value)


def test_a_name_that_nobody_has(keys: Path) -> None:
    invited = invitation(keys, "no-such-machine.invalid:443")
    assert why_not(invited).startswith("no machine is called 'no-such-machine.invalid'")


def test_a_port_where_nobody_listens(keys: Path) -> None:
    assert why_not(invitation(keys, "127.0.0.1:9")).startswith("nothing answers at 127.0.0.1:9")


def test_a_certificate_of_somebody_else(keys: Path, tmp_path: Path) -> None:
    make_authority(tmp_path, "other")
    with server(keys, versions()) as port:
        invited = invitation(tmp_path, f"127.0.0.1:{port}")
        assert "shows a certificate that is not the invited server's" in why_not(invited)


def test_a_clock_that_is_off_by_an_hour(keys: Path) -> None:
    with server(keys, versions(), timedelta(hours=-1)) as port:
        told = why_not(invitation(keys, f"127.0.0.1:{port}"))
    assert told.startswith("this machine's clock is 60 minutes ahead of the server's")
    with server(keys, versions(), timedelta(hours=1)) as port:
        assert "60 minutes behind" in why_not(invitation(keys, f"127.0.0.1:{port}"))


def test_another_version(keys: Path) -> None:
    with server(keys, {**versions(), "fedskew": "9.9"}) as port:
        told = why_not(invitation(keys, f"127.0.0.1:{port}"))
    assert told.startswith("the server has fedskew 9.9, this site ")


def test_another_torch_is_mentioned(keys: Path) -> None:
    said: list[str] = []
    with server(keys, {**versions(), "torch": "2.6.0"}) as port, pytest.raises(RunError):
        check_connection(invitation(keys, f"127.0.0.1:{port}"), KeyPair.new(), said.append)
    assert said[1].startswith("the server has torch 2.6.0, this site ")


def test_lines_survive_mail_programs_that_fold_them(keys: Path) -> None:
    application = Application("hospital-a", KeyPair.new().pem)
    folded = f"  {str(application)[:30]}\n{str(application)[30:]} \r\n"
    assert Application.read(folded) == application
    invited = invitation(keys, "fl.example.org:443")
    line = str(invited)
    assert Invitation.read(line[:100] + "\n" + line[100:]) == invited
    assert len(str(application)) < 100
    assert len(line) < 1500


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("fedskew-site:ann", "no line of a site"),
        ("fedskew-site:Ann B:AAAA", "cannot be called 'AnnB'"),
        ("fedskew-site:ann:AAAA", "copy the whole line again"),
        ("fedskew-site:../x:AAAA", "cannot be called '../x'"),
        ("hello", "no line of a site"),
    ],
)
def test_damaged_lines_of_sites(line: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        Application.read(line)


def test_damaged_invitations(keys: Path) -> None:
    line = str(invitation(keys, "fl.example.org:443"))
    for damaged in (line[:-30], line[:60] + "x" + line[61:], "fedskew-invitation:", "hi"):
        with pytest.raises(ConfigError, match=r"copy the whole line|is no invitation"):
            Invitation.read(damaged)


def test_both_sides_print_the_same_fingerprints(tmp_path: Path) -> None:
    lab = Lab.create(tmp_path / "lab", "lab", "fl.example.org:443")
    data = tmp_path / "a.csv"
    data.write_text("x,label\n1,0\n2,1\n3,0\n")
    site = Site.create(tmp_path / "ann", "ann", data)
    there = Application.read(str(site.application))
    assert fingerprint(there.key) == fingerprint(KeyPair.load(site.key_file).pem)
    came = Invitation.read(str(lab.add(there)))
    assert authority_fingerprint(came.authority.encode()) == lab.fingerprint
    assert lab.sites() == {"ann": there.key}


def test_private_keys_are_for_their_owner_only_and_leave_in_no_line(tmp_path: Path) -> None:
    lab = Lab.create(tmp_path / "lab", "lab", "fl.example.org:443")
    data = tmp_path / "a.csv"
    data.write_text("x,label\n1,0\n2,1\n3,0\n")
    site = Site.create(tmp_path / "ann", "ann", data)
    for path in (site.key_file, lab.keys / "ca.key", lab.keys / "server.key"):
        assert path.stat().st_mode & 0o777 == 0o600
    number = KeyPair.load(site.key_file).private.private_numbers().private_value
    secret = number.to_bytes(48, "big")
    sent = f"{site.application}{lab.add(site.application)}".encode()
    assert secret.hex().encode() not in sent
    assert "PRIVATE" not in json.dumps(Invitation.read(str(lab.add(site.application))).__dict__)


def test_a_site_is_added_once_under_one_key(tmp_path: Path) -> None:
    lab = Lab.create(tmp_path / "lab", "lab", "fl.example.org:443")
    first = Application("ann", KeyPair.new().pem)
    lab.add(first)
    lab.add(first)
    with pytest.raises(ConfigError, match="let in with another key: remove it first"):
        lab.add(Application("ann", KeyPair.new().pem))
    with pytest.raises(ConfigError, match="this key is that of site 'ann' already"):
        lab.add(replace(first, name="bob"))
    with pytest.raises(ConfigError, match="unknown site 'an': did you mean 'ann'"):
        lab.remove("an")
    lab.remove("ann")
    assert lab.sites() == {}


def test_certificates_hold_the_address_and_are_renewed_in_time(keys: Path) -> None:
    from cryptography import x509

    made = x509.load_pem_x509_certificate((keys / "server.crt").read_bytes())
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fl.example.org", "localhost"]
    assert [str(a) for a in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]
    assert certificate_left(keys / "server.crt") > timedelta(days=700)


@pytest.mark.parametrize("address", ["fl.example.org", "fl.example.org:", ":443", "a:99999", "a:b"])
def test_addresses_that_are_none(address: str) -> None:
    with pytest.raises(ConfigError, match="an address is a name and a port"):
        host_and_port(address)
