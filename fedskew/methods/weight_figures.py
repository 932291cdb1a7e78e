"""The figures of a run with sample weights: effective share, spread, and accuracy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedskew.canvas import (
    BLACK,
    BLUE,
    BLUES,
    FEW_CLIENTS,
    GREY,
    ORANGE,
    PALE,
    PALETTE,
    Picture,
    Table,
    blank_figure,
    clean,
    grid,
    numbers,
    short,
)
from fedskew.parts.finding import Arrays
from fedskew.parts.sample_weights import ALL_EQUAL, FINE, NOT_FINITE, TOO_FEW
from fedskew.rng import thinned

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

QUANTILES = {"least": 0.0, "q05": 0.05, "q25": 0.25, "median": 0.5, "q75": 0.75, "q95": 0.95,
             "most": 1.0}  # fmt: skip
POINTS = 3000
"""The most samples in a scatter plot; more would only blacken it."""
FEW_COLOURS = len(PALETTE)
"""Up to this number of clients, each has a colour of its own."""

TROUBLES = {
    NOT_FINITE: "their estimates were not finite",
    TOO_FEW: "they have too few samples to estimate from",
    ALL_EQUAL: "no difference to everybody's data was found or asked for",
}
"""Why all samples of a client have the same weight."""


def weight_pictures(
    entries: Mapping[str, Any], arrays: Arrays, result: Mapping[str, Any]
) -> Iterator[Picture]:
    """The figures of a run with sample weights; none if the arrays stay at the clients."""
    if not arrays:
        return
    method = str(result["method"])
    spread = spread_table(entries, arrays)
    yield Picture("sample-weights", spread, lambda: spread_of(spread, method))
    points = ratio_table(entries, arrays, int(result["seed"]))
    yield Picture("density-ratios", points, lambda: ratios(points, entries, method))


def weight_lines(by_client: Mapping[str, Any]) -> list[str]:
    """The effective share of the clients' samples, what the weights leak, and their accuracy."""
    shares = {client: entry["effective"] / entry["n"] for client, entry in by_client.items()}
    worst = min(shares, key=lambda client: shares[client])
    lines = [
        f"sample weights of {_clients(len(by_client))} leave {median(shares.values()):.0%} of the "
        f"samples effective in the median, {shares[worst]:.0%} at worst ({worst})"
    ]
    fell = Counter(entry["trouble"] for entry in by_client.values())
    del fell[FINE]
    for code, count in sorted(fell.items()):
        lines.append(f"  equal at {_clients(count)}: {TROUBLES[code]}")
    leaks = {client: entry["leak"] for client, entry in by_client.items() if entry["leak"]}
    if leaks:
        most = max(leaks, key=lambda client: float(leaks[client]["bits"]))
        lines.append(
            "  privacy: a draw from everybody's density tells of a client's sample at most "
            f"{median(leak['bits'] for leak in leaks.values()):.3g} bits in the median, "
            f"{leaks[most]['bits']:.3g} at most ({most}, who holds {leaks[most]['share']:.1%} of "
            "the training samples)"
        )
    return ["", *lines, *_truth(by_client)]


def _truth(by_client: Mapping[str, Any]) -> list[str]:
    """How the weights agree with the true ones, if these are known."""
    found = {client: entry["truth"] for client, entry in by_client.items() if "truth" in entry}
    if not found:
        return []
    best = median(truth["effective"] / by_client[client]["n"] for client, truth in found.items())
    true = f"true weights would leave {best:.0%} effective"
    known = {client: truth for client, truth in found.items() if truth["pearson"] is not None}
    if not known:
        return [f"  truth: no client's weights vary together with it; {true}"]
    worst = min(known, key=lambda client: float(known[client]["pearson"]))
    middle = {
        name: median(truth[name] for truth in known.values())
        for name in ("pearson", "spearman", "slope")
    }
    return [
        f"  truth: log weights correlate {middle['pearson']:.2f} with it in the median of "
        f"{_clients(len(known))} (ranks {middle['spearman']:.2f}, slope {middle['slope']:.2f}), "
        f"{known[worst]['pearson']:.2f} at worst ({worst}); {true}"
    ]


