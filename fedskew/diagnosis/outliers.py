"""Clients that stand out from the others, each with why."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedskew.diagnosis.basis import Floats
from fedskew.diagnosis.shift import Shift
from fedskew.diagnosis.together import Together

FAR = 6.0
"""A client stands out from this many robust deviations from the median on."""
RARE = 0.005
"""And if chance made as much at any client in fewer federations than this."""
CONCEPT_BELOW = 0.1
"""A shift is of concept if less than this share of it shows without labels, else of features."""
BEYOND_CHANCE = 1.25
"""Labels stand out that are this much further from the others' than any of dealt clients."""
SIZES = 10.0
"""A client stands out by size if it has so many times the median's rows."""
FEWEST_CLIENTS = 5
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Standout:
    """A client that stands out: by what, and by how many robust deviations."""

    client: str
    by: str
    far: float
    why: str


def standouts(
    all_: Together, shift: Shift | None, labels: Floats | None, by_chance: float
) -> list[Standout]:
    """In the order of how far they stand out; none among fewer than five clients."""
    if len(all_.names) < FEWEST_CLIENTS:
        return []
    found: list[Standout] = []
    if shift is not None:
        places = np.flatnonzero(strays(shift)).tolist()
        found += [_strayed(all_.names[place], shift, place) for place in places]
    far = np.zeros(len(all_.names)) if labels is None else robust(labels)
    unlike = (far > FAR) if labels is None else (far > FAR) & (labels > BEYOND_CHANCE * by_chance)
    for place in np.flatnonzero(unlike).tolist():
        top = int(all_.counts[place].argmax())
        share = all_.counts[place, top] / max(all_.rows[place], 1.0)
        name = all_.basis.class_names[top]
        why = f"its labels are unlike the others': {share:.0%} are {name!r}"
        found.append(Standout(all_.names[place], "label", float(far[place]), why))
    middle = max(float(np.median(all_.rows)), 1.0)
    for place, rows in enumerate(all_.rows):
        if rows > SIZES * middle:
            why = f"it has {rows:.0f} training rows, the median client {middle:.0f}"
            found.append(Standout(all_.names[place], "quantity", float(rows / middle), why))
    return sorted(found, key=lambda each: (-each.far, each.client))


def strays(shift: Shift) -> Bools:
    """Clients whose inputs or classes lie further from the others' than the rest's do."""
    clients = len(shift.apart)
    by_class = (robust(shift.apart, shift.deviation) > FAR) & (shift.chance * clients < RARE)
    by_all = robust(shift.whole, shift.whole_deviation) > FAR
    by_all &= shift.whole_chance * clients < RARE
    return np.asarray(by_class | by_all)


def robust(values: Floats, least: Floats | None = None) -> Floats:
    """Deviations from the median over clients, at least those of chance.

    >>> robust(np.array([1.0, 2.0, 3.0, 4.0, 100.0])).round(2).tolist()
    [-1.35, -0.67, 0.0, 0.67, 65.43]
    """
    middle = float(np.median(values))
    spread = 1.4826 * float(np.median(np.abs(values - middle)))
    floor = np.zeros(len(values)) if least is None else least
    return np.asarray((values - middle) / np.maximum(np.maximum(spread, floor), 1e-9))


def _strayed(name: str, shift: Shift, place: int) -> Standout:
    far = max(
        float(robust(shift.apart, shift.deviation)[place]),
        float(robust(shift.whole, shift.whole_deviation)[place]),
    )
    if is_concept(float(shift.strange[place]), float(shift.apart[place])):
        why = "its inputs look like the others', but carry other labels"
        return Standout(name, "concept", far, why)
    return Standout(name, "feature", far, "its inputs look unlike anything the others have")


def is_concept(strange: float, apart: float) -> bool:
    return strange < CONCEPT_BELOW * max(apart, 1e-9)
