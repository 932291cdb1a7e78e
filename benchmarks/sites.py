"""What a round on real sites costs: seconds by phase, CPU by process, bytes against the models'.

``python -m benchmarks.sites --out results/sites`` starts a server, a proxy and sites as processes
of this machine for each row of the table, and ends them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fedskew.config import make_config
from fedskew.papers.machine import provenance
from fedskew.runs.results import Results
from fedskew.sites import proxy
from fedskew.sites.flower.link import FlowerLink
from fedskew.sites.lab import Lab
from fedskew.sites.programs import Program
from fedskew.sites.run import run_on_sites
from fedskew.sites.trial import small_lab
from fedskew.store import make_folder, save_arrays

TICKS = os.sysconf("SC_CLK_TCK")
LOG = """log_format bytes '$request_length $bytes_sent';
    access_log "{folder}/bytes.log" bytes;"""
TASKS: dict[str, dict[str, Any]] = {
    "logistic, 8 kB": {"sites": 3, "clients": 1, "shape": (203,), "model": "logistic"},
    "mlp, 0.22 MB": {
        "sites": 3, "clients": 1, "shape": (64,),
        "model": {"name": "mlp", "hidden": [200, 200]},
    },
    "mlp, 0.9 MB": {
        "sites": 3, "clients": 1, "shape": (784,),
        "model": {"name": "mlp", "hidden": [256, 100]},
    },
    "ResNet-18, 45 MB": {
        "sites": 3, "clients": 1, "shape": (16, 16, 3), "model": "resnet18", "rows": 16,
    },
    "logistic, 8 kB, 10 × 20": {
        "sites": 10, "clients": 20, "shape": (203,), "model": "logistic",
    },
    "mlp, 0.9 MB, 10 × 20": {
        "sites": 10, "clients": 20, "shape": (784,),
        "model": {"name": "mlp", "hidden": [256, 100]},
    },
}  # fmt: skip


class TimedLink(FlowerLink):
    """Notes when messages were sent and when the last reply was there, of each exchange."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.exchanges: list[dict[str, float]] = []

    def exchange(self, messages: Mapping[str, bytes]) -> dict[str, bytes | str]:
        begun = time.monotonic()
        self._push = 0.0
        replies = super().exchange(messages)
        lengths = [len(each) for each in replies.values() if not isinstance(each, str)]
        self.exchanges.append(
            {
                "at": begun,
                "seconds": time.monotonic() - begun,
                "push": self._push,
                "down": sum(map(len, messages.values())),
                "up": sum(lengths),
            }
        )
        return replies

    def _pushed(self, messages: Mapping[str, tuple[int, bytes]]) -> dict[str, str]:
        begun = time.monotonic()
        numbers = super()._pushed(messages)
        self._push += time.monotonic() - begun
        return numbers


def cpu(process: int) -> float:
    """Seconds of processor time that a process and its children have used."""
    words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, words[11:15])) / TICKS


