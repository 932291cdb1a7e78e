"""Commands in processes of their own, killed with SIGKILL at random moments until they are done.

    python tests/fuzz/killing.py SEED KILLS OUT '[["run", "digits"], …]'

Importing torch takes longer than most of these runs, so it is done once, in a process that forks
for every attempt and never computes anything itself. Prints how often it killed, and when.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

Command = list[str]
IMPORTED_ONCE = (
    "fedskew.api", "fedskew.papers.suite", "fedskew.views.terminal", "torch._dynamo",
    "sklearn.datasets", "sklearn.preprocessing", "sklearn.linear_model", "sklearn.manifold",
    "matplotlib.figure", "matplotlib.backends.backend_agg", "matplotlib.tri",
)  # fmt: skip
"""What commands would import each time before they begin."""


def attempt(command: Command, out: Path, after: float | None) -> int | None:
    """The exit code of a command, or None if it had to be killed after so many seconds."""
    child = os.fork()
    if child == 0:
        from fedskew.cli import main

        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        if after is not None:
            os.dup2(silent, 2)
        os._exit(main([*command, "--out", str(out)]))
    ends = None if after is None else time.monotonic() + after
    while ends is None or time.monotonic() < ends:
        done, status = os.waitpid(child, 0 if ends is None else os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def finish(commands: Sequence[Command], out: Path) -> list[float]:
    """Run commands to their ends, undisturbed; how long each took."""
    times = []
    for command in commands:
        begun = time.monotonic()
        code = attempt(command, out, None)
        if code != 0:
            raise SystemExit(f"{command} ended with code {code}")
        times.append(time.monotonic() - begun)
    return times


def moment(out: Path) -> str:
    """Where the kill struck: what is in the folder of the run that was begun or finished last."""
    if list(out.rglob("*.part")):
        return "writing a file"
    configs = sorted(out.rglob("config.json"), key=lambda path: path.stat().st_mtime_ns)
    if not configs:
        return "before a run was begun"
    run = configs[-1].parent
    if (run / "result.json").exists():
        return "after a run was finished"
    return "between rounds" if (run / "checkpoint.json").exists() else "before its first round"


def kill_until_done(
    commands: Sequence[Command], out: Path, times: Sequence[float], kills: int, dice: random.Random
) -> Counter[str]:
    """Kill each command at most so often at random moments, then let it end; counts the kills."""
    killed: Counter[str] = Counter()
    for command, seconds in zip(commands, times, strict=True):
        for _ in range(kills):
            # Long enough to get anywhere from where it stands, short enough to end seldom.
            code = attempt(command, out, dice.uniform(0.0, 0.6 * seconds))
            if code is not None:
                break
            killed[moment(out)] += 1
        else:
            code = attempt(command, out, None)
        if code != 0:
            raise SystemExit(f"{command} ended with code {code} after {killed} kills")
    return killed


def main(seed: str, kills: str, out: str, commands: str) -> None:
    for module in IMPORTED_ONCE:
        import_module(module)
    wanted, folder, chain = int(kills), Path(out), json.loads(commands)
    dice = random.Random(seed)
    times = finish(chain, folder / "whole")
    killed: Counter[str] = Counter()
    number = 0
    while killed.total() < wanted:
        number += 1
        each = -(-(wanted - killed.total()) // len(chain))
        killed += kill_until_done(chain, folder / f"killed-{number}", times, each, dice)
        if number > 10 * wanted:
            raise SystemExit(f"only {killed.total()} of {number} attempts could be killed")
    print(json.dumps({"kills": killed.total(), "chains": number, "moments": killed}))


if __name__ == "__main__":
    main(*sys.argv[1:])
