"""Who carries out the clients' work of runs: this process, or the workers of a Ray cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from fedskew.data.federation import Federation
from fedskew.errors import ConfigError
from fedskew.federate.backends import Backend
from fedskew.federate.backends.dealer import Dealer
from fedskew.federate.backends.dealt import DealtBackend
from fedskew.runs.experiment import MakeBackend, Tell, local_backend
from fedskew.runs.folder import RunFolder

RAY = "ray"


def ray_address(workers: str) -> str:
    """The address in ``ray:address``; without one, a cluster is started on this machine.

    >>> ray_address("ray"), ray_address("ray:10.0.0.1:6379")
    ('', '10.0.0.1:6379')
    """
    kind, _, address = workers.partition(":")
    if kind != RAY or workers == f"{RAY}:":
        raise ConfigError(
            f"unknown workers {workers!r}: write 'ray', or 'ray:' and a cluster's address."
        )
    return address


@contextmanager
def carried_by(
    workers: str | None = None, tell: Tell | None = None, presum: bool = False
) -> Iterator[MakeBackend]:
    """Makes backends whose clients' work is done by workers (none: here), until the block ends.

    A cluster is reached, or started, when the first backend is made: finished runs need none. All
    runs of the block use the same workers, which are sent data once.
    """
    if workers is None:
        if presum:
            raise ConfigError("--presum is for workers to add up models: name some (--workers).")
        yield local_backend
        return
    address = ray_address(workers)
    if presum and tell is not None:
        tell("workers add up models: last digits are others than those of a run without --presum")
    with ExitStack() as stack:
        dealers: list[Dealer] = []

        def dealt(federation: Federation, folder: RunFolder) -> Backend:
            if not dealers:
                from fedskew.federate.backends.ray import RayCluster, RayPool

                cluster = stack.enter_context(RayCluster(address))
                dealers.append(Dealer(RayPool(cluster, tell=tell)))
            return dealt_backend(dealers[0], presum)(federation, folder)

        yield dealt


def dealt_backend(dealer: Dealer, presum: bool = False) -> MakeBackend:
    """Clients' work is dealt to workers; what stays with clients lies in the run folder.

    With ``presum`` workers add up models (see :class:`DealtBackend`).
    """
    return lambda federation, folder: DealtBackend(
        federation, dealer, folder=folder.checkpoint.folder, results=folder.path, presum=presum
    )
