"""The pictures themselves: matplotlib figures from tables, without pyplot's global state."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from fedskew.report.generative import Images

Table = Sequence[dict[str, Any]]

# Okabe and Ito's palette: told apart with any colour vision.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8B6914", "#000000")
DASHES = ("-", "--", "-.", ":")
BLUE, ORANGE, GREY = PALETTE[0], PALETTE[1], "#666666"

FEW_CLIENTS = 40
"""Up to so many clients, each gets a bar and a name of its own."""
FEW_LINES = 20
"""Up to so many clients, lines can be followed."""
FEW_CLASSES = 30
"""Up to so many classes, bubbles are large enough to compare."""


def learning(table: Table, metric: str, selected: int, method: str) -> Figure:
    """Training loss, and the score over rounds with the band from worst to best client."""
    figure = _figure(9, 3.6)
    left, right = figure.subplots(1, 2)
    rounds = _column(table, "round")
    _line(left, rounds, _column(table, "train_loss"), BLUE, "mean over clients")
    left.set_ylabel("training loss")
    mean = _column(table, "test_mean")
    scored = ~np.isnan(mean)
    at = rounds[scored]
    low, high = _column(table, "test_worst")[scored], _column(table, "test_best")[scored]
    right.fill_between(at, low, high, color=BLUE, alpha=0.15, lw=0, label="worst to best client")
    _line(right, at, mean[scored], BLUE, "test, mean over clients")
    validation = _column(table, "validation_mean")
    if not np.isnan(validation).all():
        _line(right, at, validation[scored], ORANGE, "validation, mean over clients", "--")
    right.axvline(selected, color=GREY, lw=1, ls=":", label=f"selected round ({selected})")
    right.set_ylabel(metric)
    _bound(right, metric)
    right.legend(fontsize=8, frameon=False, loc="best")
    for axes in (left, right):
        _rounds_axis(axes)
    figure.suptitle(f"{method}: learning curves")
    return figure


def clients(table: Table, metric: str, selected: int, method: str) -> Figure:
    """Every client's score, lowest first, and where adaptation took it."""
    figure = _figure(9, 3.8)
    axes = figure.subplots()
    values, adapted = _column(table, metric), _column(table, "adapted")
    place = np.arange(len(table))
    few = len(table) <= FEW_CLIENTS
    if few:
        axes.bar(place, values, color=BLUE, alpha=0.75, width=0.8, label="as trained")
        names = [str(line["client"]) for line in table]
        axes.set_xticks(place, names, rotation=45, ha="right", fontsize=7)
    else:
        axes.fill_between(place, values, step="mid", color=BLUE, alpha=0.35, lw=0)
        axes.step(place, values, where="mid", color=BLUE, lw=1.2, label="as trained")
        axes.set_xlabel(f"{len(table)} clients, lowest score first")
    if not np.isnan(adapted).all():
        size = 22 if few else 5
        axes.scatter(place, adapted, s=size, color=ORANGE, zorder=3, label="after fine-tuning")
    mean = float(np.nanmean(values))
    axes.axhline(mean, color="#000000", lw=1, ls="--", label=f"mean {mean:.3f}")
    axes.set_xlim(-0.6, len(table) - 0.4)
    axes.set_ylabel(f"test {metric}")
    _bound(axes, metric)
    axes.legend(fontsize=8, loc="lower right", framealpha=0.9)
    _clean(axes)
    axes.set_title(f"{method}: test {metric} of every client at round {selected}")
    return figure


