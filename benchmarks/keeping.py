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
from benchmarks.keeping_parts.tell import page
from benchmarks.keeping_parts.worlds import METHODS, WORLDS, World, config_of, federation_of
from fedskew.diagnosis.candidates import Judged, candidates
from fedskew.errors import FedskewError
from fedskew.runs.kept import ALONE
from fedskew.store import make_folder, write_atomically, write_json

ROOT = Path(__file__).resolve().parents[1]
LINES = "clients.json"
ROUNDS, SEEDS = 15, 2


def measured(
    world: World, few: bool, seed: int, rounds: int, runs: Path
) -> list[dict[str, object]]:
    """A line for every client and method of a federation."""
    federation = federation_of(world, seed, few)
    lines: list[dict[str, object]] = []
    for method in METHODS:
        done = fedskew.run(
            config_of(world, method, seed, rounds), out=runs, federation=federation, draw=False
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
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--quick", action="store_true", help="a smoke run, not a measurement")
    given = parser.parse_args(arguments)
    rounds, seeds = (2, 1) if given.quick else (ROUNDS, given.seeds)
    path = make_folder(given.runs) / LINES
    found = json.loads(path.read_text()) if path.is_file() else {}
    for seed in range(seeds):
        for world in WORLDS:
            for few in (True, False):
                name = f"{world.name}, {'few' if few else 'many'}, seed {seed}"
                if name not in found:
                    found[name] = measured(world, few, seed, rounds, given.runs / "runs")
                    write_json(path, found)
                    print(name, len(found[name]), flush=True)
    lines = [line for group in found.values() for line in group]
    written = page(lines, rounds, seeds, given.quick)
    write_atomically(make_folder(given.out) / "keeping.md", written.encode())


if __name__ == "__main__":
    try:
        main()
    except FedskewError as error:
        sys.exit(f"error: {error}")
