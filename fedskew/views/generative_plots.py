"""The pictures of autoencoders: matplotlib figures of codes and of images."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedskew.views.canvas import BLUE, ORANGE, PALETTE, Table, blank_figure, clean, numbers, short
from fedskew.views.images import Images

LOOKS = [(colour, marker) for marker in "o^sDvPX*" for colour in PALETTE]
VIEWS = (("t-SNE 1", "t-SNE 2"), ("PCA 1", "PCA 2"), ("z1", "z2"))


def encodings(table: Table, title: str) -> Figure:
    """A row of histograms a client, one a latent dimension, and the density they should have."""
    names = list(dict.fromkeys(str(line["client"]) for line in table))
    dimensions = sorted({int(line["dimension"]) for line in table})
    figure = blank_figure(1.2 + 2.6 * max(2, len(dimensions)), 1.0 + 1.15 * len(names))
    panels = figure.subplots(len(names), len(dimensions), sharex=True, sharey=True, squeeze=False)
    axis = np.linspace(table[0]["from"], -table[0]["from"], 201)
    normal = np.exp(-0.5 * axis**2) / np.sqrt(2 * np.pi)
    for i, name in enumerate(names):
        for axes, dimension in zip(panels[i], dimensions, strict=True):
            own = [r for r in table if r["client"] == name and r["dimension"] == dimension]
            edges = [*numbers(own, "from"), own[-1]["to"]]
            axes.stairs(numbers(own, "density"), edges, fill=True, color=BLUE, alpha=0.55)
            axes.plot(axis, normal, color=ORANGE, lw=1.2)
            axes.set_title(f"W1 = {own[0]['w1']:.3f}", fontsize=7, loc="right", pad=2)
            axes.tick_params(labelsize=7)
            clean(axes)
        told = "" if own[0]["recorded"] is None else f"\nrecorded {own[0]['recorded']:.3f}"
        found = f"{short(name)}\nd = {own[0]['discrepancy']:.3f}{told}"
        panels[i, 0].set_ylabel(found, fontsize=7)
    for axes, dimension in zip(panels[-1], dimensions, strict=True):
        axes.set_xlabel(f"z{dimension}", fontsize=9)
    # A client whose codes all sit in one place must not flatten the others.
    panels[0, 0].set_ylim(0, min(1.5, max(0.45, 1.05 * float(numbers(table, "density").max()))))
    figure.suptitle(f"{title}:\ncodes of training samples, and N(0, 1) as a line", fontsize=10)
    return figure


def latent(table: Table, title: str) -> Figure:
    """Test samples where their mean codes are, coloured by class."""
    names = [name for name in table[0] if name.startswith("z")]
    classes = [name for _, name in sorted({(line["label"], str(line["class"])) for line in table})]
    figure = blank_figure(7, 5)
    axes = figure.subplots()
    for number, (each, (colour, marker)) in enumerate(zip(classes, cycle(LOOKS), strict=False)):
        own = [line for line in table if line["class"] == each]
        x = numbers(own, names[0])
        # A code of one number leaves the other axis to the classes.
        y = numbers(own, names[1]) if len(names) > 1 else np.full(len(own), float(number))
        axes.scatter(x, y, s=9, color=colour, marker=marker, alpha=0.6, lw=0, label=short(each))
    axes.set_xlabel(names[0])
    axes.set_ylabel(names[1] if len(names) > 1 else "class")
    columns = 1 + (len(classes) - 1) // 22
    axes.legend(
        fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0), title="class",
        ncols=columns, markerscale=1.6,
    )  # fmt: skip
    clean(axes)
    axes.grid(color="#e5e5e5", lw=0.6)
    axes.set_title(f"{title}:\nmean codes of {len(table)} test samples", fontsize=10)
    return figure


def latent_space(table: Table, title: str) -> Figure:
    """Clients' test samples where their mean codes are: coloured by class, and by client."""
    views = [(a, b) for a, b in VIEWS if a in table[0]]
    figure = blank_figure(11, 0.9 + 4.2 * len(views))
    panels = figure.subplots(len(views), 2, squeeze=False)
    classes = [name for _, name in sorted({(line["label"], str(line["class"])) for line in table})]
    clients = list(dict.fromkeys(str(line["client"]) for line in table if line["coloured"]))
    grey = [line for line in table if not line["coloured"]]
    behind = len({line["client"] for line in grey})
    for row, (a, b) in zip(panels, views, strict=True):
        for axes, kind, names in zip(row, ("class", "client"), (classes, clients), strict=True):
            if kind == "client" and grey:
                label = f"{behind} other{'s' if behind > 1 else ''}"
                _dots(axes, grey, a, b, "#c8c8c8", "o", label)
            for name, (colour, marker) in zip(names, cycle(LOOKS), strict=False):
                own = [r for r in table if r[kind] == name and (kind == "class" or r["coloured"])]
                _dots(axes, own, a, b, colour, marker, short(name))
            axes.set(xlabel=a, ylabel=b if b in table[0] else "class")
            axes.set_title(f"by {kind}", fontsize=9)
            clean(axes)
            axes.grid(color="#e5e5e5", lw=0.6)
    for axes, kind, names in zip(panels[0], ("class", "client"), (classes, clients), strict=True):
        axes.legend(
            fontsize=7, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0), title=kind,
            ncols=1 + (len(names) - 1) // 22, markerscale=1.6, title_fontsize=8,
        )  # fmt: skip
    found = {"classes": table[0]["class_silhouette"], "clients": table[0]["client_silhouette"]}
    told = [f"{kind} {value:.2f}" for kind, value in found.items() if value is not None]
    separation = f"\nsilhouette of the codes: {', '.join(told)}" if told else ""
    figure.suptitle(f"{title}: mean codes of {len(table)} test samples{separation}", fontsize=10)
    return figure


