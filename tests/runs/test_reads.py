"""How often one command opens the files of a run folder: its numbers at most once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from fedskew.runs.results import CONFIG, METRICS, RESULT, ROUNDS, TIMING

FILES = (METRICS, ROUNDS, TIMING, RESULT, CONFIG)
WATCHER = f"""
import json, sys
from collections import Counter
from pathlib import Path
from fedskew.cli import main

opened = Counter()

def hook(event, arguments):
    if event == "open" and arguments[1] in ("r", "rb") and isinstance(arguments[0], str):
        path = Path(arguments[0])
        if path.name in {FILES!r}:
            opened[f"{{path.parent.name}}/{{path.name}}"] += 1

sys.addaudithook(hook)
found = {{}}
for name, arguments in json.loads(sys.argv[1]):
    if arguments and "*" in arguments[1]:
        (arguments[1],) = map(str, Path().glob(arguments[1]))
    opened.clear()
    assert main(arguments) == 0, name
    found[name] = dict(opened)
Path("opened.json").write_text(json.dumps(found))
"""
QUICK = ["--set", "train.rounds=2", "--set", "model=logistic", "--set", "federation.unseen=2",
         "--set", "evaluate.fine_tune_epochs=1"]  # fmt: skip
COMPARE = ["compare", "--objectives", "erm", "irm", "--aggregators", "fedavg",
           "--leave-out", "1", "--seeds", "2", *QUICK]  # fmt: skip
RUN = "runs/*"
COMMANDS = {
    "run": ["run", "digits", *QUICK],
    "run again": ["run", "digits", *QUICK],
    "show": ["show", RUN],
    "adapt": ["adapt", RUN, "samples.npz", "--out", "adapted"],
    "predict": ["predict", RUN, "samples.npz"],
    "export": ["export", RUN, "--out", "exported"],
    "drift": ["drift", RUN, "--out", "drifted"],
    "compare": COMPARE,
    "compare again": COMPARE,
}
READS_NUMBERS = {"run", "show", "run again", "compare", "compare again"}


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, int]]:
    """By command, how often each file of each run was opened to be read."""
    folder = tmp_path_factory.mktemp("reads")
    x, y = load_digits(return_X_y=True)
    np.savez(folder / "samples.npz", x=x[:60].reshape(-1, 1, 8, 8) / 16, y=y[:60])
    subprocess.run(
        [sys.executable, "-c", WATCHER, json.dumps(list(COMMANDS.items()))],
        cwd=folder, check=True, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    found: dict[str, dict[str, int]] = json.loads((folder / "opened.json").read_text())
    return found


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_opens_each_file_of_a_run_at_most_once(
    command: str, opened: dict[str, dict[str, int]]
) -> None:
    assert opened[command], "the watcher sees what a command opens"
    assert {name: count for name, count in opened[command].items() if count > 1} == {}


@pytest.mark.parametrize("command", COMMANDS)
def test_only_commands_that_tell_numbers_read_them(
    command: str, opened: dict[str, dict[str, int]]
) -> None:
    read = any(Path(name).name == METRICS for name in opened[command])
    assert read == (command in READS_NUMBERS)


def test_a_comparison_reads_every_run_it_ranks(opened: dict[str, dict[str, int]]) -> None:
    # Per seed two pairs, local and central, and each pair once more without a client.
    ran = {Path(name).parent for name in opened["compare again"] if Path(name).name == METRICS}
    assert len(ran) == 2 * (4 + 2)