def _clients(count: int) -> str:
    return f"{count} client{'s' if count > 1 else ''}"


def spread_table(entries: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Table:
    """Each client's effective share of its samples and quantiles of its weights, lowest first."""
    table: Table = []
    by_client = _by_client(arrays)
    for client, entry in entries.items():
        found = np.quantile(by_client[client], list(QUANTILES.values())).tolist()
        best = entry.get("truth", {}).get("effective")
        table.append(
            {
                "client": client,
                "samples": entry["n"],
                "effective_share": entry["effective"] / entry["n"],
                "true_effective_share": None if best is None else best / entry["n"],
                "fell_back": entry["trouble"] != FINE,
                **dict(zip(QUANTILES, found, strict=True)),
            }
        )
    return sorted(table, key=lambda line: float(line["effective_share"]))


def _by_client(arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[np.float64]]:
    """Each client's weights, in one pass however many clients there are."""
    names, place = np.unique(arrays["client"], return_inverse=True)
    weights = arrays["weight"][np.argsort(place, kind="stable")].astype(np.float64)
    parts = np.split(weights, np.cumsum(np.bincount(place))[:-1])
    return dict(zip(names.tolist(), parts, strict=True))


def ratio_table(entries: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], seed: int) -> Table:
    """Some samples' estimated log weights and true log ratios; empty if the truth is unknown."""
    weight, truth = arrays["weight"].astype(np.float64), arrays["truth"].astype(np.float64)
    known = np.flatnonzero((weight > 0) & np.isfinite(truth))
    return [
        {
            "client": client,
            "row": int(arrays["row"][at]),
            "log_weight": float(np.log(weight[at])),
            "true_log_ratio": float(truth[at]),
            "fell_back": entries[client]["trouble"] != FINE,
        }
        for at in thinned(known, POINTS, seed, "sample weights")
        for client in [str(arrays["client"][at])]
    ]