def _dots(axes: Axes, table: Table, a: str, b: str, colour: str, marker: str, label: str) -> None:
    # A code of one number leaves the other axis to the classes.
    x, y = numbers(table, a), numbers(table, b if b in table[0] else "label")
    axes.scatter(x, y, s=14, color=colour, marker=marker, alpha=0.7, lw=0, label=label)


def images(panels: Sequence[Images], title: str, stacked: bool) -> Figure:
    """Grids of images, below or beside each other."""
    highs, wides = zip(*(panel.grid.shape[:2] for panel in panels), strict=True)
    wide, high = (max(wides), sum(highs)) if stacked else (sum(wides), max(highs))
    width = 7.0 if 1 < len(panels) <= 3 else 5.5
    margin = 0.3 + 0.07 * min(30, max(len(row) for panel in panels for row in panel.rows))
    figure = blank_figure(width + margin, width * high / wide + 0.5 + 0.25 * len(panels) * stacked)
    figure.set_layout_engine("compressed")
    shape = (len(panels), 1) if stacked else (1, len(panels))
    for axes, panel in zip(figure.subplots(*shape, squeeze=False).flat, panels, strict=True):
        axes.imshow(panel.grid, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        if not stacked:
            # Beside each other, images have one size: the shorter grid leaves its room empty.
            axes.set_ylim(max(highs) - 0.5, -0.5)
        axes.set_title(panel.title, fontsize=9)
        places = [(np.arange(len(labels)) + 0.5) * (size - 1) / max(1, len(labels))
                  for labels, size in zip(panel[2:], panel.grid.shape, strict=False)]  # fmt: skip
        axes.set_yticks(places[0], [short(row, 30) for row in panel.rows], fontsize=7)
        axes.set_xticks(places[1], [short(name, 10) for name in panel.columns], fontsize=6)
        axes.tick_params(length=0, labeltop=True, labelbottom=False)
        axes.spines[:].set_visible(False)
    figure.suptitle(title, fontsize=10)
    return figure
