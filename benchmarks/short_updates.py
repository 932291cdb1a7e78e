"""``python benchmarks/short_updates.py FOLDER …``: what shorter updates cost in accuracy.

Reads the folders that ``fedskew compare`` left (see docs/results/compression.md), holds every
method against the first and seed by seed, prints a table for each folder, and draws one figure.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[1]
if not __package__:
    # Started as a file, Python looks for modules beside it and not in the project.
    sys.path[0] = str(ROOT)

import fedskew  # noqa: E402
from fedskew.canvas import (  # noqa: E402
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    Picture,
    Table,
    blank_figure,
    draw_bars,
    save_picture,
)  # fmt: skip
from fedskew.comparisons.statistics import Interval, holm, interval, p_value, paired  # noqa: E402
from fedskew.errors import FedskewError  # noqa: E402
from fedskew.papers.markdown import table  # noqa: E402
from fedskew.store import make_folder  # noqa: E402

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BASE = "fedavg"
KINDS = {"half": BLUE, "top-k": ORANGE, "top-k without feedback": GREEN}


@dataclass(frozen=True)
class Arm:
    """A method's runs, one a seed: scores at the selected round, and what a client sent."""

    clients: list[float]
    central: list[float]
    kilobytes: float
    """Sent up by a client that took part in a round."""
    seconds: float


def score(run: fedskew.Run, on: str) -> float:
    """The test score of the model of the round that validation data selected."""
    metric = run.result["primary_metric"]
    (found,) = [
        s["mean"]
        for s in run.result["scores"]
        if (s["at"], s["on"], s["split"], s["metric"], s["adapted"])
        == ("selected", on, "test", metric, "none")
    ]
    return float(found)


def arms_in(folder: Path) -> dict[str, Arm]:
    """By method in the order they rank, as the comparison's table names them."""
    found = {}
    with open(folder / "leaderboard.csv", newline="") as file:
        for line in csv.DictReader(file):
            runs = [fedskew.load_run(folder / "runs" / name) for name in line["runs"].split()]
            asked = sum(r.participants for run in runs for r in run.results.records)
            found[line["method"]] = Arm(
                [score(run, "seen") for run in runs],
                [score(run, "central") for run in runs],
                sum(run.result["bytes"]["up"] for run in runs) / asked / 1000,
                sum(float(run.result["seconds"]) for run in runs),
            )
    return found


def points(found: Interval) -> str:
    return f"{100 * found.mean:+.2f} [{100 * found.low:+.2f}, {100 * found.high:+.2f}]"


def chance(p: float) -> str:
    return f"{p:.3f}" if p >= 0.001 else "below 0.001"


def differences(arms: Mapping[str, Arm]) -> dict[str, tuple[Interval, Interval]]:
    """By method, on clients and on the central test set: less what the base has there."""
    base = arms[BASE]
    return {
        name: (paired(arm.clients, base.clients), paired(arm.central, base.central))
        for name, arm in arms.items()
        if name != BASE
    }


def table_of(arms: Mapping[str, Arm]) -> str:
    found = differences(arms)
    corrected = dict(zip(found, holm([p_value(own) for own, _ in found.values()]), strict=True))
    base = arms[BASE]
    lines = []
    for name, arm in sorted(arms.items(), key=lambda item: -item[1].kilobytes):
        own, central = found.get(name, (None, None))
        lines.append(
            (f"`{name}`", f"{arm.kilobytes:.2f}", f"{base.kilobytes / arm.kilobytes:.1f}",
             f"{interval(arm.clients).mean:.3f}", points(own) if own else "–",
             chance(corrected[name]) if own else "–", f"{interval(arm.central).mean:.3f}",
             points(central) if central else "–")
        )  # fmt: skip
    head = ("method", "kB up", "times shorter", "on clients", "less `fedavg`, points", "p (Holm)",
            "central test", "less `fedavg`, points")  # fmt: skip
    return table(head, lines)


def feedback_table(arms: Mapping[str, Arm]) -> str:
    """With what was not sent kept for later, less without, of the same share."""
    lines = []
    for name, without in arms.items():
        twin = name.replace("feedback=False, ", "").replace(" (feedback=False)", "")
        if twin != name:
            own = points(paired(arms[twin].clients, without.clients))
            lines.append((f"`{twin}`", own, points(paired(arms[twin].central, without.central))))
    return table(("with feedback, less without", "on clients, points", "central test"), lines)


def kind_of(name: str) -> str:
    if "half" in name:
        return "half"
    return "top-k without feedback" if "feedback=False" in name else "top-k"


def figure_table(folders: Sequence[Path]) -> Table:
    return [
        {
            "setting": folder.name, "method": name, "kind": kind_of(name),
            "kilobytes": arms[name].kilobytes, "mean": 100 * own.mean, "low": 100 * own.low,
            "high": 100 * own.high,
        }
        for folder in folders
        for arms in [arms_in(folder)]
        for name, (own, _) in differences(arms).items()
    ]  # fmt: skip


def draw(rows: Table) -> Figure:
    """Points lost against what a client sends, for each setting."""
    settings = list(dict.fromkeys(row["setting"] for row in rows))
    figure = blank_figure(4.6 * len(settings), 3.6)
    panels = figure.subplots(1, len(settings), squeeze=False)[0]
    for axes, setting in zip(panels, settings, strict=True):
        for kind, colour in KINDS.items():
            own = sorted(
                (r for r in rows if (r["setting"], r["kind"]) == (setting, kind)),
                key=lambda row: row["kilobytes"],
            )
            half = [row["high"] - row["mean"] for row in own]
            x, y = ([row[column] for row in own] for column in ("kilobytes", "mean"))
            draw_bars(axes, x, y, half, colour, kind)
        axes.axhline(0, color=GREY, lw=0.8)
        axes.set_xscale("log")
        axes.set_title(setting)
        axes.set_xlabel("kB a client sends in a round")
    panels[0].set_ylabel("test accuracy less that of fedavg, points")
    panels[0].legend(frameon=False)
    return figure


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables and draw the figure."""
    parser = argparse.ArgumentParser(prog="python benchmarks/short_updates.py", description=__doc__)
    parser.add_argument("folders", type=Path, nargs="+", help="what fedskew compare left")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "docs" / "results" / "figures", help="for the figure"
    )
    given = parser.parse_args(arguments)
    for folder in given.folders:
        arms = arms_in(folder)
        spent = sum(arm.seconds for arm in arms.values()) / 60
        print(f"## {folder.name}\n\n{table_of(arms)}\n\n{feedback_table(arms)}\n")
        print(f"{spent:.1f} min of runs\n")
    rows = figure_table(given.folders)
    save_picture(make_folder(given.out), Picture("compression", rows, lambda: draw(rows)))


if __name__ == "__main__":
    try:
        main()
    except FedskewError as error:
        sys.exit(f"error: {error}")
