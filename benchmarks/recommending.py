"""``python -m benchmarks.recommending --out DIR``: how good recommendations are, on real data.

Every method of every full bake-off is a line of DIR/bakeoff.jsonl, so that a second start goes on
where the first was stopped; DIR/recommending.md sums them up.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.recommend_parts.bakeoff import METHODS, kept, lines
from benchmarks.recommend_parts.outcomes import bakeoffs
from benchmarks.recommend_parts.real import compared
from benchmarks.recommend_parts.tell import page
from fedskew.papers.machine import provenance
from fedskew.store import make_folder, write_atomically


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--only-page", action="store_true", help="of what is there already")
    given = parser.parse_args()
    path = make_folder(given.out) / "bakeoff.jsonl"
    if not given.only_page:
        run(path, given.out, given.seeds)
    found = kept(path)
    fulls = bakeoffs(found, METHODS)
    same = list(compared(fulls, given.out))
    text = page(fulls, same, made(found))
    write_atomically(given.out / "recommending.md", text.encode())
    print(text)


def run(path: Path, folder: Path, seeds: int) -> None:
    """Make the lines that are not there yet."""
    done = {(line["case"], line["method"], line["seed"]) for line in kept(path)}
    with path.open("a") as file:
        for line in lines(folder, range(seeds), done):
            file.write(json.dumps(line) + "\n")
            file.flush()
            print(line["case"], line["method"], line["seed"], f"{line['busy']:.1f} s", flush=True)


def made(found: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Where the numbers come from, and what they cost."""
    here = provenance()
    busy = sum(line["busy"] for line in found)
    return [
        ("fedskew", here.code),
        ("machine", f"{here.cores} cores, {here.processor}, {here.memory}, busy"),
        ("software", f"Python {here.python}, torch {here.arithmetic['torch']}"),
        ("full bake-offs", f"{busy / 60:.0f} minutes of one core"),
    ]


if __name__ == "__main__":
    main()
