"""The end of a run: the final scores of its models, saving them, and the summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from fedskew.config import Config
from fedskew.federate.asking import goes_back_to
from fedskew.federate.backends import Backend
from fedskew.federate.metrics import Row, by_group, summarise
from fedskew.federate.plan import Plan
from fedskew.federate.planning import make_rounds
from fedskew.federate.privacy import Course, spent
from fedskew.federate.progress import Progress
from fedskew.federate.recipe import Stage
from fedskew.federate.roster import Roster
from fedskew.federate.rows import broadcast_of, rows_of, score_tasks
from fedskew.federate.tasks import Answer, Ask, FindTask, SaveTask, TogetherTask
from fedskew.parts.metrics import rises
from fedskew.parts.objective import ranked_by
from fedskew.runs.final import Told, final_metrics, unscored
from fedskew.runs.folder import RunFolder
from fedskew.runs.results import Results
from fedskew.store import make_folder, save_tensors

WIDE = 10.0
"""Features that reach beyond it are said to be unscaled; those of HAR, say, are not."""


def finish(
    config: Config, plan: Plan, backend: Backend, folder: RunFolder, sent: Mapping[str, int]
) -> Results:
    """Compute the final scores, save all models, sum up; from the last and the selected round.

    ``sent`` says how many parameters a client sends each round, by stage.
    """
    more: list[Row] = []
    notes: list[str] = []
    told: list[Told] = []
    stored = {"last": folder.last(plan.stage), "selected": folder.selected(plan.stage)}
    last, selected = (progress.round for progress in stored.values())
    keep = goes_back_to(stored["last"])
    for which, progress in stored.items():
        adapts: list[int | None] = []
        looks = which == "last" or selected != last
        if looks:
            # Models as trained are scored once more, to save their answer for every sample.
            adapts = [None] if progress.round == selected else []
            at = config.evaluate.fine_tune_at
            if at in ("both", which) or selected == last:
                adapts += range(len(plan.adapts))
        rows, errors, clients = _final_scores(plan, backend, progress, which, adapts, keep)
        more += rows
        notes += errors
        told += clients
        if looks and plan.recipe.objective.draws and backend.roster.central:
            more += _together(plan, backend, progress, config.evaluate.generated, notes)
        if plan.has_global_model:
            path = make_folder(folder.path / "models" / which) / "global.safetensors"
            save_tensors(path, {**plan.initial, **progress.state.shared})
    folder.write_last(more)
    metrics = final_metrics(plan, backend.roster, told, folder.path)
    whole = Results(folder.path, whole=True)
    result = summary(config, plan, backend.roster, whole, last, selected)
    result["stages"] = [_stage(folder, whole, name, count) for name, count in sent.items()]
    result |= _findings(plan, backend, stored["selected"], keep)
    result |= {"metrics": metrics} if metrics else {}
    folder.finish({**result, "notes": notes})
    return whole


def _findings(
    plan: Plan, backend: Backend, progress: Progress, keep: Mapping[str, tuple[str, ...]]
) -> dict[str, dict[str, Any]]:
    """The numbers of the recipe's findings, by finding and client."""
    if not plan.recipe.leaves:
        return {}
    members = backend.roster.seen
    total = sum(member.sizes["train"] for member in members)
    asks = [
        Ask(
            m.name,
            find=FindTask(m.name, total),
            since=progress.kept.get(m.name, ""),
            keep=keep.get(m.name, ()),
        )
        for m in members
    ]
    found: dict[str, dict[str, Any]] = {}
    for answer in backend.exchange(asks):
        for name, numbers in answer.found.items():
            found.setdefault(name, {})[answer.client] = dict(numbers)
    return found


def _final_scores(
    plan: Plan,
    backend: Backend,
    progress: Progress,
    which: str,
    adapts: Sequence[int | None],
    keep: Mapping[str, tuple[str, ...]],
) -> tuple[list[Row], list[str], list[Told]]:
    """Rows of adapted models, clients that could not adapt, and all metrics of test samples.

    Clients save their models.
    """
    roster, state = backend.roster, progress.state
    # At the selected round, models are also scored as trained, sample by sample.
    asked = score_tasks(
        plan, roster, state, progress.round, adapts, last=True, samples=None in adapts
    )
    own = plan.has_personal_models
    broadcast = broadcast_of(plan, state)
    asks = [
        Ask(
            member.name,
            tuple(asked.get(member.name, ())),
            # Where clients keep to themselves, each gets a model to use, its own or everybody's.
            save=SaveTask(member.name, which, progress.round, state.sent_to(member.name), broadcast)
            if (own and member.seen) or (backend.apart and which == "selected")
            else None,
            since=progress.kept.get(member.name, ""),
            keep=keep.get(member.name, ()),
        )
        for member in roster.members
    ]
    answers = backend.exchange(asks)
    rows = [row for row in rows_of(plan, roster, asks, answers) if row.adapted != "none"]
    errors = [
        f"{answer.client} could not be adapted: {answer.scored[place].error}"
        for place in range(len(adapts))
        for answer in answers
        if place < len(answer.scored) and answer.scored[place].error
    ]
    errors += [f"{a.client} is missing in the last look: {a.error}" for a in answers if a.error]
    return rows, errors, _told(plan, roster, asks, answers)


