"""Workers on a Ray cluster: the only module that knows Ray, and the only one that needs it.

Without an address a cluster is started on this machine and ended again. Everything Ray would leave
behind, its access token above all, goes to a temporary folder.
"""

from __future__ import annotations

import atexit
import os
import secrets
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import fedskew
from fedskew.engine.arithmetic import Arithmetic, arithmetic, differences
from fedskew.engine.workers import cores, use_cores
from fedskew.errors import ConfigError, RunError
from fedskew.federate.backends.dealer import Lost
from fedskew.federate.backends.parcel import Parcel
from fedskew.federate.backends.workbench import Sent, Workbench

LONGEST_FOLDER = 40
"""Ray makes sockets in its folder, and a socket's path has at most 107 letters."""


def need_ray() -> None:
    try:
        import ray  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            "workers on Ray need it installed: pip install 'fedskew[ray]'."
        ) from error


Told = tuple[str, str, Arithmetic]
"""Which fedskew somebody has, on which machine, and how that computes."""


def told() -> Told:
    return fedskew.__version__, os.uname().nodename, arithmetic()


def check_alike(its: Told) -> str:
    """Refuse another version; the rest in which machines differ, in words, or nothing."""
    version, machine, computes = its
    mine = arithmetic()
    if version != fedskew.__version__ or computes["torch"] != mine["torch"]:
        raise RunError(
            f"{machine} has fedskew {version} and torch {computes['torch']}, this machine "
            f"{fedskew.__version__} and {mine['torch']}: install the same versions."
        )
    if not (other := differences(mine, computes)):
        return ""
    return f"{machine} computes otherwise than this machine: {other}; last bits differ"


class Actor:
    """What runs in a worker's process: a workbench, on one core."""

    def __init__(self) -> None:
        use_cores(1)
        self._bench = Workbench()

    def ready(self) -> Told:
        return told()

    def answer(
        self, names: tuple[str, str, str], data: Parcel, plan: Parcel, common: Parcel, work: Parcel
    ) -> Parcel:
        parcels = (data, plan, common)
        a, b, c = (Sent(name, sent) for name, sent in zip(names, parcels, strict=True))
        return self._bench.answer(a, b, c, work)


class RayWorker:
    """An actor, which Ray starts again when it or its machine ends."""

    def __init__(self, actor: Any, tell: Callable[[str], None] | None) -> None:
        self._actor, self._tell = actor, tell

    def ready(self) -> Future[None]:
        return answer_of(self._actor.ready.remote(), self._check)

    def submit(self, data: Sent, plan: Sent, common: Sent, work: Parcel) -> Future[Parcel]:
        names = (data.name, plan.name, common.name)
        answer = self._actor.answer.remote(names, data.parcel, plan.parcel, common.parcel, work)
        return answer_of(answer, lambda parcel: parcel)

    def _check(self, its: Told) -> None:
        if (sentence := check_alike(its)) and self._tell is not None:
            self._tell(sentence)
            self._tell = None


def answer_of(reference: Any, taken: Callable[[Any], Any]) -> Future[Any]:
    """A future of what an actor answers; if its process or machine ended, of :class:`Lost`."""
    future: Future[Any] = Future()

    def arrived(its: Future[Any]) -> None:
        try:
            future.set_result(taken(its.result()))
        except Exception as error:
            future.set_exception(_translated(error))

    reference.future().add_done_callback(arrived)
    return future


def _translated(error: Exception) -> Exception:
    from ray import exceptions

    text = str(error).strip()
    if isinstance(error, exceptions.RayTaskError) or "creation task" in text:
        last = text.splitlines()[-1]
        return RunError(f"a worker of Ray cannot work ({last}): is fedskew installed everywhere?")
    return Lost(text.splitlines()[0]) if isinstance(error, exceptions.RayError) else error


