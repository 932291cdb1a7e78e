"""The door of a server: sites reach the fleet's paths, and nobody reaches anything else."""

from __future__ import annotations

import http.client
import json
import os
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from here import write_clients
from processes import Lot

from fedskew.errors import RunError
from fedskew.sites.joining import check_connection
from fedskew.sites.keys import KeyPair
from fedskew.sites.lab import host_and_port
from fedskew.sites.proxy import find_nginx
from fedskew.sites.versions import versions

pytestmark = [
    pytest.mark.sites,
    pytest.mark.skipif(
        find_nginx() is None and os.environ.get("FEDSKEW_REQUIRE_DATA") != "1",
        reason="nginx is not installed",
    ),
]


@pytest.fixture(scope="module")
def lot(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lot]:
    made = Lot(tmp_path_factory.mktemp("door"))
    try:
        made.start_server()
        yield made
    finally:
        made.end()


def asked(lot: Lot, path: str, method: str = "POST") -> tuple[int, bytes]:
    trusted = ssl.create_default_context(cadata=lot.lab.authority.decode())
    host, port = host_and_port(lot.lab.settings.address)
    line = http.client.HTTPSConnection(host, port, timeout=60, context=trusted)
    try:
        # As it is: no client of ours tidies the path up.
        line.putrequest(method, path, skip_host=False)
        line.putheader("Content-Length", "0")
        line.endheaders()
        answer = line.getresponse()
        return answer.status, answer.read()
    finally:
        line.close()


@pytest.mark.parametrize(
    "path",
    [
        "/v1/control/start-run",
        "/v1/control/list-nodes",
        "/v1/runtime/acquire-task",
        "/v1/fleet/../control/start-run",
        "/v1/fleet/%2e%2e/control/start-run",
        "/v1/fleet/..%2fcontrol/start-run",
        "/v1/fleet/%252e%252e/control/start-run",
        "//v1/control/start-run",
        "/v1/fleet/",
        "/docs",
        "/openapi.json",
        "/",
    ],
)
def test_nothing_but_the_fleet_can_be_reached(lot: Lot, path: str) -> None:
    assert asked(lot, path)[0] == 403
    assert asked(lot, path, "GET")[0] == 403


def test_the_fleet_can_be_reached_but_wants_a_signature(lot: Lot) -> None:
    assert asked(lot, "/v1/fleet/pull-messages")[0] not in (403, 404, 502)
    assert asked(lot, "/v1/fleet/activate-node")[0] >= 400


def test_the_door_tells_versions(lot: Lot) -> None:
    status, body = asked(lot, "/fedskew", "GET")
    assert status == 200
    assert json.loads(body) == versions()


def test_the_superlink_listens_on_this_machine_only(lot: Lot) -> None:
    port = f"{lot.lab.settings.port:04X}"
    listening = [
        line.split()[1]
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
        if line.split()[3] == "0A" and line.split()[1].endswith(f":{port}")
    ]
    assert listening == [f"0100007F:{port}"]


def test_keys_decide_who_gets_in(lot: Lot) -> None:
    site = lot.sites["ann"]
    check_connection(site.invitation, KeyPair.load(site.key_file), lambda sentence: None)
    with pytest.raises(RunError, match="its key is not registered there"):
        check_connection(site.invitation, KeyPair.new(), lambda sentence: None)


def test_a_clock_that_is_an_hour_off_is_refused_by_the_superlink(
    lot: Lot, monkeypatch: pytest.MonkeyPatch
) -> None:
    from datetime import timedelta

    from flwr.supernode import node_auth_http_interceptor as signing

    from fedskew.sites.flower.node import Connection

    site, now = lot.sites["ann"], signing.now
    monkeypatch.setattr(signing, "now", lambda: now() + timedelta(hours=1))
    invited = site.invitation
    with (
        pytest.raises(RunError, match=r"is this machine's clock right\?"),
        Connection.to(invited.address, invited.authority.encode(), KeyPair.load(site.key_file)),
    ):
        pass


def test_a_site_that_was_removed_gets_in_no_longer(lot: Lot) -> None:
    from fedskew.sites.lab import known_to

    files = write_clients(lot.folder / "more")
    site = lot.make_site("later", files["ann"])
    known_to(lot.lab)
    check_connection(site.invitation, KeyPair.load(site.key_file), lambda sentence: None)
    lot.lab.remove("later")
    known_to(lot.lab)
    with pytest.raises(RunError, match="its key is not registered there"):
        check_connection(site.invitation, KeyPair.load(site.key_file), lambda sentence: None)
