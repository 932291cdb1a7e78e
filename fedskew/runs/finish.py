"""The end of a run: last looks at its models, saving them, and the summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from fedskew.config import Config
from fedskew.federate.backends import Backend
from fedskew.federate.metrics import Row, by_group, summarise
from fedskew.federate.plan import Plan
from fedskew.federate.roster import Roster
from fedskew.federate.rows import broadcast_of, rows_of, score_tasks
from fedskew.federate.server import Progress
from fedskew.federate.tasks import Ask, FindTask, SaveTask, TogetherTask
from fedskew.runs.folder import RunFolder
from fedskew.runs.results import Results
from fedskew.store import make_folder, save_tensors


def finish(
    config: Config, plan: Plan, backend: Backend, folder: RunFolder, sent: Mapping[str, int]
) -> Results:
    """Score what is scored once, save all models, sum up; from the last and the selected round.

    ``sent`` says how many parameters a client sends each round, by stage.
    """
    more: list[Row] = []
    notes: list[str] = []
    stored = {"last": folder.last(plan.stage), "selected": folder.selected(plan.stage)}
    last, selected = (progress.round for progress in stored.values())
    for which, progress in stored.items():
        adapts: list[int | None] = []
        looks = which == "last" or selected != last
        if looks:
            # As they are, models are looked at once more for what they said of every sample.
            adapts = [None] if progress.round == selected else []
            at = config.evaluate.fine_tune_at
            if at in ("both", which) or selected == last:
                adapts += range(len(plan.adapts))
        rows, errors = _last_look(plan, backend, progress, which, adapts)
        more += rows
        notes += errors
        if looks and plan.recipe.objective.draws and backend.roster.central:
            more += _together(plan, backend, progress, config.evaluate.generated, notes)
        if plan.has_global_model:
            path = make_folder(folder.path / "models" / which) / "global.safetensors"
            save_tensors(path, {**plan.initial, **progress.state.shared})
    folder.write_last(more)
    whole = Results(folder.path, whole=True)
    result = summary(config, plan, backend.roster, whole, last, selected)
    result["stages"] = [_stage(folder, whole, name, count) for name, count in sent.items()]
    result |= _findings(plan, backend, stored["selected"])
    folder.finish({**result, "notes": notes})
    return whole


def _findings(plan: Plan, backend: Backend, progress: Progress) -> dict[str, dict[str, Any]]:
    """What the recipe leaves for people, by finding and client."""
    if not plan.recipe.leaves:
        return {}
    members = backend.roster.seen
    total = sum(member.sizes["train"] for member in members)
    asks = [
        Ask(m.name, find=FindTask(m.name, total), since=progress.kept.get(m.name, ""))
        for m in members
    ]
    found: dict[str, dict[str, Any]] = {}
    for answer in backend.exchange(asks):
        for name, numbers in answer.found.items():
            found.setdefault(name, {})[answer.client] = dict(numbers)
    return found


def _last_look(
    plan: Plan, backend: Backend, progress: Progress, which: str, adapts: Sequence[int | None]
) -> tuple[list[Row], list[str]]:
    """Rows of adapted models, and who could not adapt; clients save their own models."""
    roster, state = backend.roster, progress.state
    # Of the selected round models are also looked at as they are, sample by sample.
    asked = score_tasks(
        plan, roster, state, progress.round, adapts, last=True, samples=None in adapts
    )
    own = plan.has_personal_models
    broadcast = broadcast_of(plan, state)
    asks = [
        Ask(
            member.name,
            tuple(asked.get(member.name, ())),
            save=SaveTask(member.name, which, state.sent_to(member.name), broadcast)
            if own and member.seen
            else None,
            since=progress.kept.get(member.name, ""),
            keep=(progress.kept_then.get(member.name, ""),),
        )
        for member in roster.members
    ]
    answers = backend.exchange(asks)
    rows = [row for row in rows_of(plan, roster, asks, answers) if row.adapted != "none"]
    errors = [
        f"{answer.client} could not be adapted: {answer.scored[place].error}"
        for place in range(len(adapts))
        for answer in answers
        if answer.scored[place].error
    ]
    return rows, errors


def _together(
    plan: Plan, backend: Backend, progress: Progress, generated: int, notes: list[str]
) -> list[Row]:
    """What is measured of all clients' models together, if their data are in one place."""
    if not backend.pools:
        notes.append("generated samples were not judged: that takes all data in one place")
        return []
    state = progress.state
    names = [member.name for member in backend.roster.seen]
    task = TogetherTask(
        progress.round,
        state.shared,
        {name: state.sent_to(name) for name in names},
        {name: progress.kept.get(name, "") for name in names},
        broadcast_of(plan, state),
        generated,
    )
    return [
        Row(
            stage=plan.stage, round=progress.round, model=found.model, on="central",
            client=found.client, adapted="none", split="test", metric=metric, value=value,
            n=backend.roster.central,
        )
        for found in backend.together(task)
        for metric, value in found.values.items()
    ]  # fmt: skip


def _stage(folder: RunFolder, results: Results, name: str, parameters: int) -> dict[str, Any]:
    """How long a stage went on, and what it sent."""
    records = [record for record in results.records if record.stage == name]
    return {
        "name": name,
        "rounds": folder.last(name).round,
        "selected_round": folder.selected(name).round,
        "parameters": parameters,
        "bytes_up": sum(record.bytes_up for record in records),
        "bytes_down": sum(record.bytes_down for record in records),
    }


def _more_is_better(metric: str, primary: bool) -> bool:
    """Whether the worst client is the one with least; ``primary`` says it of the main metric."""
    if metric.endswith("loss"):
        return False
    return primary or metric.endswith("accuracy")


def summary(
    config: Config,
    plan: Plan,
    roster: Roster,
    results: Results,
    last: int,
    selected: int,
) -> dict[str, Any]:
    """The run in one dictionary: what tables and reports are made of."""
    odd = {member.name for member in roster.members if member.odd}

    def rows_in(number: int) -> list[Row]:
        rows = results.rows.where(stage=plan.stage, round=number).rows()
        return rows + [replace(r, on="odd") for r in rows if r.on == "seen" and r.client in odd]

    records = results.records
    higher = plan.recipe.objective.higher_is_better
    per_round = config.train.clients_per_round
    scores = [
        {
            "at": at, "round": number, "model": model, "on": on, "adapted": how, "split": split,
            "metric": metric,
            **asdict(summarise([r.value for r in group], _more_is_better(metric, higher))),
        }
        for at, number in (("last", last), ("selected", selected))
        for (model, on, how, split, metric), group in by_group(rows_in(number)).items()
    ]  # fmt: skip
    return {
        "method": config.method.name,
        "seed": config.seed,
        "primary_model": plan.primary_model,
        "primary_metric": plan.recipe.objective.primary,
        "higher_is_better": higher,
        "rounds": last,
        "selected_round": selected,
        "scores": scores,
        "bytes": {
            "up": sum(record.bytes_up for record in records),
            "down": sum(record.bytes_down for record in records),
        },
        "privacy": plan.recipe.aggregates.spent(
            last, per_round or len(roster.seen), len(roster.seen)
        ),
        "failures": sum(len(record.failures) for record in records),
        "warnings": [
            *roster.warnings,
            *plan.recipe.objective.remarks(roster),
        ],
        "seconds": results.seconds,
        "plan": plan.execution.as_dict(),
        "model": {"name": config.model.name, "knobs": config.model.knobs},
        "sample_shape": list(roster.sample_shape),
        "classes": roster.classes,
    }
