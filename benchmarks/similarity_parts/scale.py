"""Time and memory of the similarity matrix and of the whole aggregation, by number of clients.

Every measurement is a process of its own (``python -m benchmarks.similarity_parts.scale``), so
that its peak of memory is nobody else's.
"""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path
from statistics import median
from time import perf_counter

import torch

from benchmarks.similarity_parts.plan import Numbers, Plan
from fedskew.canvas import GREY, PALETTE, blank_figure, save_figure
from fedskew.papers.page import table
from fedskew.parts.aggregate import ServerState, Update
from fedskew.parts.mix import ROWS, BySimilarity
from fedskew.parts.similarity import FINGERPRINT, similarities
from fedskew.store import write_atomically

CLIENTS = (100, 300, 1000, 3000, 10_000)
WORK = {
    "matrix": "the matrix alone",
    "all": "aggregation, all neighbours",
    "10": "aggregation, `neighbours = 10`",
}
PROBE, THREADS = 50, 2
NUMBERS = PROBE * (PROBE + 1) // 2
SHAPES = {"weight": (10, 784), "bias": (10,)}
PARAMETERS = 7850
TARGETS = {1000: 1.0, 10_000: 60.0}
ROOT = Path(__file__).resolve().parents[2]
PICTURE = "scale"


def measure(plan: Plan) -> Numbers:
    rows = []
    for clients in CLIENTS[:2] if plan.quick else CLIENTS:
        repeats = 1 if clients >= 10_000 else 3
        for work in WORK:
            command = [sys.executable, "-m", __name__, work, str(clients), str(repeats)]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
            rows.append({"work": work, "clients": clients, **json.loads(done.stdout)})
    return {"rows": rows}


def drawn(clients: int) -> list[Update]:
    """Updates of logistic regressions with random weights and random fingerprints."""
    generator = torch.Generator().manual_seed(0)
    updates = []
    for number in range(clients):
        vector = torch.randn(NUMBERS, generator=generator) + 1.0
        tensors = {n: torch.randn(shape, generator=generator) for n, shape in SHAPES.items()}
        reports = {FINGERPRINT: {"v": vector / vector.norm()}}
        updates.append(Update(f"c{number:05d}", tensors, size=1, steps=1, reports=reports))
    return updates


def crsm(updates: list[Update]) -> float:
    """Every block of the matrix, as the aggregation sees them; something is made of each."""
    prints = torch.stack([update.reports[FINGERPRINT]["v"] for update in updates])
    blocks = (prints[start : start + ROWS] for start in range(0, len(prints), ROWS))
    return max(float(similarities(block, prints)[0, -1]) for block in blocks)


