"""``python -m benchmarks.diagnose --out DIR``: how often a diagnosis is right, on real data.

Every federation is a line of DIR/diagnose.jsonl, so that a second start goes on where the first
was stopped; DIR/diagnose.md sums them up.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

from benchmarks.diagnose_parts.jobs import jobs, measured
from benchmarks.diagnose_parts.tell import page
from fedskew.papers.machine import provenance
from fedskew.store import make_folder, write_atomically


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--parts", nargs="*", help="only these sections")
    given = parser.parse_args()
    folder = Path(os.environ["FEDSKEW_DATA"])
    kept = make_folder(given.out) / "diagnose.jsonl"
    lines = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    done = {tuple(line["job"]) for line in lines}
    start = time.process_time()
    with kept.open("a") as file:
        for job in jobs():
            if tuple(job) in done or (given.parts and job.part not in given.parts):
                continue
            line = {"job": job, "found": measured(job, folder)}
            file.write(json.dumps(line) + "\n")
            file.flush()
            lines.append({"job": list(job), "found": line["found"]})
    spent = time.process_time() - start
    text = page(lines, provenance(), spent)
    write_atomically(given.out / "diagnose.md", text.encode())
    print(text)


if __name__ == "__main__":
    main()
