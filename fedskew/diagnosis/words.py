"""The diagnosis as sentences for people."""

from __future__ import annotations

from typing import Any

from fedskew.diagnosis.basis import Floats
from fedskew.diagnosis.gain import TIE, Gain
from fedskew.diagnosis.labels import Score
from fedskew.diagnosis.together import Together

SAID = {
    "feature": (
        "the same class looks different from client to client (feature skew)",
        "inputs of a class look the same at all clients",
    ),
    "concept": (
        "like inputs carry different labels at different clients (concept skew)",
        "like inputs carry like labels at all clients",
    ),
}


def numbers(score: Score) -> str:
    return f"{score.value:.3f} [{score.low:.3f}, {score.high:.3f}]"


def label(verdict: str, score: Score, all_: Together) -> str:
    if verdict == "cannot tell":
        return (
            f"cannot tell, because too few rows lie in classes of {all_.basis.cell} or more at "
            f"their client ({min(1.0, float(all_.labels.sum() / max(all_.rows.sum(), 1))):.0%})"
        )
    what = f"{all_.groups} random groups of classes" if all_.groups else "classes"
    if verdict == "none":
        return f"clients have the same shares of {what}, as far as chance goes ({numbers(score)})"
    size = "mild" if score.value < 0.15 else "clear" if score.value < 0.45 else "strong"
    of = f" in {what}" if all_.groups else ""
    said = f"{size} label skew: clients explain {score.value:.0%} of the labels{of}"
    return f"{said} ({numbers(score)})"


def quantity(verdict: str, score: Score, all_: Together) -> str:
    rows = f"{min(all_.rows):.0f} to {max(all_.rows):.0f} rows"
    if verdict == "none":
        return f"clients are of like size: {rows}"
    worth = (1 - score.value) * len(all_.names)
    return f"sizes differ: {rows}, which count like {worth:.1f} equal clients ({numbers(score)})"


def shift(kind: str, verdict: str, score: Score, why_not: str) -> str:
    if verdict == "cannot tell":
        return f"cannot tell, because {why_not}"
    said = SAID[kind][0 if verdict == "found" else 1]
    return f"{said} ({numbers(score)})"


def groups(grouped: Any, apart: Floats | None, found: bool, why_not: str) -> str:
    if grouped is not None:
        return f"{int(grouped[0].max()) + 1} groups of alike clients (silhouette {grouped[1]:.2f})"
    if not found:
        return f"cannot tell, because {why_not}" if why_not else "one group: clients are alike"
    if apart is not None and bool((apart != apart).any()):
        return "cannot tell, because some clients share no class"
    return "no clear groups: clients differ one by one"


def gain(found: Gain | None, told: bool) -> str:
    if found is None:
        why = "too few rows were sent" if told else "noise hides what single clients would learn"
        return f"cannot tell, because {why}"
    low, high = found.pooled.low, found.pooled.high
    by = f"{100 * found.pooled.mean:+.0f} points of accuracy [{100 * low:+.0f}, {100 * high:+.0f}]"
    if low > TIE:
        return f"a common model should serve clients better than training alone: about {by}"
    if high < -TIE:
        return f"a common model should serve clients worse than training alone: about {by}"
    return f"cannot tell whether a common model beats training alone: about {by}"
