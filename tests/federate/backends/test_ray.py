"""Two Ray nodes on this machine: the bits of one process, whatever is killed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

import digests
import pytest

import fedskew
from fedskew.errors import ConfigError, RunError
from fedskew.federate.backends.dealer import Dealer, Lost
from fedskew.federate.backends.parcel import Parcel
from fedskew.federate.backends.ray import RayCluster, RayPool, RayWorker
from fedskew.runs.workers import dealt_backend

pytestmark = pytest.mark.sites
SLOW = {"train": {"epochs": 1000}}
"""Whoever is killed is in the midst of a slice."""


class Cluster:
    """Two nodes of two cores each; a worker has one core of each of them."""

    def __init__(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="ray-")
        Path(self.folder, "ray").mkdir()
        os.environ |= {
            "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled", "RAY_TMPDIR": self.folder,
        }  # fmt: skip
        from ray.cluster_utils import Cluster as Nodes

        self._nodes = Nodes()
        self.cluster: RayCluster | None = None
        try:
            node = {"num_cpus": 2, "object_store_memory": 100 * 2**20}
            self._nodes.add_node(include_dashboard=False, **node)
            self._second = self._nodes.add_node(**node)
            self.cluster = RayCluster(self.address)
            self.pool = RayPool(self.cluster, 2)
        except BaseException:
            self.close()
            raise
        self.dealer = Dealer(self.pool)

    @property
    def address(self) -> str:
        return str(self._nodes.address)

    def run(self, settings: dict[str, Any], out: Path) -> fedskew.Run:
        return fedskew.run(settings, out=out, draw=False, backend=dealt_backend(self.dealer))

    def process_of(self, worker: RayWorker) -> int:
        return int(self._call(worker, lambda actor: os.getpid()))

    def is_on_second_node(self, worker: RayWorker) -> bool:
        import ray

        node = self._call(worker, lambda actor: ray.get_runtime_context().get_node_id())
        return bool(node == self._second.node_id)

    def _call(self, worker: RayWorker, function: Callable[[Any], Any]) -> Any:
        import ray

        return ray.get(worker._actor.__ray_call__.remote(function))

    def kill_second_node(self) -> None:
        self._nodes.remove_node(self._second, allow_graceful=False)

    def close(self) -> None:
        try:
            if self.cluster is not None:
                self.cluster.close()
        finally:
            self._nodes.shutdown()
            shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    try:
        yield made
    finally:
        made.close()


def here(settings: dict[str, Any], out: Path) -> digests.Digests:
    return digests.of_run(fedskew.run(settings, out=out, draw=False))


def wait_for(worker: RayWorker) -> None:
    """A worker that starts again refuses even to say so."""
    until = time.monotonic() + 180
    while (error := worker.ready().exception(180)) is not None:
        assert isinstance(error, Lost)
        assert time.monotonic() < until
        time.sleep(0.1)


@pytest.mark.parametrize("name", ["fedshibu", "scaffold with momentum"])
def test_a_run_on_two_nodes_ends_with_the_bits_of_one_process(
    name: str, cluster: Cluster, tmp_path: Path
) -> None:
    settings = digests.CASES[name]
    done = cluster.run(settings, tmp_path / "there")
    assert digests.of_run(done) == here(settings, tmp_path / "here")


def test_whole_runs_on_two_nodes_are_those_of_one_process(cluster: Cluster, tmp_path: Path) -> None:
    """By another process: this one is connected already."""
    code = (
        "import sys, json, fedskew; "
        "fedskew.compare(['fedavg', 'ditto'], json.loads(sys.argv[1]), out=sys.argv[2], jobs=2,"
        " workers=f'ray:{sys.argv[3]}')"
    )
    settings = {**digests.DIGITS, "train": {"rounds": 2}}
    given = [json.dumps(settings), str(tmp_path / "there"), cluster.address]
    subprocess.run([sys.executable, "-c", code, *given], check=True, timeout=300)
    fedskew.compare(["fedavg", "ditto"], settings, out=tmp_path / "here")
    runs = sorted(path.name for path in (tmp_path / "here" / "runs").iterdir())
    assert len(runs) == 4
    for name in runs:
        there, mine = (fedskew.Run(tmp_path / where / "runs" / name) for where in ("there", "here"))
        assert digests.of_run(there) == digests.of_run(mine)


def cpu_seconds(process: int) -> float:
    """The processor time a process has taken, in steps of a hundredth of a second."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Killing:
    """Kills when a worker has begun one more slice; remembers what became of that.

    The worker's process is held until it is killed, and before it has the slice: on a busy machine
    it might be done by then.
    """

    def __init__(
        self, worker: RayWorker, process: int, after: int, kill: Callable[[], None] | None = None
    ) -> None:
        self._submit, self._process, self._left, self._kill = worker.submit, process, after, kill
        self.struck: Future[Parcel] | None = None
        worker.submit = self  # type: ignore[method-assign, assignment]

    def __call__(self, *sent: Any) -> Future[Parcel]:
        self._left -= 1
        if self._left:
            return self._submit(*sent)
        os.kill(self._process, signal.SIGSTOP)
        before = cpu_seconds(self._process)
        self.struck = self._submit(*sent)
        os.kill(self._process, signal.SIGCONT)
        while cpu_seconds(self._process) < before + 0.03:
            time.sleep(0.001)
        os.kill(self._process, signal.SIGSTOP)
        if self._kill is not None:
            self._kill()
        os.kill(self._process, signal.SIGKILL)
        return self.struck