def children(process: int) -> list[int]:
    return [int(c) for c in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def write_data(folder: Path, task: Mapping[str, Any]) -> dict[str, Path]:
    """Random samples of ten classes for every client."""
    rng = np.random.default_rng(0)
    rows, found = int(task.get("rows", 40)), {}
    for site in range(task["sites"]):
        count = rows * task["clients"]
        shape = task["shape"]
        x = rng.random((count, *shape)).astype(np.float32)
        y = np.tile(np.arange(10), -(-count // 10))[:count].astype(np.int64)
        owner = np.repeat(np.arange(task["clients"]), rows)
        names = np.array([f"c{site:02d}-{k:02d}" for k in range(task["clients"])])
        path = make_folder(folder) / f"site-{site:02d}.npz"
        save_arrays(path, {"x": x, "y": y, "owner": owner, "owner_names": names})
        found[f"site-{site:02d}"] = path
    return found


def measure(name: str, rounds: int) -> dict[str, Any]:
    """One row of the table."""
    task = TASKS[name]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        data = write_data(folder / "data", task)
        config = make_config(
            {
                "method": "fedavg", "model": task["model"],
                "federation": {"normalise": "unit"},
                "train": {"rounds": rounds, "lr": 0.01, "batch_size": 16},
            }
        )  # fmt: skip
        with counting_bytes(), small_lab(folder, data, quiet) as (lab, programs):
            return _measured(name, task, config, lab, folder, programs, rounds)


def _measured(
    name: str, task: Mapping[str, Any], config: Any, lab: Lab, folder: Path,
    programs: Sequence[Program], rounds: int,
) -> dict[str, Any]:  # fmt: skip
    processes = {each.name: each.process.pid for each in programs if each.process}
    marks: list[dict[str, float]] = []

    def watch(*_: Any) -> None:
        used = {n: sum(cpu(p) for p in (pid, *children(pid))) for n, pid in processes.items()}
        marks.append({"at": time.monotonic(), "server": time.process_time(), **used})

    link = TimedLink(lab.link_address, lab.authority, lab.sites())
    with link:
        done = run_on_sites(config, link, folder / "runs", watch)
    worked = [_seconds_at(folder / site) for site in lab.sites()]
    sent = Results(done.path, whole=True).records[-1]
    # The first rounds trace; the last message only scores.
    first, last = 2, rounds - 1
    spans = [b["at"] - a["at"] for a, b in zip(marks[first:], marks[first + 1 :], strict=False)]
    steady = [e for e in link.exchanges if marks[first]["at"] <= e["at"] < marks[last]["at"]]
    used = {n: (marks[last][n] - marks[first][n]) / (last - first) for n in marks[0] if n != "at"}
    sites = [value for n, value in used.items() if n.startswith("site ")]
    middle = steady[len(steady) // 2]
    site_seconds = statistics.median(
        max(seconds[number] for seconds in worked) for number in range(first + 1, rounds)
    )
    return {
        "task": name,
        "sites": task["sites"],
        "clients": task["sites"] * task["clients"],
        "seconds": statistics.median(spans),
        "push": statistics.median(e["push"] for e in steady),
        "at the sites": site_seconds,
        "on the way": statistics.median(e["seconds"] - e["push"] for e in steady) - site_seconds,
        "own": statistics.median(spans) - statistics.median(e["seconds"] for e in steady),
        "cpu": sum(used.values()),
        "cpu SuperLink": used["SuperLink"],
        "cpu nginx": used.get("nginx", 0.0),
        "cpu server": used["server"],
        "cpu a site": statistics.mean(sites),
        "bytes": middle["down"] + middle["up"],
        "theory": task["sites"] * sent.bytes_down / (task["sites"] * task["clients"])
        + sent.bytes_up,
        # All rounds train alike; of the other messages only the bodies are subtracted.
        "network": _network(lab, link) + middle["down"] + middle["up"],
        "messages": len(link.exchanges),
    }


def _seconds_at(site: Path) -> list[float]:
    """How long each message of training took at a site."""
    lines = [json.loads(line) for line in (site / "audit.jsonl").read_text().splitlines()]
    return [line["seconds"] for line in lines if "parameters" in line["fields"]]


def _network(lab: Lab, link: TimedLink) -> float:
    """Bytes through the proxy beyond those of messages, for each exchange."""
    path = lab.folder / "link" / "bytes.log"
    if not path.is_file():
        return float("nan")
    passed = sum(int(word) for line in path.read_text().splitlines() for word in line.split())
    told = sum(each["down"] + each["up"] for each in link.exchanges)
    return (passed - told) / len(link.exchanges)


@contextmanager
def counting_bytes() -> Iterator[None]:
    """Let nginx write down how many bytes pass it."""
    before = proxy.CONFIG
    proxy.CONFIG = before.replace("access_log off;", LOG)
    try:
        yield
    finally:
        proxy.CONFIG = before


def quiet(sentence: str) -> None:
    pass


def table(rows: list[dict[str, Any]]) -> str:
    head = (
        "| task | s a round | sending | at sites | on the way | server | CPU s a round | SuperLink "
        "| nginx | server | a site | MB a round | over the models' own | over, through the proxy |"
    )
    lines = [head, "|" + "---|" * 14]
    for r in rows:
        over = r["bytes"] / r["theory"] - 1
        lines.append(
            f"| {r['task']} | {r['seconds']:.2f} | {r['push']:.2f} | {r['at the sites']:.2f} "
            f"| {r['on the way']:.2f} | {r['own']:.2f} | {r['cpu']:.2f} "
            f"| {r['cpu SuperLink']:.2f} | {r['cpu nginx']:.2f} | {r['cpu server']:.2f} "
            f"| {r['cpu a site']:.2f} | {r['bytes'] / 1e6:.3f} | {over:.1%} |"
            f" {r['network'] / r['theory'] - 1:.1%} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/sites"))
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--tasks", nargs="*", default=list(TASKS))
    given = parser.parse_args()
    rows = []
    for name in given.tasks:
        rows.append(measure(name, given.rounds))
        print(json.dumps(rows[-1]), flush=True)
        make_folder(given.out)
        (given.out / "sites.json").write_text(json.dumps(rows, indent=1))
    here = provenance()
    made = (
        f"fedskew {here.code}; {here.processor}, {here.cores} cores, {here.arithmetic}; load "
        f"{os.getloadavg()[0]:.1f} at the end; {time.strftime('%Y-%m-%d %H:%M', time.gmtime())} UTC"
    )
    (given.out / "sites.md").write_text(f"{table(rows)}\n\n{made}\n")
    print((given.out / "sites.md").read_text())


if __name__ == "__main__":
    main()
