"""The pictures of clients on their own: shots, and labels asked for."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from fedskew.federate.confidence import ACCURACY
from fedskew.views.canvas import BLUE, GREY, ORANGE, PALETTE, Table, blank_figure, clean, numbers

COLOURS = {"seen": BLUE, "odd": PALETTE[2], "unseen": ORANGE}


def shots(table: Table, metric: str, title: str) -> Figure:
    """The mean score of clients against how many labels a class they adapted on."""
    figure = blank_figure(6, 3.8)
    axes = figure.subplots()
    # Places, not numbers: 0, 1, 2, 5, 10 and all data stand equally far apart.
    counts = sorted({line["shots"] for line in table if line["shots"] != "all"})
    places = [*counts, *(["all"] if any(line["shots"] == "all" for line in table) else [])]
    for on in dict.fromkeys(str(line["on"]) for line in table):
        own = [line for line in table if line["on"] == on]
        x = np.array([places.index(line["shots"]) for line in own], float)
        mean, std = numbers(own, "mean"), numbers(own, "std")
        colour = COLOURS[on]
        axes.errorbar(x, mean, std, color=colour, alpha=0.35, lw=0, elinewidth=1, capsize=3)
        label = f"{own[0]['clients']} {on} client{'s' if own[0]['clients'] > 1 else ''}, mean"
        axes.plot(x, mean, color=colour, lw=1.6, marker="o", ms=4, label=label)
        axes.plot(x, numbers(own, "worst"), color=colour, lw=1, ls=":", label=f"{on}, worst")
    axes.set_xticks(range(len(places)), [str(place) for place in places])
    axes.set_xlabel("labels a class (0: as trained)")
    axes.set_ylabel(f"test {metric}")
    clean(axes)
    axes.grid(color="#e5e5e5", lw=0.6)
    axes.legend(fontsize=8, frameon=False, loc="best")
    axes.set_title(f"{title}: few-shot adaptation (bars: ± deviation over clients)", fontsize=10)
    return figure


def coverage(table: Table, title: str) -> Figure:
    """Accuracy on answered samples against the share of samples whose labels are asked for."""
    groups = list(dict.fromkeys(str(line["on"]) for line in table))
    names = list(dict.fromkeys(str(line["adapted"]) for line in table))
    figure = blank_figure(1.2 + 4.4 * len(groups), 4.1 + 0.08 * len(names))
    panels = figure.subplots(1, len(groups), sharey=True, squeeze=False)[0]
    for axes, on in zip(panels, groups, strict=True):
        for name, colour in zip(names, PALETTE * len(names), strict=False):
            own = [line for line in table if line["on"] == on and line["adapted"] == name]
            if not own:
                continue
            curve = [line for line in own if line["point"] == "curve"]
            label = f"{'as trained' if name == 'none' else name} (AURC {own[0]['aurc']:.3f})"
            axes.plot(numbers(curve, "asked"), numbers(curve, "accuracy"),
                      color=colour, lw=1.6, label=label)  # fmt: skip
            chosen = [line for line in own if line["point"] == "chosen"]
            axes.scatter(numbers(chosen, "asked"), numbers(chosen, "accuracy"), s=110, marker="*",
                         color=colour, edgecolor="black", lw=0.7, zorder=3)  # fmt: skip
        axes.scatter([], [], s=110, marker="*", color="white", edgecolor="black", lw=0.7,
                     label="threshold from validation")  # fmt: skip
        axes.axhline(ACCURACY, color=GREY, lw=1, ls=":", label=f"wished for: {ACCURACY:g}")
        axes.set_title(f"{on} clients", fontsize=9)
        axes.set_xlabel("share of samples asked about")
        axes.set_xlim(-0.02, 1.0)
        clean(axes)
        axes.grid(color="#e5e5e5", lw=0.6)
        # Below: curves may lie anywhere inside.
        axes.legend(fontsize=7, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.16),
                    ncols=2)  # fmt: skip
    panels[0].set_ylabel("accuracy on the others")
    figure.suptitle(f"{title}: asking for labels where the model is unsure", fontsize=10)
    return figure