def test_a_worker_killed_in_a_round_costs_time_only(cluster: Cluster, tmp_path: Path) -> None:
    settings = digests.case("scaffold", SLOW)
    # The other node is killed later: its worker must still be there.
    worker, *_ = [each for each in cluster.pool.workers if not cluster.is_on_second_node(each)]
    process = cluster.process_of(worker)
    killing = Killing(worker, process, 2)
    done = cluster.run(settings, tmp_path / "there")
    assert killing.struck is not None
    assert isinstance(killing.struck.exception(), Lost)
    assert digests.of_run(done) == here(settings, tmp_path / "here")
    wait_for(worker)
    assert cluster.process_of(worker) != process


def test_a_node_killed_in_a_round_costs_time_only(cluster: Cluster, tmp_path: Path) -> None:
    settings = digests.case("fedper", SLOW)
    for each in cluster.pool.workers:
        wait_for(each)
    worker, *_ = [each for each in cluster.pool.workers if cluster.is_on_second_node(each)]
    killing = Killing(worker, cluster.process_of(worker), 1, cluster.kill_second_node)
    done = cluster.run(settings, tmp_path / "there")
    assert killing.struck is not None
    assert isinstance(killing.struck.exception(), Lost)
    assert digests.of_run(done) == here(settings, tmp_path / "here")


def in_session(number: int) -> list[int]:
    """The processes that belong to a session: all that a command started, in groups or not."""
    found = []
    for entry in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(ProcessLookupError):
            found += [int(entry)] * (os.getsid(int(entry)) == number)
    return found


COMMAND = [
    sys.executable, "-m", "fedskew", "run", "digits", "--workers", "ray",
    "--set", "train.rounds=3000", "--set", "model=logistic", "--set", "evaluate.every=100",
]  # fmt: skip


def test_a_stopped_command_leaves_nothing_behind(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    temporary = Path(tempfile.mkdtemp(prefix="t-"))
    clean = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    process = subprocess.Popen(
        [*COMMAND, "--out", str(tmp_path / "runs")],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env={**clean, "HOME": str(home), "TMPDIR": str(temporary)},
    )  # fmt: skip
    try:
        while not list(tmp_path.glob("runs/*/checkpoint.json")) and process.poll() is None:
            time.sleep(0.1)
        process.terminate()
        _, said = process.communicate(timeout=300)
        assert process.returncode == 143
        assert "repeat the command to go on" in said
        assert list(home.rglob("*")) == []
        assert list(temporary.glob("*ray*")) == []
        assert in_session(process.pid) == []
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        shutil.rmtree(temporary, ignore_errors=True)


def test_an_address_where_nobody_answers_is_refused_at_once() -> None:
    with pytest.raises(RunError, match="no Ray cluster answers"):
        RayCluster("127.0.0.1:1")
    with pytest.raises(ConfigError, match="write HOST:PORT"):
        RayCluster("here")