def _told(plan: Plan, roster: Roster, asks: Sequence[Ask], answers: Sequence[Answer]) -> list[Told]:
    return [
        Told(
            "seen" if roster.by_name[ask.client].seen else "unseen",
            "none" if task.adapt is None else plan.adapts[task.adapt].label,
            scored.final,
        )
        for ask, answer in zip(asks, answers, strict=True)
        for task, scored in zip(ask.scores, answer.scored, strict=False)
        if scored.final
    ]


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
    """How many rounds a stage took, and what it sent."""
    records = [record for record in results.records if record.stage == name]
    return {
        "name": name,
        "rounds": folder.last(name).round,
        "selected_round": folder.selected(name).round,
        "parameters": parameters,
        "bytes_up": sum(record.bytes_up for record in records),
        "bytes_down": sum(record.bytes_down for record in records),
    }


def _privacy(config: Config, plan: Plan, roster: Roster, results: Results) -> dict[str, Any] | None:
    """What all stages of the run told about a client, as far as that was to be bounded."""
    courses = []
    for stage in (*plan.recipe.prepares, Stage(plan.stage, plan.recipe)):
        rounds = max(record.round for record in results.records if record.stage == stage.name)
        per_round = make_rounds(config, stage, roster).clients_per_round
        courses.append(Course(stage, rounds, per_round or len(roster.seen)))
    return spent(courses, len(roster.seen))


def _more_is_better(metric: str, primary: bool) -> bool:
    """Whether a higher value is better; ``primary`` is the answer for the method's own metric."""
    if metric.endswith("loss"):
        return False
    return rises(metric, primary or metric.endswith("accuracy"))


def _passed_over(plan: Plan, results: Results) -> list[str]:
    """Whether rounds could not be selected because clients' validation scores were missing."""
    found = results.as_trained.where(
        model=plan.primary_model, on="seen", split="validation",
        metric=plan.primary,
    ).by_round()  # fmt: skip
    most = max(map(len, found.values()), default=0)
    short = sum(len(values) < most for values in found.values())
    if not short:
        return []
    return [
        f"in {short} of {len(found)} scored rounds validation scores of some clients are missing: "
        f"only rounds with those of {most} clients could be selected."
    ]


def _as_stored(config: Config, roster: Roster) -> list[str]:
    """What 'unit' left alone: it scales images only, for features have no range of their own."""
    section = config.federation
    scaled = section.normalise != "unit" or (section.features or {}).get("scale")
    widest = max(-roster.low, roster.high)
    if (
        roster.vocabulary
        or scaled
        or len(roster.sample_shape) != 1
        or widest <= WIDE
        or ":" in section.dataset
    ):
        return []
    return [
        f"features were used as they are stored, from {roster.low:g} to {roster.high:g}, which few "
        "models learn well from: federation.normalise = 'unit' scales images only. Set it to "
        "'standard', or federation.features = {scale = 'feature'} for 0..1."
    ]


def summary(
    config: Config,
    plan: Plan,
    roster: Roster,
    results: Results,
    last: int,
    selected: int,
) -> dict[str, Any]:
    """The run in one dictionary, from which tables and reports are made."""
    odd = {member.name for member in roster.members if member.odd}

    def rows_in(number: int) -> list[Row]:
        rows = results.rows.where(stage=plan.stage, round=number).rows()
        return rows + [replace(r, on="odd") for r in rows if r.on == "seen" and r.client in odd]

    records = results.records
    _, higher = ranked_by(plan.recipe.objective, plan.problem)
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
        "primary_metric": plan.primary,
        "higher_is_better": plan.higher_is_better,
        "rounds": last,
        "selected_round": selected,
        "scores": scores,
        "bytes": {
            "up": sum(record.bytes_up for record in records),
            "down": sum(record.bytes_down for record in records),
        },
        "privacy": _privacy(config, plan, roster, results),
        "failures": sum(len(record.failures) for record in records),
        "warnings": [
            *roster.warnings,
            *_as_stored(config, roster),
            *plan.recipe.objective.remarks(roster),
            *_passed_over(plan, results),
        ],
        "unscored": unscored(plan, roster, results, selected),
        "seconds": results.seconds,
        "plan": plan.execution.as_dict(),
        "model": {"name": config.model.name, "knobs": (plan.model or config.model).knobs},
        "sample_shape": list(roster.sample_shape),
        "classes": roster.outputs,
    }
