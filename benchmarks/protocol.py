"""The child's side: JSON commands come in by lines, one JSON answer goes out for each.

    {"cmd": "setup", "workload": NAME, "clients": N or null}  {"versions": {...}, "real_data": ...}
    {"cmd": "train", "rounds": R}                             {"seconds": for all R rounds}
    {"cmd": "evaluate"}                                       {"seconds": ..., "score": ...}
    {"cmd": "memory"}                                         {"bytes": resident, whole tree}
    {"cmd": "quit"}                                           no answer; the child ends

The seconds are taken inside the child around the work itself, so neither start-up nor the pipe
is in them.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

Reply = dict[str, Any]


class Contender(Protocol):
    """What a contender has to do; it keeps its model between the calls."""

    def setup(self, workload: str, clients: int | None) -> Reply:
        """Load the data, build the model and start whatever workers there are."""

    def train_rounds(self, rounds: int) -> None:
        """Run so many further rounds."""

    def evaluate(self) -> float:
        """Score the global model on the test set."""

    def close(self) -> None:
        """Stop the workers."""


def descendants(root: int) -> list[int]:
    """A process and all below it, parents first, from /proc."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            parent = _parent(entry)
            if parent is not None:
                children.setdefault(parent, []).append(int(entry.name))
    found = [root]
    for pid in found:
        found.extend(children.get(pid, []))
    return found


def _parent(entry: Path) -> int | None:
    try:
        # The command name may hold spaces and brackets, so fields are counted after the last one.
        return int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return None


def resident_bytes(root: int) -> int:
    """Resident size of a process and all below it."""
    total = 0
    for pid in descendants(root):
        try:
            total += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        except OSError:
            continue
    return total * os.sysconf("SC_PAGE_SIZE")


def answer(contender: Contender, command: dict[str, Any]) -> Reply:
    """Carry out one command."""
    match command["cmd"]:
        case "setup":
            return contender.setup(command["workload"], command.get("clients"))
        case "train":
            start = perf_counter()
            contender.train_rounds(command["rounds"])
            return {"seconds": perf_counter() - start}
        case "evaluate":
            start = perf_counter()
            value = contender.evaluate()
            return {"seconds": perf_counter() - start, "score": value}
        case "memory":
            return {"bytes": resident_bytes(os.getpid())}
    raise ValueError(f"unknown command {command['cmd']!r}")


def serve(contender: Contender) -> None:
    """Answer commands until told to quit or the pipe closes.

    Answers use a copy of the standard output, which itself then leads to the standard error:
    the peers print there and would otherwise break the protocol.
    """
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    try:
        for line in sys.stdin:
            command = json.loads(line)
            if command["cmd"] == "quit":
                break
            try:
                reply = answer(contender, command)
            except Exception as error:
                traceback.print_exc()
                reply = {"error": f"{type(error).__name__}: {error}"}
            out.write(json.dumps(reply) + "\n")
    finally:
        contender.close()
