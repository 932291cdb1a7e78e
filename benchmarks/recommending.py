"""``python -m benchmarks.recommending --out DIR``: how good recommendations are, on real data.

Every method of every full bake-off is a line of DIR/bakeoff.jsonl, so that a second start goes on
where the first was stopped.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from benchmarks.recommend_parts.bakeoff import kept, lines
from fedskew.store import make_folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=1)
    given = parser.parse_args()
    path = make_folder(given.out) / "bakeoff.jsonl"
    done = {(line["case"], line["method"], line["seed"]) for line in kept(path)}
    with path.open("a") as file:
        for line in lines(given.out, range(given.seeds), done):
            file.write(json.dumps(line) + "\n")
            file.flush()
            print(line["case"], line["method"], line["seed"], f"{line['busy']:.1f} s", flush=True)


if __name__ == "__main__":
    main()
