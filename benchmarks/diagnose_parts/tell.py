"""The measured federations as tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from benchmarks.diagnose_parts.jobs import Job
from benchmarks.diagnose_parts.worlds import CONCEPT, DESIGN
from fedskew.comparisons.statistics import mean, rank_correlation
from fedskew.diagnosis.gain import TIE
from fedskew.papers.machine import Provenance
from fedskew.papers.markdown import table

UNSEEN = ("gtsrb", "xray")
"""No gain of these was looked at before the forecast was settled."""
KINDS = ("label", "feature", "concept")
Measured = Sequence[tuple[Job, dict[str, Any]]]
SPLITS: tuple[tuple[str, Callable[[Job], bool]], ...] = (
    ("set on", lambda job: job.data in DESIGN),
    ("held out", lambda job: job.data not in DESIGN),
)


def page(lines: Sequence[dict[str, Any]], made: Provenance, seconds: float) -> str:
    every = [(Job(*line["job"]), line["found"]) for line in lines if line["found"]]

    def part(name: str) -> Measured:
        return [each for each in every if each[0].part == name]

    sections = (
        ("False alarms", _alarms(part("iid"))),
        ("Strong shifts", _shifts(part("shift"))),
        ("By dataset", _by_data(part("shift"))),
        ("20 samples a client", _shifts(part("few"))),
        ("Selection skew", _verdicts(part("selection"))),
        ("Label skew", _labels(part("label"))),
        ("The client that stands out", _outliers(part("outlier"))),
        ("Four groups", _four(part("four"))),
        ("Expected gain", _gains(part("gain"))),
        ("Natural federations", _verdicts(part("owners"))),
        ("Targets that are numbers", _verdicts(part("numbers"))),
        ("Epsilon", _epsilons(part("epsilon"))),
        ("Speed", _speed(part("speed"))),
    )
    told = [f"### {title}\n\n{text}\n" for title, text in sections]
    code = f"{made.code}; {made.cores} cores, {made.processor}, {made.memory}"
    instructions = made.arithmetic["instructions"]
    told.append(f"{code}, {instructions}; {seconds:.0f} s of one core in the last start.\n")
    return "\n".join(told)


def _share(hits: Sequence[bool]) -> str:
    return f"{sum(hits)} of {len(hits)}" + (f" ({sum(hits) / len(hits):.1%})" if hits else "")


def _divided(measured: Measured) -> Iterator[tuple[str, Measured]]:
    for name, chosen in SPLITS:
        yield name, [each for each in measured if chosen(each[0])]


def _found(told: dict[str, Any], *kinds: str) -> bool:
    return any(told["verdicts"][kind] == "found" for kind in kinds)


def _shy(told: dict[str, Any]) -> bool:
    return bool(told["verdicts"]["feature"] == "cannot tell")


def _alarms(measured: Measured) -> str:
    rows = []
    for size in (30, 150, 1000):
        for name, chosen in _divided([each for each in measured if each[0].size == size]):
            rows.append((
                str(size), name,
                _share([_found(told, *KINDS) for _, told in chosen]),
                _share([_found(told, "label") for _, told in chosen]),
                _share([_found(told, "feature", "concept") for _, told in chosen]),
                _share([bool(told["standouts"]) for _, told in chosen]),
                _share([_shy(told) for _, told in chosen]),
            ))  # fmt: skip
    head = ("samples", "data", "any alarm", "label", "shift", "a client stands out",
            "shift: cannot tell")  # fmt: skip
    return table(head, rows)


def _right(job: Job, told: dict[str, Any]) -> bool:
    return _found(told, "concept" if job.kind in CONCEPT else "feature")


def _shifts(measured: Measured) -> str:
    rows = []
    for name, chosen in _divided(measured):
        for kind in sorted({job.kind for job, _ in chosen}):
            these = [each for each in chosen if each[0].kind == kind]
            seen = [each for each in these if _found(each[1], "feature", "concept")]
            rows.append((
                name, kind, _share([_found(t, "feature", "concept") for _, t in these]),
                _share([_right(*each) for each in seen]) if kind != "iid" else "",
                _share([_shy(told) for _, told in these]),
            ))  # fmt: skip
    return table(("data", "skew", "found", "kind told right", "cannot tell"), rows)


def _by_data(measured: Measured) -> str:
    rows = []
    for data in dict.fromkeys(job.data for job, _ in measured):
        these = [each for each in measured if each[0].data == data]
        seen = [each for each in these if _found(each[1], "feature", "concept")]
        rows.append((data, _share([_found(t, "feature", "concept") for _, t in these]),
                     _share([_right(*each) for each in seen])))  # fmt: skip
    return table(("dataset", "found", "kind told right"), rows)


def _verdicts(measured: Measured) -> str:
    rows = [
        (job.data, job.kind, *(f"{told['scores'][k]:.3f} {told['verdicts'][k]}" for k in KINDS))
        for job, told in measured
    ]
    return table(("dataset", "clients are", *KINDS), rows)


def _labels(measured: Measured) -> str:
    rows = []
    for data in dict.fromkeys(job.data for job, _ in measured):
        these = [(job.alpha, told["scores"]["label"]) for job, told in measured if job.data == data]
        found = [_found(told, "label") for job, told in measured
                 if job.data == data and job.alpha <= 1]  # fmt: skip
        means = " ".join(
            f"{mean(s for a, s in these if a == alpha):.3f}"
            for alpha in sorted({a for a, _ in these})
        )
        rows.append((data, f"{-rank_correlation(these):.3f}", means, _share(found)))
    return table(("dataset", "rank correlation", "scores, knob from small to large",
                  "found up to knob 1"), rows)  # fmt: skip


def _outliers(measured: Measured) -> str:
    rows = []
    for name, chosen in _divided(measured):
        for kind in sorted({job.kind for job, _ in chosen}):
            these = [each for each in chosen if each[0].kind == kind]
            named = [
                [c for c, *_ in told["standouts"]] == [f"c{job.clients - 1:04d}"]
                for job, told in these
            ]
            able = [each for each in these if not _shy(each[1])]
            rows.append((name, kind, _auc(these), _auc(able), _share(named)))
    return table(
        ("data", "one client is", "AUC", "AUC where it can tell", "only this one named"), rows
    )


def _auc(measured: Measured) -> str:
    return f"{mean(told['auc'] for _, told in measured):.3f}"


def _four(measured: Measured) -> str:
    rows = []
    for name, chosen in _divided(measured):
        exact = [told["groups"] == [k % 4 for k in range(job.clients)] for job, told in chosen]
        wrong = [job.data for (job, _), hit in zip(chosen, exact, strict=True) if not hit]
        rows.append((name, _share(exact), ", ".join(wrong)))
    return table(("data", "four rotations found exactly", "else"), rows)


def _gains(measured: Measured) -> str:
    rows, right, sure = [], [], []
    unseen: list[bool] = []
    for job, told in measured:
        for name, truth in zip(("logistic", "mlp"), told["trained"], strict=True):
            gain = told["gain"]
            if gain is None:
                rows.append((job.data, job.kind, name, f"{truth:+.3f}", "cannot tell", ""))
                continue
            hit = (gain["mean"] > 0) == (truth > 0)
            right.append(hit)
            unseen += [hit] if job.data in UNSEEN else []
            is_sure = gain["low"] > TIE or gain["high"] < -TIE
            sure += [hit] if is_sure else []
            said = f"{gain['mean']:+.3f} [{gain['low']:+.3f}, {gain['high']:+.3f}]"
            kind = f"{job.kind} {job.alpha}" if job.kind == "dirichlet" else job.kind
            rows.append((job.data, kind, name, f"{truth:+.3f}", said, "right" if hit else "wrong"))
    head = ("dataset", "clients", "model", "trained", "forecast", "sign")
    told = f"Sign right: {_share(right)}; where a diagnosis says better or worse: {_share(sure)}."
    told += f" On {' and '.join(UNSEEN)} alone: {_share(unseen)}."
    return f"{told}\n\n{table(head, rows)}"


def _epsilons(measured: Measured) -> str:
    rows = [
        (job.data, str(job.size), job.kind, f"{job.epsilon:g}",
         *(told["verdicts"][kind] for kind in KINDS))
        for job, told in measured
    ]  # fmt: skip
    return table(("dataset", "samples", "clients", "epsilon", *KINDS), rows)


def _speed(measured: Measured) -> str:
    rows = [
        (
            str(job.clients),
            str(job.size),
            f"{told['seconds']:.1f}",
            f"{told['busy']:.1f}",
            f"{told['bytes']:.0f}",
        )
        for job, told in measured
    ]
    return table(("clients", "samples", "seconds, all of it", "of a core", "bytes a client"), rows)
