"""``python benchmarks/similarity.py``: what the client representation similarity matrix measures,
costs, reveals and withstands; writes docs/results/similarity.md."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

ROOT = Path(__file__).resolve().parents[1]
if not __package__:
    # Started as a file, Python looks for modules beside it and not in the project.
    sys.path[0] = str(ROOT)

import torch  # noqa: E402

from benchmarks.similarity_parts import bodies, forge, scale, sent, synthetic  # noqa: E402
from benchmarks.similarity_parts.plan import Numbers, Plan  # noqa: E402
from fedskew.errors import FedskewError  # noqa: E402
from fedskew.papers.machine import provenance  # noqa: E402
from fedskew.papers.page import table  # noqa: E402
from fedskew.store import read_json, write_atomically  # noqa: E402

SECTIONS = {
    "own": "Own samples measure nothing",
    "sent": "What is sent",
    "scale": "How it scales",
    "forge": "A client that forges its fingerprint",
}
FIGURES = "figures/similarity"
OPENING = (
    "FedSHIBU and its relatives weigh clients by how alike their bodies see the world: each sends "
    "a *fingerprint*, a centred, normalised kernel matrix of its body's output, and the products "
    "of all fingerprints are the client representation similarity matrix. This page asks what "
    "that number measures, what sending it costs and gives away, how far it scales, and what one "
    "dishonest client can do with it."
)


def measure(section: str, plan: Plan) -> Numbers:
    if section == "own":
        return {"synthetic": synthetic.measure(plan), "bodies": bodies.measure(plan)}
    if section == "scale":
        return scale.measure(plan)
    return sent.measure(plan) if section == "sent" else forge.measure(plan)


def tell(section: str, numbers: Numbers) -> list[str]:
    if section == "own":
        return [*synthetic.tell(numbers["synthetic"]), *bodies.tell(numbers["bodies"])]
    if section == "scale":
        return scale.tell(numbers, FIGURES)
    return sent.tell(numbers) if section == "sent" else forge.tell(numbers)


def page(kept: dict[str, Numbers]) -> str:
    """The page from the numbers of all finished sections."""
    parts = ["# The client representation similarity matrix", OPENING,
             "```\npython benchmarks/similarity.py\n```"]  # fmt: skip
    if any(record["quick"] for record in kept.values()):
        parts.append("**Made with `--quick`: the numbers only show that the command works.**")
    for section, title in SECTIONS.items():
        parts.append(f"## {title}")
        known = section in kept
        parts += tell(section, kept[section]["numbers"]) if known else ["Not measured yet."]
    return "\n\n".join([*parts, "## Made with", _made_with(kept)]) + "\n"


def _made_with(kept: dict[str, Numbers]) -> str:
    rows = [
        (SECTIONS[section], record["code"], record["machine"], f"{record['seconds']:.0f} s")
        for section, record in kept.items()
    ]
    rows.append(("all", "", "", f"{sum(record['seconds'] for record in kept.values()):.0f} s"))
    return table(("section", "fedskew", "machine and software", "time"), rows)


def _stamp() -> dict[str, str]:
    made = provenance()
    machine = (
        f"{made.cores} cores, {made.processor}, {made.memory}; Python {made.python}, "
        f"torch {made.arithmetic['torch']}"
    )
    return {"code": made.code, "machine": machine}


def _sections(text: str) -> list[str]:
    names = [name for name in text.split(",") if name]
    for name in names:
        if name not in SECTIONS:
            raise argparse.ArgumentTypeError(f"there is no section {name!r}: {', '.join(SECTIONS)}")
    return [name for name in SECTIONS if name in names]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the chosen sections, keep their numbers, and write the page from all there are."""
    parser = argparse.ArgumentParser(prog="python benchmarks/similarity.py", description=__doc__)
    parser.add_argument(
        "--only", type=_sections, default=list(SECTIONS), metavar=",".join(SECTIONS),
        help="sections to measure anew; '' writes the page from the numbers there are",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results")
    parser.add_argument("--quick", action="store_true", help="a smoke run, not a measurement")
    chosen = parser.parse_args(arguments)
    figures: Path = chosen.out / FIGURES
    figures.mkdir(parents=True, exist_ok=True)
    store = figures / "numbers.json"
    kept: dict[str, Numbers] = read_json(store) if store.is_file() else {}
    # Small tensors gain nothing from more threads; the section on scale sets its own.
    torch.set_num_threads(1)
    for section in chosen.only:
        print(f"{section} ...", flush=True)
        begin = perf_counter()
        with tempfile.TemporaryDirectory() as runs:
            numbers = measure(section, Plan(Path(runs), chosen.quick))
        seconds = perf_counter() - begin
        stamp = {"seconds": seconds, "quick": chosen.quick, **_stamp()}
        kept[section] = {"numbers": numbers, **stamp}
        write_atomically(store, (json.dumps(kept, indent=1) + "\n").encode())
    if "scale" in kept:
        scale.draw(kept["scale"]["numbers"], figures)
    text = page({name: kept[name] for name in SECTIONS if name in kept})
    write_atomically(chosen.out / "similarity.md", text.encode())


if __name__ == "__main__":
    try:
        main()
    except FedskewError as error:
        sys.exit(f"error: {error}")