def spread_of(table: Table, method: str) -> Figure:
    """Above, the effective share of each client's samples; below, the spread of its weights."""
    figure = blank_figure(9, 5.6)
    top, bottom = figure.subplots(2, 1, sharex=True)
    place, few = np.arange(len(table)), len(table) <= FEW_CLIENTS
    _effective_shares(top, table, place, 0.8 if few else 1.0)
    _bands(bottom, table, place, 0.8 if few else 1.0)
    if few:
        names = [short(str(line["client"])) for line in table]
        bottom.set_xticks(place, names, rotation=45, ha="right", fontsize=7)
    else:
        bottom.set_xlabel(f"{len(table)} clients, lowest effective share first")
    bottom.set_xlim(-0.6, len(table) - 0.4)
    for axes in (top, bottom):
        clean(axes)
        # Beside the axes: bars may fill all of them.
        axes.legend(fontsize=7, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.suptitle(f"{method}: sample weights of every client", fontsize=11)
    return figure


def _effective_shares(axes: Axes, table: Table, place: NDArray[np.int64], width: float) -> None:
    from matplotlib.ticker import PercentFormatter

    shares = numbers(table, "effective_share")
    fell = np.array([bool(line["fell_back"]) for line in table])
    for chosen, colour, label in (
        (~fell, BLUES[2], "estimated"),
        (fell, PALE, "fell back to ones"),
    ):
        if chosen.any():
            _blocks(axes, place, np.zeros(len(place)), np.where(chosen, shares, np.nan), width,
                    colour, label)  # fmt: skip
    best = numbers(table, "true_effective_share")
    if not np.isnan(best).all():
        axes.scatter(place, best, s=18 if width < 1 else 5, color=ORANGE, zorder=3,
                     label="true weights")  # fmt: skip
    middle = float(np.median(shares))
    axes.axhline(middle, color=BLACK, lw=1, ls="--", label=f"median {middle:.0%}")
    axes.set_ylim(0, 1.03)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_ylabel("effective share\nof samples")


def _bands(axes: Axes, table: Table, place: NDArray[np.int64], width: float) -> None:
    """Bars from quantile to quantile, on a logarithmic scale: half and double look alike."""
    at = {name: numbers(table, name) for name in QUANTILES}
    for low, high, colour, label in (
        ("least", "most", BLUES[0], "all weights"),
        ("q05", "q95", BLUES[1], "middle 90%"),
        ("q25", "q75", BLUES[2], "middle half"),
    ):
        _blocks(axes, place, at[low], at[high], width, colour, label)
    axes.hlines(at["median"], place - width / 2, place + width / 2, color=BLACK, lw=1.2,
                label="median")  # fmt: skip
    axes.axhline(1.0, color=GREY, lw=0.8, ls=":", label="mean of each client")
    axes.set_yscale("log")
    # If all weights are equal, the figure must not magnify rounding noise.
    least = float(np.min(at["least"], where=at["least"] > 0, initial=1.0))
    axes.set_ylim(min(0.5, 0.8 * least), max(2.0, 1.25 * float(at["most"].max())))
    axes.set_ylabel("weight")


def _blocks(
    axes: Axes,
    place: NDArray[np.int64],
    low: NDArray[np.float64],
    high: NDArray[np.float64],
    width: float,
    colour: str,
    label: str,
) -> None:
    """A block for each client from low to high, none if that is NaN."""
    if width < 1:
        shown = ~np.isnan(high)
        axes.bar(place[shown], (high - low)[shown], bottom=low[shown], width=width, color=colour,
                 lw=0, label=label)  # fmt: skip
        return
    # Thousands of bars take seconds to draw; as one shape they take no time.
    edges = np.append(place, len(place)) - 0.5
    axes.stairs(high, edges, baseline=low, fill=True, color=colour, lw=0, label=label)


def ratios(table: Table, entries: Mapping[str, Any], method: str) -> Figure:
    """True log ratios over estimated log weights, sample by sample; on the line all is right."""
    figure = blank_figure(6.4, 4.8)
    axes = figure.subplots()
    clients = list(dict.fromkeys(str(line["client"]) for line in table))
    fell = [line for line in table if line["fell_back"]]
    groups = [("fell back to ones", GREY, fell)] if fell else []
    judged = [line for line in table if not line["fell_back"]]
    if len(clients) <= FEW_COLOURS:
        for client, colour in zip(clients, PALETTE, strict=False):
            groups.append((short(client), colour, [p for p in judged if p["client"] == client]))
    else:
        count = sum(entry["trouble"] == FINE for entry in entries.values())
        groups.append((f"samples of {count} clients", BLUE, judged))
    for label, colour, own in groups:
        if own:
            axes.scatter(numbers(own, "log_weight"), numbers(own, "true_log_ratio"), s=7, lw=0,
                         color=colour, alpha=0.45, label=label)  # fmt: skip
    both = np.concatenate([numbers(table, "log_weight"), numbers(table, "true_log_ratio")])
    ends = [float(both.min()), float(both.max())]
    axes.plot(ends, ends, color=BLACK, lw=1, ls="--", label="as they should be")
    axes.set_xlabel("log of the estimated weight (mean weight 1 at each client)")
    axes.set_ylabel("true log p(x)/q_k(x)")
    grid(axes)
    axes.legend(fontsize=7, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5),
                markerscale=2)  # fmt: skip
    axes.set_title(f"{method}: estimated and true weights{_agreement(entries)}", fontsize=10)
    return figure


def _agreement(entries: Mapping[str, Any]) -> str:
    found = [entry.get("truth", {}).get("pearson") for entry in entries.values()]
    known = [value for value in found if value is not None]
    return f" (median correlation {np.median(known):.2f})" if known else ""
