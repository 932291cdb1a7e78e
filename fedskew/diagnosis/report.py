"""The diagnosis: every score, in numbers and in words, and what it was made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fedskew.diagnosis import words
from fedskew.diagnosis.basis import Basis
from fedskew.diagnosis.duplicates import duplicates
from fedskew.diagnosis.gain import Gain, gain_of
from fedskew.diagnosis.groups import distances, groups_of
from fedskew.diagnosis.labels import Score, label_score, quantity_score
from fedskew.diagnosis.outliers import Standout, is_concept, standouts, strays
from fedskew.diagnosis.privacy import Noise
from fedskew.diagnosis.shift import Shift, shift_of
from fedskew.diagnosis.summary import Summary
from fedskew.diagnosis.together import ENOUGH_SHOWN, Together, together
from fedskew.engine.arithmetic import one_order

LABEL, LABEL_BEYOND = 0.03, 4.0
"""Label skew is told of from this score on, if it is so many deviations beyond chance."""
SHIFT, WHOLE = 0.004, 0.002
"""Shifts are told of from these sizes on, if chance makes them as rarely as RARE."""
RARE = 0.005
STRONG = 0.05
"""A shift of this size matters: where it could not have been seen, nothing can be told."""
QUANTITY = 0.2


@dataclass(frozen=True)
class Finding:
    """One kind of skew: "found", "none" or "cannot tell", its score, and the sentence for people.

    ``unlike`` holds the score by client, in the order of the diagnosis' clients.
    """

    kind: str
    verdict: str
    score: Score
    words: str
    unlike: tuple[float, ...] = ()


@dataclass(frozen=True)
class Diagnosis:
    """How different clients are. ``sent`` is in bytes, of all clients; ``hidden`` counts cells."""

    clients: tuple[str, ...]
    rows: tuple[int, ...]
    findings: tuple[Finding, ...]
    standouts: tuple[Standout, ...]
    duplicates: tuple[tuple[str, str, float], ...] | None
    groups: tuple[int, ...] | None
    groups_words: str
    gain: Gain | None
    gain_words: str
    sent: int
    hidden: int
    cell: int
    noise: Noise

    def __getitem__(self, kind: str) -> Finding:
        return next(each for each in self.findings if each.kind == kind)

    def to_plain(self) -> dict[str, Any]:
        """As JSON holds it."""
        return asdict(self)


def diagnosed(summaries: Sequence[Summary], basis: Basis) -> Diagnosis:
    """The diagnosis of some clients, from what they sent."""
    with one_order():
        return _diagnosed(together(summaries, basis))


def _diagnosed(all_: Together) -> Diagnosis:
    label, unlike, by_chance = label_score(all_)
    shift = shift_of(all_)
    why_not = unseen(all_, shift)
    # What was not sent cannot stand out either.
    seen = None if why_not and float(all_.counts.sum()) == 0 else shift
    found = _found(shift)
    labels = _label(all_, label, unlike)
    # A single client's few rows in a few groups are too uneven by chance to single it out.
    told_labels = None if labels.verdict == "cannot tell" or all_.groups else unlike
    judged = (
        labels,
        _quantity(all_),
        *_shifts(shift, found, why_not),
    )
    apart = distances(all_) if found else None
    grouped = None if apart is None else groups_of(apart)
    told = all_.noise.is_none
    same = duplicates(all_.names, [s.hashes for s in all_.summaries]) if told else None
    gain = gain_of(all_)
    return Diagnosis(
        clients=all_.names,
        rows=tuple(int(n) for n in all_.rows),
        findings=judged,
        standouts=tuple(standouts(all_, seen, told_labels, by_chance)),
        duplicates=None if same is None else tuple(same),
        groups=None if grouped is None else tuple(int(g) for g in grouped[0]),
        groups_words=words.groups(grouped, apart, found, why_not),
        gain=gain,
        gain_words=words.gain(gain, told),
        sent=sum(each.bytes for each in all_.summaries),
        hidden=sum(each.hidden for each in all_.summaries),
        cell=all_.basis.cell,
        noise=all_.noise,
    )


def _found(shift: Shift) -> bool:
    """Whether inputs or their labels shift between clients."""
    by_class = shift.total_chance < RARE and shift.total.value > SHIFT
    by_all = shift.whole_total_chance < RARE and shift.whole_total.value > WHOLE
    return by_class or by_all or (len(shift.apart) >= 5 and bool(strays(shift).any()))


def unseen(all_: Together, shift: Shift) -> str:
    """Why a strong shift might have been missed; nothing if it would have been seen."""
    shown = float(all_.counts.sum() / max(all_.rows.sum(), 1.0))
    per_class = float(np.median(all_.rows)) / all_.basis.classes
    if shown < ENOUGH_SHOWN:
        return (
            f"only {shown:.0%} of the rows lie in classes of {all_.basis.cell} rows or more at "
            f"their client ({per_class:.0f} a class; about {1.5 * all_.basis.cell:.0f} are needed)"
        )
    deviation = shift.total.value / shift.total.beyond if shift.total.beyond else 0.0
    if 3 * abs(deviation) > STRONG:
        factor = 3 * abs(deviation) / STRONG
        rest = "or less noise" if not all_.noise.is_none else "a class"
        return (
            f"{per_class:.0f} rows a class leave chance as large as a strong shift (about "
            f"{factor * per_class:.0f} rows {rest} are needed)"
        )
    return ""


def _label(all_: Together, score: Score, unlike: Any) -> Finding:
    spread = score.value / score.beyond if score.beyond else 0.0
    if all_.labels.sum() < 0.2 * all_.rows.sum():
        verdict = "cannot tell"
    elif score.value >= LABEL and score.beyond > LABEL_BEYOND:
        verdict = "found"
    else:
        verdict = "cannot tell" if 3 * abs(spread) > 2 * LABEL else "none"
    values = tuple(float(value) for value in unlike)
    return Finding("label", verdict, score, words.label(verdict, score, all_), values)


def _quantity(all_: Together) -> Finding:
    score = quantity_score(all_)
    verdict = "found" if score.value >= QUANTITY else "none"
    values = tuple(float(n) for n in all_.rows)
    return Finding("quantity", verdict, score, words.quantity(verdict, score, all_), values)


def _shifts(shift: Shift, found: bool, why_not: str) -> tuple[Finding, Finding]:
    """Feature and concept skew: what shows in inputs alone, and what only shows with labels."""
    strange, apart = _judged(shift)
    concept = found and is_concept(strange, apart)
    verdicts = {
        "feature": "found" if found and not concept else "none",
        "concept": "found" if concept else "none",
    }
    if not found and why_not:
        verdicts = dict.fromkeys(verdicts, "cannot tell")
    scores = {"feature": shift.whole_total, "concept": _labelled(shift)}
    values = {"feature": shift.whole, "concept": shift.apart - shift.whole}
    feature, concept_ = (
        Finding(
            kind, verdicts[kind], scores[kind],
            words.shift(kind, verdicts[kind], scores[kind], why_not),
            tuple(float(value) for value in values[kind]),
        )
        for kind in ("feature", "concept")
    )  # fmt: skip
    return feature, concept_


def _judged(shift: Shift) -> tuple[float, float]:
    """What of the shift is strange, over the clients that shift if only some do, else over all."""
    far = strays(shift) if len(shift.apart) >= 5 else np.zeros(len(shift.apart), bool)
    if far.any() and far.mean() < 0.5:
        share = shift.weights * far
        return float(share @ shift.strange), float(share @ shift.apart)
    return shift.strange_total, shift.total.value


def _labelled(shift: Shift) -> Score:
    """The part of the shift by class that inputs without labels do not show."""
    total, whole = shift.total, shift.whole_total
    return Score(
        total.value - whole.value, total.low - whole.value, total.high - whole.value, total.beyond
    )
