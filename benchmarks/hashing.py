"""``python -m benchmarks.hashing``: what hashing files and looking at updates cost a run.

Three runs on digits, one with 1,000 clients that keep private state, two with a model of 45 MB,
with the time spent in the functions that hash, seal and measure; no figures.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from time import perf_counter
from typing import Any
from unittest.mock import patch

import fedskew
from fedskew import store
from fedskew.federate import accepting
from fedskew.runs.logs import Log

RUNS: dict[str, dict[str, Any]] = {
    "1,000 clients with private state": {
        "federation": {"dataset": "digits", "partition": "iid", "clients": 1000, "test": 0.01,
                       "validation": 0.0},
        "method": "fedrep",
        "model": {"name": "mlp", "hidden": [64]},
        "train": {"rounds": 5, "batch_size": 8},
    },
    "a model of 45 MB": {
        "federation": {"dataset": "digits", "partition": "iid", "clients": 10},
        "method": "fedavg",
        "model": {"name": "mlp", "hidden": [3300, 3300]},
        "train": {"rounds": 3, "epochs": 5},
    },
    "the same with one epoch": {
        "federation": {"dataset": "digits", "partition": "iid", "clients": 10},
        "method": "fedavg",
        "model": {"name": "mlp", "hidden": [3300, 3300]},
        "train": {"rounds": 3, "epochs": 1},
    },
}  # fmt: skip
HASHES = {
    "private states and matrices": ("fedskew.runs.checkpoint.sha256_of", store.sha256_of),
    "models at the end": ("fedskew.runs.folder.sha256_of", store.sha256_of),
    "seals": ("fedskew.store._seal", store._seal),
    "checks on loading": ("fedskew.runs.checkpoint.check_sha256", store.check_sha256),
}
WRITING = "writing, hashing aside"
LOOKS = {
    "finiteness": ("fedskew.federate.server.accept", accepting.accept),
    "norms": ("fedskew.federate.server.update_norms", accepting.update_norms),
}


def timed(work: Callable[..., Any], name: str, spent: Counter[str]) -> Callable[..., Any]:
    def clocked(*arguments: Any) -> Any:
        begun = perf_counter()
        try:
            return work(*arguments)
        finally:
            spent[name] += perf_counter() - begun  # type: ignore[assignment]

    return clocked


class TimedHash:
    """A hash of a log that knows how long it takes."""

    def __init__(self, spent: Counter[str]) -> None:
        import hashlib

        made = hashlib.sha256()
        self.update = timed(made.update, "logs", spent)
        self.hexdigest = timed(made.hexdigest, "logs", spent)


def hashed(spent: Counter[str]) -> Callable[..., Any]:
    """Write a file with its hash, and count what that takes longer than writing it."""
    write = store.write_hashed

    def clocked(*arguments: Any) -> Any:
        begun, before = perf_counter(), spent[WRITING]
        found = write(*arguments)
        spent["states"] += perf_counter() - begun - (spent[WRITING] - before)  # type: ignore[assignment]
        return found

    return clocked


def measured(settings: dict[str, Any]) -> tuple[float, Counter[str]]:
    """How long a run took, and how much of it went where."""
    spent: Counter[str] = Counter()
    make = Log.__init__

    def with_clock(self: Log, *arguments: Any) -> None:
        make(self, *arguments)
        self._hash = TimedHash(spent)  # type: ignore[assignment]

    with ExitStack() as stack, tempfile.TemporaryDirectory() as out:
        for name, (place, work) in {**HASHES, **LOOKS}.items():
            stack.enter_context(patch(place, timed(work, name, spent)))
        written = timed(store.write_atomically, WRITING, spent)
        stack.enter_context(patch("fedskew.store.write_hashed", hashed(spent)))
        stack.enter_context(patch("fedskew.store.write_atomically", written))
        stack.enter_context(patch.object(Log, "__init__", with_clock))
        begun = perf_counter()
        fedskew.run(settings, out=out, draw=False)
        return perf_counter() - begun, spent


def main() -> None:
    for name, settings in RUNS.items():
        seconds, spent = measured(settings)
        hashing = sum(spent[each] for each in (*HASHES, "states", "logs"))
        looking = sum(spent[each] for each in LOOKS)
        print(f"{name}: {seconds:.1f} s, hashing {hashing / seconds:.2%}, looking at updates "
              f"{looking / seconds:.2%}")  # fmt: skip
        for each, part in spent.most_common():
            print(f"    {each}: {part:.3f} s")


if __name__ == "__main__":
    main()
