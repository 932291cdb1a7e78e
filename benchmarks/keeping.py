"""``python -m benchmarks.keeping``: what clients win and lose by ``evaluate.keep = "best"``;
writes docs/results/keeping.md."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import fedskew
from benchmarks.keeping_parts.tell import Protocol, page
from benchmarks.keeping_parts.worlds import WORLDS, World, config_of, federation_of
from fedskew.diagnosis.candidates import Judged, candidates
from fedskew.errors import FedskewError
from fedskew.runs.kept import ALONE
from fedskew.store import make_folder, write_atomically, write_json

ROOT = Path(__file__).resolve().parents[1]
LINES = "clients.json"
SIZES = ("few", "many")
"""Of validation samples."""


def measured(
    world: World, few: bool, seed: int, protocol: Protocol, runs: Path
) -> list[dict[str, object]]:
    """A line for every client and method of a federation."""
    federation = federation_of(world, seed, few)
    lines: list[dict[str, object]] = []
    for method in protocol.methods:
        settings = config_of(world, method, seed, protocol.rounds)
        done = fedskew.run(
            settings, out=runs, federation=federation, draw=False, tell=lambda sentence: None
        )
        kept = done.results.kept
        assert kept is not None, "the setting asks for it"
        beside = done.path / kept.beside
        judged = candidates(done.path, beside, federation.problem, kept.chosen_by)
        for each, told in zip(kept.clients, judged, strict=True):
            lines.append(
                {
                    "world": world.name, "few": few, "seed": seed, "method": method,
                    "apart": best_of_other_half(told), **each.model_dump(),
                    "seconds": float(done.result["seconds"]),
                }
            )  # fmt: skip
    return lines


def best_of_other_half(judged: Judged) -> float | None:
    """What an oracle wins that picks by one half of the test samples and is scored on the other.

    One that picks by the samples it is scored on also picks their noise.
    """
    count = len(judged.test[ALONE])
    if count < 2:
        return None
    halves = [np.arange(start, count, 2) for start in (0, 1)]
    won = []
    for here, there in (halves, halves[::-1]):
        best = max(judged.test, key=lambda name: judged.test[name][here].mean())
        won.append(float((judged.test[best] - judged.test[ALONE])[there].mean()))
    return float(np.mean(won))


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the runs, or find them made, and write the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.keeping", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results")
    parser.add_argument(
        "--runs", type=Path, default=ROOT / "results" / "keeping",
        help="folder of the runs; repeat the command to go on",
    )  # fmt: skip
    parser.add_argument("--methods", nargs="+", default=["fedavg", "fedrep"])
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    given = parser.parse_args(arguments)
    protocol = Protocol(tuple(given.methods), given.seeds, given.rounds, tuple(given.sizes))
    path = make_folder(given.runs) / LINES
    found = json.loads(path.read_text()) if path.is_file() else {}
    jobs = [
        (f"{world.name}, {size}, seed {seed}, {protocol.rounds} rounds, {method_list(protocol)}",
         world, size, seed)
        for seed in range(protocol.seeds)
        for world in WORLDS
        for size in protocol.sizes
    ]  # fmt: skip
    for name, world, size, seed in jobs:
        if name not in found:
            found[name] = measured(world, size == "few", seed, protocol, given.runs / "runs")
            write_json(path, found)
            print(name, len(found[name]), flush=True)
        # A page of what there is so far, which says what there is not.
        lines = [line for name, *_ in jobs for line in found.get(name, ())]
        write_atomically(make_folder(given.out) / "keeping.md", page(lines, protocol).encode())


def method_list(protocol: Protocol) -> str:
    return " and ".join(protocol.methods)


if __name__ == "__main__":
    try:
        main()
    except FedskewError as error:
        sys.exit(f"error: {error}")
