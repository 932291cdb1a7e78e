"""All metrics of a finished run's test answers, and whose scores are missing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedskew.federate.metrics import summarise
from fedskew.federate.plan import Plan
from fedskew.federate.predictions import PREDICTIONS, Arrays, load_answers, probabilities
from fedskew.federate.roster import Roster, shortened
from fedskew.federate.rounds import LOSS
from fedskew.parts.measures import Answers
from fedskew.parts.metrics import measured, needs, rises
from fedskew.runs.results import Results


class Told(NamedTuple):
    """All metrics that a client told of its test samples."""

    on: str
    adapted: str
    metrics: Mapping[str, float]


def final_metrics(
    plan: Plan, roster: Roster, told: Sequence[Told], folder: Path
) -> list[dict[str, Any]]:
    """Each metric over the clients for which it is defined, as trained before adapted.

    ``pooled`` is that of all their samples together, where the answers are in the run's ``folder``
    and not at sites.
    """
    groups: dict[tuple[str, str], dict[str, list[float]]] = {}
    for on, adapted, metrics in told:
        values = groups.setdefault((on, adapted), {})
        for name, value in metrics.items():
            values.setdefault(name, []).append(value)
    pooled = _pooled(plan, roster, groups, folder)
    return [
        {
            "model": plan.primary_model, "on": on, "adapted": adapted, "metric": name,
            **asdict(summarise(values, rises(name, True))),
            "pooled": pooled.get((on, adapted), {}).get(name),
        }
        for (on, adapted), found in sorted(groups.items(), key=_as_trained_first)
        for name, values in _in_order(plan, found)
    ]  # fmt: skip


def _as_trained_first(group: tuple[tuple[str, str], Any]) -> tuple[bool, str]:
    (on, adapted), _ = group
    return adapted != "none", on


def _in_order(plan: Plan, found: Mapping[str, list[float]]) -> Iterator[tuple[str, list[float]]]:
    """The metric that rounds are chosen by first, the others as in the table."""
    first = [plan.primary] if plan.primary in found else []
    for name in dict.fromkeys([*first, *found]):
        yield name, found[name]


def _pooled(
    plan: Plan, roster: Roster, groups: Mapping[tuple[str, str], Any], folder: Path
) -> dict[tuple[str, str], dict[str, float]]:
    """By group, the metrics of all samples together."""
    if not groups or not (folder / PREDICTIONS).is_file():
        return {}
    stored = load_answers(folder)
    wanted = [] if plan.metric is None else [plan.metric]
    found = {}
    for on, adapted in groups:
        rows = (stored["split"] == "test") & (stored["on"] == on) & (stored["adapted"] == adapted)
        answers = _answers({name: values[rows] for name, values in stored.items()}, plan, roster)
        found[on, adapted] = measured(answers, plan.problem, *wanted)
    return found


def _answers(stored: Arrays, plan: Plan, roster: Roster) -> Answers:
    problem, said = plan.problem, probabilities(stored)
    output = np.asarray(stored["predicted"] if said is None else said, np.float64)
    positive = problem.positive_place(roster.class_names) if problem.kind == "binary" else None
    return Answers(stored["label"], output, positive)


def unscored(plan: Plan, roster: Roster, results: Results, selected: int) -> list[str]:
    """A sentence for each kind of score that some clients lack, with their names."""
    found = list(roster.unscored)
    for on, split in (("seen", "test"), ("unseen", "test"), ("seen", "validation")):
        rows = results.as_trained.where(
            round=selected, model=plan.primary_model, on=on, split=split
        )
        # Who told a loss was asked, and answered.
        asked, told = (rows.where(metric=metric).by_client() for metric in (LOSS, plan.primary))
        missing = [name for name in asked if name not in told]
        if missing:
            found.append(_undefined(plan.primary, on, split, missing, len(asked)))
    return found


def _undefined(metric: str, on: str, split: str, names: Sequence[str], of: int) -> str:
    where = f"the {split} samples of {len(names)} of {of} {on} clients ({shortened(names)})"
    why = f"{metric} is not defined on {where}: it takes {needs(metric)}"
    if len(names) < of:
        return f"{why}; its mean leaves them out."
    if split == "validation":
        return f"{why}; no round could be selected by it, so the last one counts."
    return f"{why}; there is no mean."
