"""How a client fared while its images turned, as a table, a CSV file and a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from fedskew.canvas import (
    AMBER,
    BLUE,
    GREY,
    ORANGE,
    Picture,
    Table,
    blank_figure,
    draw_line,
    grid,
    numbers,
    save_picture,
)
from fedskew.store import make_folder

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NEVER, ONCE, LOOP, CONTINUED = "never", "once", "loop", "continued"
STRATEGIES: Mapping[str, str] = {
    NEVER: "never adapts",
    ONCE: "adapts once, at the start",
    LOOP: "when unsure, adapts the run's model anew",
    CONTINUED: "when unsure, adapts its own model further",
}
"""What a client may do about change."""


@dataclass(frozen=True)
class Moment:
    """One window of samples, as a client with one strategy answered it.

    ``unsure`` is the share of samples below ``threshold``, ``expected`` the share of validation
    samples that adapted models are unsure of; ``noticed`` says that the first is significantly
    larger. ``before`` is the accuracy of the first answers; ``accuracy`` that of the last ones,
    which come after adapting if it adapted.
    """

    step: int
    angle: float
    strategy: str
    samples: int
    threshold: float
    unsure: float
    expected: float
    noticed: bool
    labels: int
    before: float
    accuracy: float


@dataclass(frozen=True)
class DriftReport:
    """All moments of a client; printed as a table."""

    run: str
    client: str
    shots: int
    adaptation: str
    moments: tuple[Moment, ...]

    def of(self, strategy: str) -> list[Moment]:
        """One strategy's moments, in their order."""
        return [moment for moment in self.moments if moment.strategy == strategy]

    def labels(self, strategy: str) -> int:
        """How many labels a strategy asked for."""
        return sum(moment.labels for moment in self.of(strategy))

    def accuracy(self, strategy: str) -> float:
        """The mean over all windows."""
        return fmean(moment.accuracy for moment in self.of(strategy))

    def __str__(self) -> str:
        windows = list(zip(*(self.of(name) for name in STRATEGIES), strict=True))
        loop = list(STRATEGIES).index(LOOP)
        lines = [["angle", *STRATEGIES, "unsure", "expected", ""]]
        for window in windows:
            now = window[loop]
            said = f"asks for {now.labels} labels" if now.labels else ""
            lines.append(
                [
                    f"{now.angle:g}",
                    *(f"{moment.accuracy:.3f}" for moment in window),
                    f"{now.unsure:.2f}",
                    f"{now.expected:.2f}",
                    said,
                ]
            )
        lines.append(["mean", *(f"{self.accuracy(name):.3f}" for name in STRATEGIES), "", "", ""])
        lines.append(["labels", *(str(self.labels(name)) for name in STRATEGIES), "", "", ""])
        return "\n".join(
            [
                f"{self.client} of {self.run}: images turn; {self.adaptation}",
                "",
                *_aligned(lines),
                "",
                *(f"{name}: {text}" for name, text in STRATEGIES.items()),
                "unsure, expected: shares of the loop's samples below the threshold",
            ]
        )

    def table(self) -> Table:
        return [asdict(moment) for moment in self.moments]

    def save(self, out: str | Path) -> Path:
        """Write ``drift.csv`` and ``drift.png``."""
        folder, table = make_folder(Path(out)), self.table()
        title = f"{self.client}, {self.adaptation}"
        save_picture(folder, Picture("drift", table, lambda: drift_figure(table, title)))
        return folder


def _aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    """Columns of numbers, flush right; the remark at the end, flush left."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]) - 1)]
    filled = [
        [*(cell.rjust(width) for cell, width in zip(line, widths, strict=False)), line[-1]]
        for line in lines
    ]
    return ["  ".join(line).rstrip() for line in filled]


LINES = ((GREY, ":"), (AMBER, "--"), (BLUE, "-"), (ORANGE, "-."))
"""Colour and style of each strategy's curve."""
ASKED: dict[str, Any] = {"s": 60, "marker": "^", "edgecolor": "black", "lw": 0.7, "zorder": 3}
"""Style of the marker where a client asks for labels."""


def drift_figure(table: Table, title: str) -> Figure:
    """Accuracy while images turn, one curve per strategy; below, how unsure the client is."""
    figure = blank_figure(9, 5.6)
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1.6))
    angles = list(dict.fromkeys((line["step"], line["angle"]) for line in table))
    for (name, text), (colour, dashes) in zip(STRATEGIES.items(), LINES, strict=True):
        own = [line for line in table if line["strategy"] == name]
        x, accuracy = numbers(own, "step"), numbers(own, "accuracy")
        labels = sum(line["labels"] for line in own)
        label = f"{text} ({accuracy.mean():.3f}, {labels} labels)"
        draw_line(top, x, accuracy, colour, label, dashes)
        asked = np.array([line["labels"] > 0 for line in own])
        top.scatter(x[asked], accuracy[asked], color=colour, **ASKED)
        if name == LOOP:
            before = numbers(own, "before")[asked]
            top.vlines(x[asked], before, accuracy[asked], color=colour, lw=1, alpha=0.6,
                       label="from its first answers")  # fmt: skip
            _draw_unsure(bottom, own, colour)
    top.scatter([], [], color="white", label="asked for labels", **ASKED)
    top.set_ylabel("accuracy")
    top.legend(fontsize=7, frameon=False, loc="upper center", bbox_to_anchor=(0.5, 1.22), ncols=2)
    bottom.set_ylabel("share of samples")
    bottom.set_ylim(0, 1)
    bottom.legend(fontsize=7, frameon=False, loc="upper right", ncols=2)
    bottom.set_xticks([step for step, _ in angles], [f"{angle:g}°" for _, angle in angles])
    bottom.set_xlabel("time: how far images have turned")
    for axes in (top, bottom):
        grid(axes)
    figure.suptitle(
        f"{title}: images that turn, {table[0]['samples']} at a time (mean accuracy, labels)",
        fontsize=10,
    )
    return figure


def _draw_unsure(axes: Axes, table: Table, colour: str) -> None:
    """How many samples the client was unsure of, beside how many it expected to be."""
    x = numbers(table, "step")
    unsure, expected = numbers(table, "unsure"), numbers(table, "expected")
    axes.bar(x, unsure, color=colour, alpha=0.5, width=0.6, label="unsure, at first")
    axes.step(x, expected, where="mid", color="black", lw=1, ls="--", label="expected")