def resident(field: str) -> int:
    """VmRSS (now) or VmHWM (at most, so far) of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def work_once(work: str, updates: list[Update]) -> float:
    """Seconds of one pass; what it made is gone before the next."""
    aggregator = BySimilarity(neighbours=10 if work == "10" else None)
    state = ServerState({name: torch.zeros(shape) for name, shape in SHAPES.items()})
    begin = perf_counter()
    made = crsm(updates) if work == "matrix" else aggregator.aggregate(state, updates, len(updates))
    seconds = perf_counter() - begin
    del made
    return seconds


def in_this_process(work: str, clients: int, repeats: int) -> Numbers:
    torch.set_num_threads(THREADS)
    # What PyTorch allocates once and for all belongs to no number of clients.
    work_once(work, drawn(20))
    before = resident("VmRSS")
    updates = drawn(clients)
    inputs = resident("VmRSS")
    seconds = [work_once(work, updates) for _ in range(repeats)]
    return {"seconds": seconds, "inputs": inputs - before, "peak": resident("VmHWM") - before}


def results_bytes(work: str, clients: int) -> int:
    """What the work must leave: one model per client, or nothing."""
    return 0 if work == "matrix" else clients * PARAMETERS * 4


def tell(numbers: Numbers, pictures: str) -> list[str]:
    rows = []
    for row in numbers["rows"]:
        results = results_bytes(row["work"], row["clients"])
        rest = row["peak"] - row["inputs"] - results
        rows.append(
            (f"{row['clients']:,}", WORK[row["work"]], f"{median(row['seconds']):.3g}",
             *(f"{value / 2**20:.0f}" for value in (row["peak"], row["inputs"], results, rest)))
        )  # fmt: skip
    heads = ("clients", "what", "seconds", "peak, MiB", "of it inputs", "of it results", "the rest")
    largest = max(row["clients"] for row in numbers["rows"])
    about = (
        f"Random fingerprints of a probe of {PROBE} samples ({NUMBERS:,} numbers each) and models "
        f"of {PARAMETERS:,} parameters, {THREADS} threads, every client present. Seconds are the "
        "median of three passes, at 10,000 clients one pass. Memory is how far the resident size "
        "of a fresh process rises above where it stood before the inputs were made."
    )
    why = (
        "Inputs (every client's model and fingerprint) and results (a model of its own for each) "
        "are unavoidable; results are counted, the others measured. The rest is one copy of all "
        "models and fingerprints in rows side by side, so that mixing is one matrix product, and "
        f"the weights and mixed models of a block: the matrix exists only {ROWS} rows at a time. "
        f"Whole, it would take {largest**2 * 4 / 2**20:,.0f} MiB at {largest:,} clients, and "
        "several times that while it is worked on."
    )
    picture = f"![Time and memory by number of clients]({pictures}/{PICTURE}.png)"
    return [about, table(heads, rows), picture, why, _targets(numbers)]


def _targets(numbers: Numbers) -> str:
    rows = []
    for clients, most in TARGETS.items():
        for row in numbers["rows"]:
            if row["clients"] == clients and row["work"] != "matrix":
                seconds = median(row["seconds"])
                verdict = "reached" if seconds < most else "NOT reached"
                target = f"{clients:,} clients under {most:g} s"
                rows.append((target, WORK[row["work"]], f"{seconds:.3g} s", verdict))
    return table(("target", "what", "measured", "verdict"), rows) if rows else "No target was run."


def draw(numbers: Numbers, folder: Path) -> None:
    """Both curves on logarithmic axes, and their numbers as CSV beside them."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("what", "clients", "median_seconds", "peak_bytes", "input_bytes"))
    figure = blank_figure(10, 4)
    left, right = figure.subplots(1, 2)
    for (work, label), colour, mark in zip(
        WORK.items(), PALETTE, ("o-", "s-", "^--"), strict=False
    ):
        rows = [row for row in numbers["rows"] if row["work"] == work]
        clients = [row["clients"] for row in rows]
        seconds = [median(row["seconds"]) for row in rows]
        name = label.replace("`", "")
        left.plot(clients, seconds, mark, color=colour, label=name)
        right.plot(clients, [row["peak"] / 2**20 for row in rows], mark, color=colour, label=name)
        for row, middle in zip(rows, seconds, strict=True):
            writer.writerow((work, row["clients"], middle, row["peak"], row["inputs"]))
    left.plot(
        list(TARGETS), list(TARGETS.values()), marker="_", ms=18, mew=2, ls="", color=GREY,
        label="target",
    )  # fmt: skip
    least = sorted({row["clients"] for row in numbers["rows"]})
    needed = [(clients * (2 * PARAMETERS + NUMBERS) * 4) / 2**20 for clients in least]
    right.plot(least, needed, ls=":", color=GREY, label="models in, models out, fingerprints")
    for axes, what in ((left, "seconds"), (right, "peak memory, MiB")):
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("clients")
        axes.set_ylabel(what)
        axes.grid(alpha=0.3, which="both", lw=0.5)
        axes.legend(fontsize=8, frameon=False)
    figure.suptitle(
        f"{NUMBERS:,} numbers a fingerprint, {PARAMETERS:,} parameters, {THREADS} threads"
    )
    write_atomically(folder / f"{PICTURE}.csv", text.getvalue().encode())
    save_figure(figure, folder / f"{PICTURE}.png")


if __name__ == "__main__":
    _work, _clients, _repeats = sys.argv[1:]
    print(json.dumps(in_this_process(_work, int(_clients), int(_repeats))))
