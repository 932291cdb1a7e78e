"""What clients sent to get somewhere, as bars: ours beside the source's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedskew.canvas import BLACK, BLUE, GREY, grid, save_figure
from fedskew.comparisons.statistics import Interval, interval
from fedskew.papers.effort import efforts
from fedskew.papers.entries import EffortPlan
from fedskew.papers.figure import row_panels
from fedskew.papers.format import Suite
from fedskew.papers.verdict import Results
from fedskew.store import write_csv

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TOO_WIDE = 20
"""Where the largest number is this many times the smallest, short bars would vanish."""
MILLION = 1e6
FIELDS = (
    "setting",
    "arm",
    "seed",
    "prepared_rounds",
    "rounds",
    "reached",
    "parameters",
    "numbers",
    "bytes",
)


def draw_costs(
    suite: Suite, settings: Sequence[str], results: Results, folder: Path
) -> dict[str, Path]:
    """A PNG and a CSV of all settings; nothing where no arm of the suite's [effort] has a cost."""
    plan = suite.effort
    if plan is None:
        return {}
    panels: dict[str, dict[str, Interval]] = {}
    for setting in settings:
        for arm in plan.arms:
            found = interval([e.numbers / MILLION for e in efforts(results, setting, arm)])
            if math.isfinite(found.mean):
                panels.setdefault(setting, {})[arm] = found
    if not panels:
        return {}
    write_csv(folder / "effort.csv", [FIELDS, *_rows(plan, results)])
    save_figure(_figure(suite, plan, panels), folder / "effort.png")
    return {"effort": folder / "effort.png"}


def _rows(plan: EffortPlan, results: Results) -> list[tuple[object, ...]]:
    return [
        (
            setting,
            arm,
            seed,
            e.prepared_rounds,
            e.rounds,
            e.reached,
            e.main.parameters,
            e.numbers,
            e.bytes,
        )
        for (setting, arm, seed), run in results.items()
        if arm in plan.arms and (e := run.effort) is not None
    ]


def _figure(suite: Suite, plan: EffortPlan, panels: Mapping[str, Mapping[str, Interval]]) -> Figure:
    most = max(len(arms) for arms in panels.values())
    figure, shown = row_panels(len(panels), most, below=0.5)
    printed = {
        setting: {
            p.arm: p.numbers / MILLION
            for p in plan.printed
            if p.setting == setting and p.arm in arms
        }
        for setting, arms in panels.items()
    }
    log = any(_too_wide(arms, printed[setting]) for setting, arms in panels.items())
    for axes, (setting, arms) in zip(shown, panels.items(), strict=True):
        _panel(axes, suite, plan, arms, printed[setting])
        axes.set_title(suite.setting(setting).label, fontsize=10)
        if log:
            axes.set_xscale("log")
            every = _positive(arms, printed[setting])
            axes.set_xlim(0.3 * min(every, default=1.0), 2 * max(every, default=1.0))
            axes.xaxis.set_major_formatter("{x:g}")
        else:
            axes.set_xlim(left=0)
    labelled = {
        label: handle
        for axes in shown
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        labelled.values(),
        labelled.keys(),
        loc="outside lower center",
        fontsize=8,
        ncols=3,
        frameon=False,
    )
    return figure


def _positive(arms: Mapping[str, Interval], printed: Mapping[str, float]) -> list[float]:
    return [value for value in (*(f.mean for f in arms.values()), *printed.values()) if value > 0]


def _too_wide(arms: Mapping[str, Interval], printed: Mapping[str, float]) -> bool:
    every = _positive(arms, printed)
    return bool(every) and max(every) > TOO_WIDE * min(every)


def _panel(
    axes: Axes,
    suite: Suite,
    plan: EffortPlan,
    arms: Mapping[str, Interval],
    printed: Mapping[str, float],
) -> None:
    for place, (arm, found) in enumerate(arms.items()):
        contends = arm in plan.contenders
        axes.barh(
            place,
            found.mean,
            height=0.62,
            color=BLUE if contends else GREY,
            alpha=0.8,
            label="contender, to the best baseline's score"
            if contends
            else "baseline, to its own best score",
        )
        if math.isfinite(found.half):
            axes.errorbar(found.mean, place, xerr=found.half, color=BLACK, lw=1, capsize=3)
    if printed:
        places = [list(arms).index(arm) for arm in printed]
        axes.scatter(
            list(printed.values()),
            places,
            s=42,
            facecolors="none",
            edgecolors=BLACK,
            lw=1.4,
            zorder=4,
            label="the source's",
        )
    axes.set_yticks(range(len(arms)), [suite.arm(arm).label for arm in arms], fontsize=8)
    axes.set_ylim(len(arms) - 0.4, -0.6)
    axes.set_xlabel("million numbers a client sends and receives", fontsize=9)
    grid(axes, "x")