def partition(table: Table, title: str) -> Figure:
    """Who holds how much of which class: bubbles for a few clients, a heat map for many."""
    classes = [name.removeprefix("class ") for name in table[0] if name.startswith("class ")]
    names = [str(line["client"]) + ("" if line["seen"] else " (unseen)") for line in table]
    counts = np.array([[line[f"class {c}"] for c in classes] for line in table], np.float64)
    few = len(names) <= FEW_CLIENTS
    if not few:
        # Hundreds of columns only show a pattern when like stands beside like.
        counts = counts[np.lexsort((-counts.sum(axis=1), counts.argmax(axis=1)))]
    figure = _figure(9, 2.4 + min(6.0, 0.28 * max(8, len(classes))))
    top, grid = figure.subplots(2, 1, sharex=True, height_ratios=(1, 3.2))
    place = np.arange(len(names))
    top.bar(place, counts.sum(axis=1), color=GREY, width=0.8 if few else 1.0, lw=0)
    top.set_ylabel("samples")
    top.set_title(title)
    _clean(top)
    if few and len(classes) <= FEW_CLASSES:
        _bubbles(grid, counts)
    else:
        _heat(figure, [top, grid], counts)
    if few:
        grid.set_xticks(place, names, rotation=45, ha="right", fontsize=7)
    else:
        grid.set_xlabel(f"{len(names)} clients, ordered by their largest class, then by size")
    shown = range(0, len(classes), max(1, len(classes) // 30))
    grid.set_yticks(list(shown), [_short(classes[i]) for i in shown], fontsize=7)
    grid.set_ylabel("class")
    grid.set_xlim(-0.6, len(names) - 0.4)
    return figure


def _heat(figure: Figure, both: list[Axes], counts: NDArray[np.float64]) -> None:
    # The square root keeps a client's few samples of a class visible beside its many.
    norm = PowerNorm(0.5, vmin=0, vmax=max(1.0, counts.max()))
    heat = both[1].imshow(
        counts.T, aspect="auto", interpolation="nearest", origin="lower", cmap="cividis", norm=norm
    )
    figure.colorbar(heat, ax=both, label="samples of a class", fraction=0.03)


def _bubbles(axes: Axes, counts: NDArray[np.float64]) -> None:
    clients, classes = np.nonzero(counts)
    held = counts[clients, classes]
    # The area tells the count; the largest bubble fills its cell and no more.
    room = min(420.0 / len(counts), 200.0 / counts.shape[1])
    area = (min(room, 22.0) ** 2) * held / counts.max()
    axes.scatter(clients, classes, s=area, color=BLUE, alpha=0.8, lw=0)
    axes.set_ylim(-0.7, counts.shape[1] - 0.3)
    axes.grid(color="#e5e5e5", lw=0.5)
    axes.set_axisbelow(True)
    for count in sorted({int(counts.max()), max(1, int(counts.max() / 4))}):
        size = (min(room, 22.0) ** 2) * count / counts.max()
        axes.scatter([], [], s=size, color=BLUE, alpha=0.8, lw=0, label=f"{count} samples")
    axes.legend(
        fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0), labelspacing=1.2
    )


def weights(table: Table, method: str) -> Figure:
    """Every client's weight in the aggregate, round by round, and its discrepancy beside it.

    A few clients are lines; of many, a heat map shows the heaviest on top. One row a stage.
    """
    stages = list(dict.fromkeys(str(line["stage"]) for line in table))
    told = any(line["discrepancy"] is not None for line in table)
    shown = ["weight", "discrepancy"] if told else ["weight"]
    mean = {
        name: _column([line for line in table if line["client"] == name], "weight").mean()
        for name in dict.fromkeys(str(line["client"]) for line in table)
    }
    names = sorted(mean, key=lambda name: -mean[name])
    few = len(names) <= FEW_LINES
    height = 3.2 if few else 1.4 + 0.13 * min(len(names), 40)
    figure = _figure(9, height * len(stages) + 0.4)
    panels = figure.subplots(len(stages), len(shown), squeeze=False)
    for i, stage in enumerate(stages):
        for axes, metric in zip(panels[i], shown, strict=True):
            own = [line for line in table if line["stage"] == stage]
            rounds, values = _by_client(own, names, metric)
            axes.set_title(f"{metric}, stage {stage}" if len(stages) > 1 else metric, fontsize=10)
            if few:
                labels = [f"{_short(name)}  {mean[name]:.3f}" for name in names]
                _client_lines(axes, rounds, values, labels)
            else:
                _client_heat(figure, axes, rounds, values, names)
    if few:
        handles = panels[0, 0].get_legend_handles_labels()[0]
        figure.legend(
            handles, labels, fontsize=7, frameon=False, loc="outside right upper", handlelength=3,
            title="mean weight", title_fontsize=8,
        )  # fmt: skip
    figure.suptitle(f"{method}: aggregation weights")
    return figure


def _by_client(
    table: Table, names: Sequence[str], metric: str
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The rounds, and a row of numbers a client: NaN where it took no part."""
    rounds = sorted({int(line["round"]) for line in table})
    column, row = ({key: i for i, key in enumerate(keys)} for keys in (rounds, names))
    values = np.full((len(names), len(rounds)), np.nan)
    for line in table:
        if line[metric] is not None:
            values[row[line["client"]], column[line["round"]]] = line[metric]
    return np.array(rounds, float), values


def _client_lines(
    axes: Axes, rounds: NDArray[np.float64], values: NDArray[np.float64], labels: Sequence[str]
) -> None:
    for label, own, (colour, dashes) in zip(labels, values, styles(labels), strict=True):
        _line(axes, rounds, own, colour, label, dashes)
    _rounds_axis(axes)
    # Clients without weight lie on zero, which must not be the picture's very edge.
    axes.set_ylim(bottom=min(-0.03 * axes.get_ylim()[1], axes.get_ylim()[0]))


def _client_heat(
    figure: Figure,
    axes: Axes,
    rounds: NDArray[np.float64],
    values: NDArray[np.float64],
    names: Sequence[str],
) -> None:
    heat = axes.imshow(values, aspect="auto", interpolation="nearest", cmap="cividis")
    figure.colorbar(heat, ax=axes, fraction=0.05)
    ticks = range(0, len(rounds), max(1, len(rounds) // 8))
    axes.set_xticks(list(ticks), [f"{rounds[i]:.0f}" for i in ticks])
    axes.set_xlabel("round (white: took no part)" if np.isnan(values).any() else "round")
    if len(names) <= FEW_CLIENTS:
        axes.set_yticks(range(len(names)), [_short(name) for name in names], fontsize=6)
    else:
        axes.set_ylabel(f"{len(names)} clients, heaviest first")


def encodings(table: Table, title: str) -> Figure:
    """A row of histograms a client, one a latent dimension, and the density they should have."""
    names = list(dict.fromkeys(str(line["client"]) for line in table))
    dimensions = sorted({int(line["dimension"]) for line in table})
    figure = _figure(1.2 + 2.6 * max(2, len(dimensions)), 1.0 + 1.15 * len(names))
    panels = figure.subplots(len(names), len(dimensions), sharex=True, sharey=True, squeeze=False)
    axis = np.linspace(table[0]["from"], -table[0]["from"], 201)
    normal = np.exp(-0.5 * axis**2) / np.sqrt(2 * np.pi)
    for i, name in enumerate(names):
        for axes, dimension in zip(panels[i], dimensions, strict=True):
            own = [r for r in table if r["client"] == name and r["dimension"] == dimension]
            edges = [*_column(own, "from"), own[-1]["to"]]
            axes.stairs(_column(own, "density"), edges, fill=True, color=BLUE, alpha=0.55)
            axes.plot(axis, normal, color=ORANGE, lw=1.2)
            axes.set_title(f"W1 = {own[0]['w1']:.3f}", fontsize=7, loc="right", pad=2)
            axes.tick_params(labelsize=7)
            _clean(axes)
        told = "" if own[0]["recorded"] is None else f"\nrecorded {own[0]['recorded']:.3f}"
        found = f"{_short(name)}\nd = {own[0]['discrepancy']:.3f}{told}"
        panels[i, 0].set_ylabel(found, fontsize=7)
    for axes, dimension in zip(panels[-1], dimensions, strict=True):
        axes.set_xlabel(f"z{dimension}", fontsize=9)
    # A client whose codes all sit in one place must not flatten the others.
    panels[0, 0].set_ylim(0, min(1.5, max(0.45, 1.05 * float(_column(table, "density").max()))))
    figure.suptitle(f"{title}:\ncodes of training samples, and N(0, 1) as a line", fontsize=10)
    return figure


def latent(table: Table, title: str) -> Figure:
    """Test samples where their mean codes are, coloured by class."""
    names = [name for name in table[0] if name.startswith("z")]
    classes = [name for _, name in sorted({(line["label"], str(line["class"])) for line in table})]
    figure = _figure(7, 5)
    axes = figure.subplots()
    looks = [(colour, marker) for marker in "o^sDvPX*" for colour in PALETTE]
    for number, (each, (colour, marker)) in enumerate(zip(classes, cycle(looks), strict=False)):
        own = [line for line in table if line["class"] == each]
        x = _column(own, names[0])
        # A code of one number leaves the other axis to the classes.
        y = _column(own, names[1]) if len(names) > 1 else np.full(len(own), float(number))
        axes.scatter(x, y, s=9, color=colour, marker=marker, alpha=0.6, lw=0, label=_short(each))
    axes.set_xlabel(names[0])
    axes.set_ylabel(names[1] if len(names) > 1 else "class")
    columns = 1 + (len(classes) - 1) // 22
    axes.legend(
        fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0), title="class",
        ncols=columns, markerscale=1.6,
    )  # fmt: skip
    _clean(axes)
    axes.grid(color="#e5e5e5", lw=0.6)
    axes.set_title(f"{title}:\nmean codes of {len(table)} test samples", fontsize=10)
    return figure


def images(panels: Sequence[Images], title: str, stacked: bool) -> Figure:
    """Grids of images, below or beside each other."""
    highs, wides = zip(*(panel.grid.shape[:2] for panel in panels), strict=True)
    wide, high = (max(wides), sum(highs)) if stacked else (sum(wides), max(highs))
    width = 7.0 if 1 < len(panels) <= 3 else 5.5
    margin = 0.3 + 0.07 * min(30, max(len(row) for panel in panels for row in panel.rows))
    figure = _figure(width + margin, width * high / wide + 0.5 + 0.25 * len(panels) * stacked)
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
        axes.set_yticks(places[0], [_short(row, 30) for row in panel.rows], fontsize=7)
        axes.set_xticks(places[1], [_short(name, 10) for name in panel.columns], fontsize=6)
        axes.tick_params(length=0, labeltop=True, labelbottom=False)
        axes.spines[:].set_visible(False)
    figure.suptitle(title, fontsize=10)
    return figure


def compared_learning(table: Table, metric: str) -> Figure:
    """One curve a method, with the deviation over seeds around it."""
    figure = _figure(9, 4.6)
    axes = figure.subplots()
    methods = list(dict.fromkeys(str(line["method"]) for line in table))
    for method, (colour, dashes) in zip(methods, styles(methods), strict=True):
        own = [line for line in table if line["method"] == method]
        rounds, mean, std = (_column(own, name) for name in ("round", "mean", "std"))
        _line(axes, rounds, mean, colour, method, dashes)
        if not np.isnan(std).all():
            axes.fill_between(rounds, mean - std, mean + std, color=colour, alpha=0.15, lw=0)
    axes.set_ylabel(f"test {metric}, mean over clients")
    _rounds_axis(axes)
    several = any(line["std"] is not None for line in table)
    axes.set_title("Learning curves" + (" (bands: ± standard deviation over seeds)" * several))
    axes.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def compared_clients(table: Table, metric: str) -> Figure:
    """How each method's scores spread over clients: a box, and every client as a point."""
    methods = list(dict.fromkeys(str(line["method"]) for line in table))
    groups = [np.array([r[metric] for r in table if r["method"] == m], float) for m in methods]
    figure = _figure(9, 1.6 + 0.5 * len(methods))
    axes = figure.subplots()
    place = np.arange(len(methods))[::-1]
    axes.boxplot(
        groups, positions=list(place), orientation="horizontal", widths=0.55, showfliers=False,
        showmeans=True, manage_ticks=False, medianprops={"color": "#000000"},
        meanprops={"marker": "D", "markersize": 5, "markerfacecolor": ORANGE,
                   "markeredgecolor": "white"},
    )  # fmt: skip
    rng = np.random.default_rng(0)
    for at, values in zip(place, groups, strict=True):
        jitter = at + rng.uniform(-0.18, 0.18, len(values))
        size = 12 if len(values) <= 200 else 3
        axes.scatter(values, jitter, s=size, color=BLUE, alpha=0.45, lw=0, zorder=2)
    axes.set_yticks(place, methods)
    axes.set_ylim(-0.6, len(methods) - 0.4)
    axes.set_xlabel(f"test {metric} of a client (box: quartiles, line: median, diamond: mean)")
    axes.set_title("Scores over clients, best method first")
    _clean(axes)
    axes.grid(axis="x", color="#e5e5e5", lw=0.6)
    return figure


def styles(methods: Sequence[str]) -> list[tuple[str, str]]:
    """A colour and dashes for each method; the references stay grey whatever stands beside them."""
    pairs = ((colour, dashes) for dashes in cycle(DASHES) for colour in PALETTE[:7])
    reference = {"local": (GREY, ":"), "central": ("#000000", "--")}
    return [reference.get(method) or next(pairs) for method in methods]


def _figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _column(table: Table, name: str) -> NDArray[np.float64]:
    return np.array([np.nan if line[name] is None else line[name] for line in table], float)


def _line(
    axes: Axes,
    x: NDArray[np.float64],
    y: NDArray[np.float64],
    colour: str,
    label: str,
    dashes: str = "-",
) -> None:
    marker = "o" if len(x) <= 25 else ""
    axes.plot(x, y, color=colour, ls=dashes, lw=1.6, marker=marker, ms=3, label=label)


def _rounds_axis(axes: Axes) -> None:
    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _clean(axes)
    axes.grid(color="#e5e5e5", lw=0.6)


def _clean(axes: Axes) -> None:
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _bound(axes: Axes, metric: str) -> None:
    if metric == "accuracy":
        axes.set_ylim(0, 1.02)


def _short(name: str, most: int = 16) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"
