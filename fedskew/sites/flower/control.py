"""A SuperLink's control: which sites it knows by their keys, and the runs it lets begin."""

from __future__ import annotations

import hashlib
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedskew.errors import RunError
from fedskew.sites.flower import need_flower

APP = {
    "pyproject.toml": """[project]
name = "fedskew-sites"
version = "0.1.0"
license = { file = "LICENSE" }
dependencies = ["flwr>=1.41.0"]
[tool.flwr.app]
publisher = "fedskew"
fab-format-version = 1
flwr-version-target = "1.41.0"
[tool.flwr.app.components]
serverapp = "empty.apps:server"
clientapp = "empty.apps:client"
[tool.flwr.app.config]
""",
    "LICENSE": "Apache-2.0\n",
    "empty/__init__.py": "",
    "empty/apps.py": """from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

server = ServerApp()
client = ClientApp()
""",
}
"""Flower demands an app with every run; ours is empty, and no site of ours loads it."""


@dataclass(frozen=True)
class Node:
    """A site as the SuperLink knows it."""

    number: int
    key: bytes
    status: str
    seen: str
    """When it last came or went, in ISO format; empty if it never came."""


class Control:
    """Talks to the control of a SuperLink on this machine; use it in a ``with`` statement."""

    def __init__(self, address: str, certificates: bytes) -> None:
        need_flower()
        from flwr.supercore.control.control_http_client import ControlHttpClient
        from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

        self._address = address
        self._client = ControlHttpClient.from_server_address(
            address, False, certificates,
            interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr-cli")],
        )  # fmt: skip

    def __enter__(self) -> Control:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def _asked(self, call: str, request: Any) -> Any:
        import httpx

        try:
            return getattr(self._client, call)(request)
        except httpx.HTTPStatusError as error:
            raise RunError(
                f"the SuperLink at {self._address} refused: {error.response.text:.200}."
            ) from error
        except httpx.HTTPError as error:
            raise RunError(
                f"the SuperLink at {self._address} does not answer: start it with "
                "'fedskew server start'."
            ) from error

    def nodes(self) -> list[Node]:
        """All sites whose keys are registered."""
        from flwr.proto.control_pb2 import ListNodesRequest

        told = self._asked("ListNodes", ListNodesRequest()).nodes_info
        return [
            Node(
                each.node_id, each.public_key, each.status,
                max(each.last_activated_at, each.last_deactivated_at),
            )
            for each in told
            if each.status != "unregistered"
        ]  # fmt: skip

    def register(self, key: bytes, name: str) -> None:
        """Let the site with this key in."""
        from flwr.proto.control_pb2 import RegisterNodeRequest

        self._asked("RegisterNode", RegisterNodeRequest(public_key=key, name=name))

    def unregister(self, number: int) -> None:
        """Let a site in no longer."""
        from flwr.proto.control_pb2 import UnregisterNodeRequest

        self._asked("UnregisterNode", UnregisterNodeRequest(node_id=number))

    def start_run(self) -> int:
        """Start a Flower run with our empty app, and return its number."""
        from flwr.cli.build import build_fab_from_disk
        from flwr.common.serde import fab_to_proto
        from flwr.proto.control_pb2 import StartRunRequest
        from flwr.supercore.fab import Fab

        with tempfile.TemporaryDirectory() as folder:
            for name, text in APP.items():
                path = Path(folder, "app", name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            app = build_fab_from_disk(Path(folder, "app"))
        fab = fab_to_proto(Fab(hashlib.sha256(app).hexdigest(), app, {}))
        return int(self._asked("StartRun", StartRunRequest(fab=fab)).run_id)