class RayCluster:
    """A cluster at an address, or else one on this machine; its actors end with it."""

    def __init__(self, address: str = "") -> None:
        need_ray()
        if address:
            _check_there(address)
        self._folder: Path | None = None
        self._environment: dict[str, str | None] = {}
        self._actors: list[Any] = []
        self._start(address)

    @property
    def cores(self) -> int:
        import ray

        return int(ray.cluster_resources().get("CPU", 1))

    def actors(self, kind: type, count: int, at_once: int = 1) -> list[Any]:
        """So many actors of a class, a core each; each answers so many calls at once."""
        import ray

        made = ray.remote(
            num_cpus=1, max_restarts=-1, max_task_retries=0, max_concurrency=at_once,
            scheduling_strategy="SPREAD",
        )(kind)  # fmt: skip
        new = [made.remote() for _ in range(count)]
        self._actors += new
        return new

    def put(self, parcel: Parcel) -> Any:
        import ray

        return ray.put(parcel)

    def _start(self, address: str) -> None:
        self._set("RAY_USAGE_STATS_ENABLED", "0")
        # Ray sets it for the whole process.
        self._environment["RAY_AUTH_MODE"] = os.environ.get("RAY_AUTH_MODE")
        if not address:
            self._folder = _folder()
            # Ray makes a token for every cluster of its own, and would leave it in the home folder.
            self._set("RAY_AUTH_TOKEN_PATH", str(_token()))
        import ray

        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        if not address:
            options |= {
                "address": "local", "num_cpus": cores(), "include_dashboard": False,
                "_temp_dir": str(self._folder),
            }  # fmt: skip
        try:
            with _own_signals():
                ray.init(**{"address": address, **options})
        except Exception as error:
            self.close()
            where = f"at {address}" if address else "on this machine"
            raise RunError(f"no Ray cluster {where}: {_sentence(error)}.") from error
        except BaseException:
            self.close()
            raise

    def _set(self, name: str, value: str) -> None:
        self._environment[name] = os.environ.get(name)
        os.environ[name] = value

    def close(self) -> None:
        """End the actors, and the cluster if it is ours."""
        import ray

        for actor in self._actors:
            with suppress(Exception):  # the cluster may have gone before us
                ray.kill(actor)
        self._actors = []
        ray.shutdown()
        for name, before in self._environment.items():
            os.environ.pop(name, None)
            if before is not None:
                os.environ[name] = before
        self._environment = {}
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()


@contextmanager
def _own_signals() -> Iterator[None]:
    """Signals keep their meaning: Ray gives SIGTERM one of its own."""
    listened = (signal.SIGINT, signal.SIGTERM)
    handlers = {number: signal.getsignal(number) for number in listened}
    yield
    if threading.current_thread() is threading.main_thread():
        for number, handler in handlers.items():
            if handler is not None:
                signal.signal(number, handler)


def _check_there(address: str) -> None:
    """Refuse an address where nobody answers: Ray would go on trying for many minutes."""
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal()):
        raise ConfigError(f"{address!r} is no address of a Ray cluster: write HOST:PORT.")
    try:
        socket.create_connection((host, int(port)), 10).close()
    except (OSError, OverflowError) as error:
        raise RunError(f"no Ray cluster answers at {address}: {error}.") from error


class RayPool:
    """One worker for each core of a cluster, or as many as asked for."""

    def __init__(
        self,
        cluster: RayCluster,
        count: int | None = None,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self.put = cluster.put
        actors = cluster.actors(Actor, count or cluster.cores)
        self.workers = [RayWorker(actor, tell) for actor in actors]


def _folder() -> Path:
    usual = tempfile.gettempdir()
    return Path(
        tempfile.mkdtemp(prefix="ray-", dir=usual if len(usual) < LONGEST_FOLDER else "/tmp")
    )


@cache
def _token() -> Path:
    """A file with the word by which processes of our clusters know each other.

    Ray reads it once in a process, so that it is the same for all clusters of this one.
    """
    folder = Path(tempfile.mkdtemp(prefix="ray-token-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = folder / "token"
    with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
        file.write(secrets.token_hex(32))
    return path


def _sentence(error: Exception) -> str:
    return " ".join(str(error).split())[:300].rstrip(".")
