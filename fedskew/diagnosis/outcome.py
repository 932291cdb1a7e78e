"""A diagnosis on disk and in a terminal: JSON, a table of clients, and one figure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedskew.canvas import (
    BLUE,
    GREY,
    ORANGE,
    PALETTE,
    Picture,
    Table,
    blank_figure,
    clean,
    grid,
    save_picture,
    short,
)
from fedskew.diagnosis.report import Diagnosis
from fedskew.diagnosis.summary import DECLARED
from fedskew.store import make_folder, write_json

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FILE, NAME = "diagnosis.json", "diagnosis"
NAMED = 8
"""So many clients that stand out have their names in the figure and the terminal."""
COLOURS = {"found": ORANGE, "none": BLUE, "cannot tell": GREY}


def write_diagnosis(folder: Path, found: Diagnosis) -> None:
    """The JSON file, and a table of clients beside the figure that shows it."""
    make_folder(folder)
    write_json(folder / FILE, found.to_plain())
    table = clients_table(found)
    save_picture(folder, Picture(NAME, table, lambda: drawn(found, table)))


def clients_table(found: Diagnosis) -> Table:
    """A line a client: its rows, how unlike the others it is, its group, and why it stands out."""
    why: dict[str, list[str]] = {}
    for each in found.standouts:
        why.setdefault(each.client, []).append(each.why)
    return [
        {
            "client": client,
            "rows": found.rows[place],
            "label": found["label"].unlike[place],
            "feature": found["feature"].unlike[place],
            "concept": found["concept"].unlike[place],
            "group": None if found.groups is None else found.groups[place] + 1,
            "stands out": "; ".join(why.get(client, [])),
        }
        for place, client in enumerate(found.clients)
    ]


def said(found: Diagnosis) -> str:
    """The diagnosis as lines of text."""
    width = max(len(each.kind) for each in found.findings)
    lines = [f"{len(found.clients)} clients, {sum(found.rows)} training rows", ""]
    lines += [f"{each.kind:{width}}  {each.words}" for each in found.findings]
    lines += ["", f"gain: {found.gain_words}", f"groups: {found.groups_words}"]
    if found.groups is not None:
        lines += [f"  {number + 1}: {names}" for number, names in enumerate(_members(found))]
    if found.duplicates is None:
        lines.append("duplicates: cannot tell, because hashes of rows are not sent under epsilon")
    for first, second, share in (found.duplicates or ())[:NAMED]:
        lines.append(f"duplicates: {first} and {second} share about {share:.0%} of their rows")
    for each in found.standouts[:NAMED]:
        lines.append(f"stands out: {each.client}: {each.why}")
    if len(found.standouts) > NAMED:
        lines.append(f"stands out: {len(found.standouts) - NAMED} more")
    return "\n".join([*lines, "", sent(found)])


def sent(found: Diagnosis) -> str:
    """What left the clients."""
    each = found.sent / len(found.clients)
    hidden = f"; {found.hidden} classes of fewer than {found.cell} rows at a client were not sent"
    text = f"sent: {found.sent} bytes, {each:.0f} a client{hidden if found.hidden else ''}"
    if not found.noise.is_none:
        kept = f"epsilon {found.noise.epsilon:g} at delta {found.noise.delta:g} for every row"
        text += f"; {kept}, of all that was sent (how inputs were scaled is taken as public)"
    return text


def declared(noised: bool) -> str:
    """What a summary holds, for whoever is asked to send one."""
    return "\n".join(
        f"  {name:9} {text}"
        for name, text in DECLARED.items()
        if not (noised and name in ("hashes", "spread"))
    )


def _members(found: Diagnosis) -> list[str]:
    groups = found.groups or ()
    return [
        ", ".join(c for c, g in zip(found.clients, groups, strict=True) if g == number)
        for number in range(max(groups) + 1)
    ]


def drawn(found: Diagnosis, table: Table) -> Figure:
    """The four scores with intervals, and every client by its labels and its inputs."""
    figure = blank_figure(10, 4)
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.3))
    _scores(left, found)
    _clients(right, found, table)
    return figure


def _scores(axes: Axes, found: Diagnosis) -> None:
    for place, each in enumerate(found.findings):
        score, colour = each.score, COLOURS[each.verdict]
        axes.plot([score.low, score.high], [place, place], color=colour, lw=2)
        axes.plot(score.value, place, "o", color=colour)
        axes.annotate(
            f"{score.value:.3f}  {each.verdict}", (score.value, place), (0, 9),
            textcoords="offset points", ha="center", fontsize=8, color=colour,
        )  # fmt: skip
    axes.axvline(0, color=GREY, lw=0.8)
    axes.set_yticks(range(len(found.findings)), [each.kind for each in found.findings])
    axes.set_ylim(len(found.findings) - 0.5, -0.6)
    axes.margins(x=0.25)
    axes.set_xlabel("score, with 95 % interval")
    axes.set_title("How clients differ", fontsize=10)
    grid(axes, "x")
    clean(axes)


def _clients(axes: Axes, found: Diagnosis, table: Table) -> None:
    label = np.array([line["label"] for line in table])
    shift = np.array([line["feature"] + line["concept"] for line in table])
    groups = np.array([line["group"] or 1 for line in table])
    for number in np.unique(groups):
        inside = groups == number
        colour = PALETTE[(int(number) - 1) % len(PALETTE)]
        name = f"group {number}" if found.groups is not None else None
        axes.plot(label[inside], shift[inside], "o", ms=4, color=colour, alpha=0.8, label=name)
    for client in dict.fromkeys(each.client for each in found.standouts[:NAMED]):
        place = found.clients.index(client)
        axes.annotate(short(client), (label[place], shift[place]), (5, 3),
                      textcoords="offset points", fontsize=8)  # fmt: skip
    if found.groups is not None:
        axes.legend(frameon=False, fontsize=8)
    axes.set_xlabel("labels: distance from the others (nats)")
    axes.set_ylabel("inputs by class:\ndistance from the others")
    axes.set_title("Clients", fontsize=10)
    axes.margins(0.12)
    grid(axes)
    clean(axes)
