"""Why a site cannot reach its server: name, connection, certificate, clock, version, key."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from fedskew.errors import RunError
from fedskew.sites.flower.node import Connection
from fedskew.sites.keys import KeyPair
from fedskew.sites.lab import host_and_port
from fedskew.sites.lines import Invitation
from fedskew.sites.versions import check_versions

PATIENCE = 10.0
AHEAD, BEHIND = 5.0, 300.0
"""Seconds by which a site's clock may be off: signatures of other times are refused."""


def check_connection(invitation: Invitation, keys: KeyPair, tell: Callable[[str], None]) -> None:
    """Connect once, step by step, and say in a sentence what is wrong, if anything is."""
    host, port = host_and_port(invitation.address)
    told, offset = _asked(host, port, invitation.authority)
    tell(f"reached {invitation.address}, which has the certificate of {invitation.server!r}")
    if not -BEHIND < offset < AHEAD:
        direction = "ahead of" if offset > 0 else "behind"
        raise RunError(
            f"this machine's clock is {abs(offset) / 60:.0f} minutes {direction} the server's: set "
            "it, or let it be set from the network (NTP)."
        )
    check_versions(told or invitation.versions, tell)
    with Connection.to(invitation.address, invitation.authority.encode(), keys):
        tell("the server knows this site's key")


def _asked(host: str, port: int, authority: str) -> tuple[dict[str, Any], float]:
    """The versions a server tells, if it does, and by how many seconds our clock is ahead."""
    trusted = ssl.create_default_context(cadata=authority)
    line = http.client.HTTPSConnection(host, port, timeout=PATIENCE, context=trusted)
    place = f"{host}:{port}"
    try:
        line.request("GET", "/fedskew")
        answer = line.getresponse()
        body = answer.read(10_000)
    except socket.gaierror as error:
        raise RunError(f"no machine is called {host!r}: is the server's address right?") from error
    except ssl.SSLCertVerificationError as error:
        raise RunError(
            f"{place} shows a certificate that is not the invited server's "
            f"({error.verify_message}): somebody stands between, or the server was set up anew and "
            "has to invite this site again."
        ) from error
    except ssl.SSLError as error:
        raise RunError(f"{place} does not speak TLS as it should ({error.reason}).") from error
    except (OSError, http.client.HTTPException) as error:
        raise RunError(
            f"nothing answers at {place} ({error}): is the server started, and does the firewall "
            "let this site out and in there?"
        ) from error
    finally:
        line.close()
    date = answer.getheader("date")
    offset = 0.0
    if date:
        offset = (datetime.now(UTC) - parsedate_to_datetime(date)).total_seconds()
    try:
        told = json.loads(body) if answer.status == 200 else {}
    except ValueError:
        told = {}
    return (told if isinstance(told, dict) else {}), offset
