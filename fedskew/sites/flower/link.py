"""The server's end: messages to sites and their replies, through a SuperLink on this machine.

The round loop runs in the user's process: it starts a Flower run, takes over the run's server task,
and sends messages in its name. A SuperLink that is killed forgets that run, though not its sites:
then a new one is started, and what was not answered is asked again.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from fedskew.errors import RunError, TooFewSites
from fedskew.sites.flower import Retry, is_lost, need_flower, packed, unpacked
from fedskew.sites.flower.control import Control, Node

SOON, LATER = 0.1, 0.5
TRIES = 4
GRACE = 5.0
"""Seconds that a site which was late before may take longer than the others."""


class FlowerLink:
    """Carries messages to sites through a SuperLink; use it in a ``with`` statement.

    ``keys`` are the public keys of the sites to wait for, by name. ``wait`` is how many seconds to
    wait for sites, and for a SuperLink that is gone; ``deadline`` how long a site may take to
    answer. With fewer sites than ``least`` connected nothing goes on: all of them at the start, if
    none is given, and one later.
    """

    def __init__(
        self,
        address: str,
        certificates: bytes,
        keys: Mapping[str, bytes],
        wait: float = 120.0,
        deadline: float = 3600.0,
        least: int | None = None,
    ) -> None:
        need_flower()
        self._address, self._certificates, self._keys = address, certificates, dict(keys)
        self._wait, self._deadline, self._least = wait, deadline, least
        self._names: dict[int, str] = {}
        self._late: set[str] = set()
        self._heart: Any = None

    def __enter__(self) -> FlowerLink:
        self._open()
        return self

    def __exit__(self, *_: object) -> None:
        from flwr.common.constant import SubStatus
        from flwr.proto.runtime_pb2 import PushTaskOutputRequest

        with suppress(Exception):  # the SuperLink may be gone: that is no reason to fail now
            self._runtime.PushTaskOutput(
                PushTaskOutputRequest(sub_status=SubStatus.COMPLETED, details="")
            )
        self._close()

    def _open(self) -> None:
        from flwr.common.serde import run_from_proto
        from flwr.proto.runtime_pb2 import PullTaskInputRequest
        from flwr.supercore.heartbeat import HeartbeatSender
        from flwr.supercore.task_identity import TaskIdentity
        from flwr.superlink.grid import HttpGrid

        with Control(self._address, self._certificates) as control:
            named = {key: name for name, key in self._keys.items()}
            self._names = {n.number: named[n.key] for n in control.nodes() if n.key in named}
            for _ in range(TRIES):
                # Another study that begins just now may have taken the task for a dead run's.
                if (token := self._claim(control.start_run())) is not None:
                    break
            else:
                raise RunError(f"the SuperLink at {self._address} gave no task to any run.")
        self._grid = HttpGrid(
            runtime_api_address=self._address, insecure=False,
            root_certificates=self._certificates, token=token,
        )  # fmt: skip
        self._grid._retry_invoker = Retry()
        told = self._runtime.PullTaskInput(PullTaskInputRequest())
        TaskIdentity.task_id = told.task_id
        TaskIdentity.run_id = told.run.run_id
        TaskIdentity.node_id = told.context.node_id
        self._grid.set_run(run_from_proto(told.run))
        self._heart = HeartbeatSender(self._beat)
        self._heart.start()

    @property
    def _runtime(self) -> Any:
        return self._grid._runtime_client

    def _close(self) -> None:
        if self._heart is not None and self._heart.is_running:
            self._heart.stop()
        self._grid.close()

    def _beat(self) -> bool:
        """Tell the SuperLink that the loop is alive; Flower's own would end it on a 'no'."""
        from flwr.proto.runtime_pb2 import SendTaskHeartbeatRequest

        try:
            return bool(self._runtime.SendTaskHeartbeat(SendTaskHeartbeatRequest()).success)
        except Exception:  # what is lost shows in the next request
            return False

    def _open_again(self) -> None:
        """Start a new Flower run once the SuperLink is back."""
        self._close()
        until = time.monotonic() + self._wait
        while True:
            try:
                return self._open()
            except RunError:
                if time.monotonic() > until:
                    raise
            except Exception as error:
                if not is_lost(error):
                    raise
            time.sleep(LATER)

    def _claim(self, run: int) -> str | None:
        """Take over the server task of a run; none if somebody else has."""
        from flwr.proto.runtime_pb2 import AcquireTaskRequest
        from flwr.supercore.constant import TaskType
        from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
        from flwr.supercore.runtime import RuntimeHttpClient

        runtime = RuntimeHttpClient.from_server_address(
            self._address, False, self._certificates,
            interceptors=[RuntimeVersionHttpInterceptor(component_name="SuperExec")],
        )  # fmt: skip
        wanted = AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP])
        until = time.monotonic() + 10
        try:
            while time.monotonic() < until:
                # Tasks of runs whose server was killed come first; they are not ours, and end here.
                found = Retry().invoke(runtime.AcquireTask, wanted)
                if found.token and found.task.run_id == run:
                    return str(found.token)
                if not found.token:
                    time.sleep(SOON)
        finally:
            runtime.close()
        return None

    def _online(self) -> dict[str, int]:
        """The sites that are connected, by name their numbers."""
        found = {self._names.get(node.node_id): node.node_id for node in self._grid.get_nodes()}
        return {name: number for name, number in found.items() if name is not None}

    def sites(self) -> list[str]:
        """The sites that are connected, once all, or enough of them, are there."""
        everybody = len(self._keys)
        least = everybody if self._least is None else self._least
        return sorted(self._enough(least, hoped=everybody))

    def _enough(self, least: int, hoped: int) -> dict[str, int]:
        """Wait for the hoped number of sites; at least so many must be there in the end."""
        until = time.monotonic() + self._wait
        while True:
            online = self._online()
            if len(online) >= hoped:
                return online
            if time.monotonic() > until:
                break
            time.sleep(LATER)
        if len(online) >= least:
            return online
        missing = sorted(self._keys.keys() - online.keys())
        raise TooFewSites(
            f"{len(missing)} of {len(self._keys)} sites are not connected: {', '.join(missing)}; "
            f"{least} must be there."
        )

    def exchange(self, messages: Mapping[str, bytes]) -> dict[str, bytes | str]:
        """By site its reply, or a sentence why there is none."""
        replies: dict[str, bytes | str] = {}
        while True:
            try:
                self._exchange(messages, replies)
                return replies
            except Exception as error:
                if not is_lost(error):
                    raise
            self._open_again()

    def _exchange(self, messages: Mapping[str, bytes], replies: dict[str, bytes | str]) -> None:
        """Send what was not replied to yet, and collect the replies as they come."""
        least = 1 if self._least is None else self._least
        online = self._online()
        if len(online) < least:
            online = self._enough(least, hoped=least)
        left = {site: message for site, message in messages.items() if site not in replies}
        waiting = self._pushed({s: (online[s], m) for s, m in left.items() if s in online})
        until = time.monotonic() + self._deadline
        while waiting and time.monotonic() < until:
            for reply in self._grid.pull_messages(set(waiting)):
                site = waiting.pop(reply.metadata.reply_to_message_id, None)
                if site is None:
                    continue
                self._late.discard(site)
                if reply.has_error():
                    replies[site] = f"Flower says: {reply.error.reason}"
                else:
                    replies[site] = unpacked(reply.content)
            if waiting and set(waiting.values()) <= self._late:
                # Whoever was late before does not hold up the others for long.
                until = min(until, time.monotonic() + GRACE)
            if waiting:
                time.sleep(SOON)
        self._late.update(waiting.values())
        for site in left.keys() - replies.keys():
            late = site in waiting.values()
            replies[site] = "it did not answer in time" if late else "it is not connected"

    def _pushed(self, messages: Mapping[str, tuple[int, bytes]]) -> dict[str, str]:
        """Send messages to nodes, and return the site that each message's number is for."""
        from flwr.app import Message

        if not messages:
            return {}
        made = [Message(packed(body), node, "train") for node, body in messages.values()]
        numbers = self._grid.push_messages(made)
        return {n: site for n, site in zip(numbers, messages, strict=True) if n is not None}


def registered(address: str, certificates: bytes, keys: Mapping[str, bytes]) -> dict[str, Node]:
    """Let the sites with these keys in, and nobody else; by name what is known of them."""
    with Control(address, certificates) as control:
        known = {node.key: node for node in control.nodes()}
        for name, key in keys.items():
            if key not in known:
                control.register(key, name)
        for key, node in known.items():
            if key not in keys.values():
                control.unregister(node.number)
        known = {node.key: node for node in control.nodes()}
        return {name: known[key] for name, key in keys.items()}
