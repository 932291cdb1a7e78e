"""A backend in this process that exchanges bytes with its clients, as a network would."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from fedskew.errors import ConfigError
from fedskew.federate.backends import Backend
from fedskew.federate.backends.wire import (
    decode_answers,
    decode_asks,
    encode_answers,
    encode_asks,
)
from fedskew.federate.metrics import Measured
from fedskew.federate.plan import Plan
from fedskew.federate.tasks import Answer, Ask, TogetherTask


def handle(clients: Backend, message: bytes) -> bytes:
    """The side where the data are: bytes in, bytes out."""
    return encode_answers(clients.exchange(decode_asks(message)))


class Carrier:
    """Encodes every ask and every answer and decodes it on the other side.

    Only bytes pass between the server and the ``clients``, whose data stay apart: what needs all
    data in one place is refused.
    """

    pools = False
    apart = False
    rides = False

    def __init__(self, clients: Backend) -> None:
        self._clients = clients
        self.roster = clients.roster

    def begin(self, plan: Plan, made_up: Tensor | None = None) -> None:
        self._clients.begin(plan, made_up)

    def exchange(self, asks: Sequence[Ask]) -> list[Answer]:
        return decode_answers(self.carry(encode_asks(asks)))

    def carry(self, message: bytes) -> bytes:
        """Send a message to the clients and return their reply."""
        return handle(self._clients, message)

    def together(self, task: TogetherTask) -> list[Measured]:
        raise ConfigError("clients keep their data to themselves: nothing is measured together.")
