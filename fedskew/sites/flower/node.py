"""A site's end of Flower's protocol: fetch a message, answer it, send the reply."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from fedskew.errors import RunError
from fedskew.sites.flower import Retry, need_flower, packed, unpacked
from fedskew.sites.keys import KeyPair

SOON, LATER = 0.1, 0.5
"""Seconds between two looks for a message: just after one, and when none has come for a while."""


class NotLetIn(RunError):
    """The SuperLink does not know this site's key, or holds it for connected already."""


def serve(
    handle: Callable[[bytes], bytes],
    address: str,
    certificates: bytes,
    keys: KeyPair,
    stop: threading.Event,
    connected: Callable[[int], None],
    before: int | None = None,
) -> None:
    """Answer what a server asks of a site, until told to stop.

    A broken connection raises :class:`RunError`. ``connected`` is called with the site's number at
    the SuperLink; ``before`` is that number, if a process of this site that is dead may still be
    taken for connected.
    """
    with Connection.to(address, certificates, keys, before) as connection:
        connected(connection.number)
        pause = SOON
        while not stop.is_set():
            if (came := connection.receive()) is None:
                stop.wait(pause)
                pause = min(LATER, 1.2 * pause)
                continue
            pause = SOON
            connection.answer(*came, handle)


class Connection:
    """A site that is connected to a SuperLink."""

    def __init__(self, client: Any, key: bytes) -> None:
        self._client, self._key = client, key
        self._retry = Retry()
        self._node: Any = None

    @classmethod
    @contextmanager
    def to(
        cls, address: str, certificates: bytes, keys: KeyPair, before: int | None = None
    ) -> Iterator[Connection]:
        """Come online under the site's key, and go offline at the end."""
        need_flower()
        import httpx
        from flwr.supercore import heartbeat
        from flwr.supercore.heartbeat import HeartbeatSender
        from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
        from flwr.supernode.fleet_http_client import FleetHttpClient
        from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

        # A draw of its thread from Python's generator would be taken for one of a model's.
        heartbeat.random = random.Random()
        client = FleetHttpClient.from_server_address(
            address, False, certificates,
            interceptors=[
                RuntimeVersionHttpInterceptor(component_name="SuperNode"),
                NodeAuthHttpInterceptor(keys.private, keys.public),
            ],
        )  # fmt: skip
        made = cls(client, keys.pem)
        try:
            made._activate(before)
            heart = HeartbeatSender(made._beat)
            heart.start()
            try:
                yield made
            finally:
                if heart.is_running:
                    heart.stop()
                with suppress(Exception):  # the server may be gone: it will notice by itself
                    made._deactivate(made.number)
        except httpx.HTTPError as error:
            raise RunError(f"the connection to {address} broke: {error}.") from error
        finally:
            client.close()

    @property
    def number(self) -> int:
        return int(self._node.node_id)

    def _activate(self, before: int | None) -> None:
        import httpx
        from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL
        from flwr.proto.fleet_pb2 import ActivateNodeRequest
        from flwr.proto.node_pb2 import Node

        request = ActivateNodeRequest(
            public_key=self._key, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL
        )
        if before is not None:
            # Else a site whose process was killed would have to wait for a minute.
            with suppress(httpx.HTTPStatusError):
                self._deactivate(before)
        try:
            self._node = Node(node_id=self._client.ActivateNode(request).node_id)
        except httpx.HTTPStatusError as error:
            status = error.response.status_code
            if status >= 500:
                raise
            why = (
                "its signature is not accepted (is this machine's clock right?)"
                if status == httpx.codes.UNAUTHORIZED
                else "its key is not registered there, or a site with it is connected already"
            )
            raise NotLetIn(f"the server does not let this site in: {why}.") from error

    def _deactivate(self, number: int) -> None:
        from flwr.proto.fleet_pb2 import DeactivateNodeRequest

        self._client.DeactivateNode(DeactivateNodeRequest(node_id=number))

    def _beat(self) -> bool:
        """Say that this site is alive; a connection that is lost shows in the next request."""
        import httpx
        from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL
        from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest

        try:
            self._client.SendNodeHeartbeat(
                SendNodeHeartbeatRequest(
                    node=self._node, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL
                )
            )
        except httpx.HTTPError:
            return False
        return True

    def receive(self) -> tuple[Any, Any] | None:
        """The next message without its body, and the tree of objects that the body is made of."""
        from flwr.common.serde import message_from_proto
        from flwr.proto.fleet_pb2 import PullMessagesRequest

        found = self._retry.invoke(self._client.PullMessages, PullMessagesRequest(node=self._node))
        if not found.messages_list:
            return None
        return message_from_proto(found.messages_list[0]), found.message_object_trees[0]

    def answer(self, message: Any, tree: Any, handle: Callable[[bytes], bytes]) -> None:
        """Fetch a message's body, let it be answered, and send the reply."""
        from flwr.app import Message

        run = message.metadata.run_id
        whole = self._whole(run, tree)
        begun = time.monotonic()
        try:
            body = unpacked(whole.content)
        except Exception:  # whoever reaches the SuperLink can send anything; the worker refuses it
            body = b""
        reply = Message(packed(handle(body)), reply_to=whole)
        reply.metadata.__dict__["_message_id"] = reply.object_id
        self._send(run, reply, time.monotonic() - begun)

    def _whole(self, run: int, tree: Any) -> Any:
        from flwr.app import Message
        from flwr.supercore.inflatable.inflatable_protobuf_utils import (
            make_confirm_message_received_fn_protobuf,
            make_pull_object_fn_protobuf,
        )
        from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree

        whole = pull_and_inflate_object_from_tree(
            tree,
            make_pull_object_fn_protobuf(self._retried("PullObject"), self._node, run),
            make_confirm_message_received_fn_protobuf(
                self._retried("ConfirmMessageReceived"), self._node, run
            ),
            return_type=Message,
        )
        whole.metadata.__dict__["_message_id"] = tree.object_id
        return whole

    def _send(self, run: int, reply: Any, seconds: float) -> None:
        from flwr.app.message import remove_content_from_message
        from flwr.common.serde import message_to_proto
        from flwr.proto.fleet_pb2 import PushMessagesRequest
        from flwr.supercore.inflatable.inflatable_object import (
            get_all_nested_objects,
            get_object_tree,
            no_object_id_recompute,
        )
        from flwr.supercore.inflatable.inflatable_protobuf_utils import make_push_object_fn_protobuf

        with no_object_id_recompute():
            told = self._retry.invoke(
                self._client.PushMessages,
                PushMessagesRequest(
                    node=self._node,
                    messages_list=[message_to_proto(remove_content_from_message(reply))],
                    message_object_trees=[get_object_tree(reply)],
                    clientapp_runtime_list=[seconds],
                ),
            )
            objects = get_all_nested_objects(reply)
            push = make_push_object_fn_protobuf(
                self._retried("PushObject"), self._node, run, told.session_id
            )
            for name in told.objects_to_push:
                push(name, objects[name].deflate())

    def _retried(self, call: str) -> Callable[[Any], Any]:
        return lambda request: self._retry.invoke(getattr(self._client, call), request)
