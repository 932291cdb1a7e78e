"""``python -m benchmarks.run``: every contender on every workload, side by side, as medians."""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import platform
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks import report
from benchmarks.contenders.gemm import FLOPS
from benchmarks.peers import ensure_peers
from benchmarks.processes import Child, ContenderFailed
from benchmarks.training import flops_per_sample, samples_per_round
from benchmarks.workloads import WORKLOADS, load

MODULES = {
    "fedskew": ["fedskew_engine"],
    "plain-1": ["plain", "1"],
    "plain-default": ["plain"],
    "pfl-1": ["pfl_simulation", "1"],
    "pfl-2": ["pfl_simulation", "2"],
    "flower": ["flower_simulation"],
    "gemm": ["gemm"],
}
PEERS = ("pfl-1", "pfl-2", "flower")
CONTENDERS = [name for name in MODULES if name != "gemm"]
MEMORY_CLIENTS = (100, 1000, 10_000)
MEMORY_ROUNDS = 3


@dataclass(frozen=True)
class Plan:
    """How much is measured, and with which interpreters."""

    repeats: int
    seconds: float
    check_rounds: int | None
    logs: Path
    pythons: dict[str, str]

    def start(self, contender: str, label: str) -> Child:
        module, *arguments = MODULES[contender]
        command = [
            self.pythons[contender],
            "-m",
            f"benchmarks.contenders.{module}",
            *arguments,
        ]
        return Child(command, self.logs / f"{label}-{contender}.log")


def measure_workload(plan: Plan, name: str, contenders: list[str]) -> dict[str, Any]:
    """All contenders on one workload: set up, check that they learn, then repeat in turns."""
    workload, data = WORKLOADS[name], load(name)
    if workload.apart:
        contenders = [contender for contender in contenders if contender not in PEERS]
    result: dict[str, Any] = {
        "flops_per_round": flops_per_sample(workload, data) * samples_per_round(workload, data),
        "clients": len(data.clients),
        "samples_per_round": samples_per_round(workload, data),
        "real_data": data.real,
        "check_rounds": plan.check_rounds or workload.check_rounds,
        "epochs": workload.epochs,
        "contenders": {},
    }
    records = result["contenders"]
    with contextlib.ExitStack() as stack:
        children: dict[str, Child] = {}
        for contender in [*contenders, "gemm"]:
            records[contender] = record = {"train": [], "evaluate": []}
            begin = perf_counter()
            child = stack.enter_context(plan.start(contender, name))
            with _recording_failure(record, contender):
                record["setup"] = child.ask(cmd="setup", workload=name)
                record["startup"] = perf_counter() - begin
                _warm_up(plan, child, record, result["check_rounds"])
                children[contender] = child
        _repeat(plan, children, records)
    return result


def _warm_up(plan: Plan, child: Child, record: dict[str, Any], check_rounds: int) -> None:
    """The rounds that start everything lazily, and the proof that the contender learns."""
    record["first_round"] = child.ask(cmd="train", rounds=1)["seconds"]
    rest = max(check_rounds - 1, 1)
    warm = child.ask(cmd="train", rounds=rest)["seconds"] / rest
    record["check_seconds"] = record["first_round"] + warm * rest
    record["score"] = child.ask(cmd="evaluate")["score"]
    record["rounds_per_repeat"] = max(1, math.ceil(plan.seconds / warm))


def _repeat(plan: Plan, children: dict[str, Child], records: dict[str, Any]) -> None:
    """Back and forth through the contenders, so that a drifting machine favours nobody."""
    for repeat in range(plan.repeats):
        order = list(children) if repeat % 2 == 0 else list(children)[::-1]
        for contender in order:
            record = records[contender]
            if "error" in record:
                continue
            rounds = record["rounds_per_repeat"]
            with _recording_failure(record, contender):
                seconds = children[contender].ask(cmd="train", rounds=rounds)["seconds"]
                record["train"].append(seconds / rounds)
                record["evaluate"].append(children[contender].ask(cmd="evaluate")["seconds"])
    for contender, child in children.items():
        with _recording_failure(records[contender], contender):
            records[contender]["memory"] = child.ask(cmd="memory")["bytes"]


@contextlib.contextmanager
def _recording_failure(record: dict[str, Any], contender: str):
    try:
        yield
    except ContenderFailed as error:
        record["error"] = str(error)
        print(f"  {contender}: {error}", flush=True)


def measure_memory(plan: Plan) -> dict[str, Any]:
    """Resident size of fedskew with the cnn for growing federations, each in a fresh process."""
    rows: dict[str, Any] = {}
    for clients in MEMORY_CLIENTS:
        rows[str(clients)] = record = {}
        with (
            plan.start("fedskew", f"memory-{clients}") as child,
            _recording_failure(record, f"fedskew, {clients} clients"),
        ):
            child.ask(cmd="setup", workload="cnn", clients=clients)
            child.ask(cmd="train", rounds=MEMORY_ROUNDS)
            record["bytes"] = child.ask(cmd="memory")["bytes"]
    return rows


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=CONTENDERS)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("results/bench"))
    parser.add_argument("--quick", action="store_true", help="a smoke run, not a measurement")
    return parser.parse_args()


def _plan(arguments: argparse.Namespace) -> Plan:
    logs = arguments.out / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    pythons = dict.fromkeys(MODULES, sys.executable)
    meet = not all(WORKLOADS[name].apart for name in arguments.workloads)
    if meet and set(arguments.contenders) & set(PEERS):
        pythons.update(dict.fromkeys(PEERS, str(ensure_peers())))
    if arguments.quick:
        return Plan(min(arguments.repeats, 2), 0.05, 2, logs, pythons)
    return Plan(arguments.repeats, 0.3, None, logs, pythons)


def _machine() -> dict[str, Any]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if "model name" in line), "?")
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "load_before": os.getloadavg()[0],
        "gemm_flops": FLOPS,
    }


def main(show: Callable[[str], None] = print) -> None:
    """Run the whole benchmark and write ``bench.json`` and ``bench.md``."""
    arguments = _arguments()
    # A frozen child would outlive a parent that ends without cleaning up.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    folder = os.environ.get("FEDSKEW_DATA")
    if folder:
        # The children run in the project's root, wherever this was started.
        os.environ["FEDSKEW_DATA"] = str(Path(folder).resolve())
    plan = _plan(arguments)
    results: dict[str, Any] = {
        "machine": _machine(),
        "repeats": plan.repeats,
        "quick": arguments.quick,
        "workloads": {},
    }
    for name in arguments.workloads:
        show(f"{name} ...")
        results["workloads"][name] = measure_workload(plan, name, arguments.contenders)
        report.write(results, arguments.out)
    if "fedskew" in arguments.contenders and "cnn" in arguments.workloads:
        show("memory ...")
        results["memory"] = measure_memory(plan)
    show(report.write(results, arguments.out))


if __name__ == "__main__":
    main()
