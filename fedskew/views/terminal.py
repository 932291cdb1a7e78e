"""What a run looks like in a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from rich import box
from rich.table import Table

from fedskew.config import Config
from fedskew.errors import FedskewError
from fedskew.federate.metrics import MAIN
from fedskew.federate.progress import RoundRecord
from fedskew.federate.recipe import Stage
from fedskew.methods import find
from fedskew.parts.metrics import rises
from fedskew.runs.experiment import Run
from fedskew.runs.findings import lines_of
from fedskew.runs.results import Results
from fedskew.views.kept import kept_lines
from fedskew.views.metrics import metric_lines

MOST_FAILURES = 10
SPREAD = {"mean": "mean", "std": "std", "worst client": "worst", "bottom decile": "bottom_decile"}


@dataclass(frozen=True)
class StagePlan:
    """A stage of a run before it starts: its rounds, and the metric it is judged by.

    No metric stands for that of what is to be learned, which is known once there are scores.
    """

    rounds: int
    metric: str
    higher_is_better: bool


def stage_plans(config: Config) -> dict[str, StagePlan]:
    """The stages of a config's method, in order, by name."""
    recipe = find(config.method.name).recipe(**config.method.knobs)
    planned = {}
    for stage in (*recipe.prepares, Stage(MAIN, recipe)):
        objective = stage.recipe.objective
        metric, rising = objective.primary, objective.higher_is_better
        if stage.name == MAIN and config.evaluate.metric is not None:
            metric = config.evaluate.metric
            rising = rises(metric, rising)
        planned[stage.name] = StagePlan(stage.lasts(config.train.rounds), metric, rising)
    return planned


def clock(seconds: float) -> str:
    """
    >>> clock(75), clock(3725)
    ('1:15', '1:02:05')
    """
    whole = round(seconds)
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A table without frames, whose first column is never wrapped."""
    result = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for position, title in enumerate(header):
        result.add_column(title, no_wrap=position == 0, overflow="fold")
    for row in rows:
        result.add_row(*(cell.replace("[", "\\[") for cell in row))
    return result


def run_summary(run: Run) -> str:
    """Status, scores, traffic and everything that went wrong, as lines of text."""
    results = run.results
    records, config = results.records, results.config
    facts = {
        "run": str(run.path),
        "method": f"{config.method.name} {_knobs(config.method.knobs)}".strip(),
        "data": f"{config.federation.dataset}, seed {config.seed}",
        "status": _status(results),
    }
    if results.is_finished:
        result = results.summary
        model = result["model"]
        facts |= {
            "model": f"{model['name']} {_knobs(model['knobs'])}".strip(),
            "executor": f"{result['plan']['executor']}: {result['plan']['reason']}",
        }
        if spent := result.get("privacy"):
            facts["privacy"] = _privacy(spent)
    facts |= {
        "sent": f"{_megabytes(r.bytes_up for r in records)} up, "
        f"{_megabytes(r.bytes_down for r in records)} down",
        "time": f"{clock(results.seconds)} ({results.seconds:.1f} s)",
    }
    lines = [f"{name.ljust(8)}  {text}" for name, text in facts.items()]
    if results.is_finished:
        lines += ["", *_scores(result), *_judged(result), *_found_by_the_server(results)]
        lines += metric_lines(result)
        lines += ["", *kept_lines(results.kept)] if results.kept else []
        lines += _how_far(records)
        lines += lines_of(config, result)
        lines += [f"note: {note.splitlines()[0]}" for note in result["notes"]]
        lines += [f"note: {sentence}" for sentence in result.get("unscored", ())]
        lines += [f"warning: {warning}" for warning in result.get("warnings", ())]
    return "\n".join([*lines, *_troubles(records)])


def _privacy(spent: Mapping[str, Any]) -> str:
    """The ε of a run, or why there is none."""
    if spent["epsilon"] is None:
        return f"no epsilon: {spent['why']}"
    return (
        f"epsilon {spent['epsilon']:.3g} at delta {spent['delta']:g} "
        "(client level: one client in another's place)"
    )


def _status(results: Results) -> str:
    if results.is_finished:
        result = results.summary
        return f"finished after round {result['rounds']}, selected round {result['selected_round']}"
    going_on = "repeat its command to go on"
    if "format" not in results.settings:
        going_on = "it is of an older format and cannot be resumed"
    if not results.records:
        return f"no round complete yet; {going_on}"
    last = results.records[-1]
    try:
        planned = stage_plans(results.config)
        of = f" of {planned[last.stage].rounds}"
    except (FedskewError, KeyError):
        # Its method may be code that is gone, or that may not run here.
        planned, of = {}, ""
    stage = f" of stage {last.stage}" if len(planned) > 1 else ""
    return f"round {last.round}{of}{stage} complete; {going_on}"


def _scores(result: Mapping[str, Any]) -> list[str]:
    """Test scores, one line each: which model, which clients, how adapted, at which round."""
    header = ["model", "on", "adapted", "round", "metric", *SPREAD]
    lines: dict[tuple[Any, ...], list[str]] = {}
    # "selected" before "last", and only one of them if both are the same round.
    for score in sorted(result["scores"], key=lambda s: str(s["at"]), reverse=True):
        if score["split"] != "test" or score["metric"] != result["primary_metric"]:
            continue
        what = (score["model"], score["on"], score["adapted"], score["round"])
        place = [*what[:3], f"{score['round']} ({score['at']})", score["metric"]]
        alone = score["on"] == "central"
        numbers = ["–" if alone and k != "mean" else f"{score[k]:.3f}" for k in SPREAD.values()]
        lines.setdefault(what, [*place, *numbers])
    rows = [header, *lines.values()]
    widths = [max(len(row[i]) for row in rows) for i in range(len(header))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _judged(result: Mapping[str, Any]) -> list[str]:
    """How good samples drawn from the models are, if that was asked for."""
    names = {"cas": "CAS", "frechet": "Fréchet", "precision": "precision", "recall": "recall"}
    found: dict[tuple[str, int], list[str]] = {}
    for score in result["scores"]:
        if score["metric"] in names and score["at"] == "selected":
            place = (score["model"], score["round"])
            found.setdefault(place, []).append(f"{names[score['metric']]} {score['mean']:.3f}")
    lines = [
        f"samples drawn, {model}, round {number}: {', '.join(texts)}"
        for (model, number), texts in found.items()
    ]
    return ["", *lines] if lines else []


def _found_by_the_server(results: Results) -> list[str]:
    """What the server measured about the clients in the last round, in one line."""
    last = results.summary["rounds"]
    found_out = results.rows.where(split="server", round=last)
    values = {m: found_out.where(metric=m).value.tolist() for m in found_out.names("metric")}
    groups = values.pop("group", None)
    texts = [f"{len(set(groups))} groups"] if groups else []
    for metric, found in values.items():
        spread = f"{fmean(found):.3f} ({min(found):.3f} to {max(found):.3f})"
        texts.append(f"{metric.replace('_', ' ')} {spread}")
    return ["", f"clients after round {last}, mean and range: {', '.join(texts)}"] if texts else []


def _how_far(records: Sequence[RoundRecord]) -> list[str]:
    """How far clients' models went from what they were sent, in the last round."""
    norms = records[-1].update_norms if records else {}
    if not norms:
        return []
    farthest = max(norms, key=lambda client: norms[client])
    return [
        f"updates of round {records[-1].round}: norm {median(norms.values()):.3g} (median), "
        f"{norms[farthest]:.3g} ({farthest}, the largest)"
    ]


def _troubles(records: Sequence[RoundRecord]) -> list[str]:
    notes = Counter(note for record in records for note in record.notes)
    lines = [f"note: {note} ({count} rounds)" for note, count in notes.items()]
    failures = [(r.round, client, why) for r in records for client, why in r.failures.items()]
    lines += [f"failed: {c} in round {n}: {why}" for n, c, why in failures[:MOST_FAILURES]]
    if len(failures) > MOST_FAILURES:
        lines.append(f"... and {len(failures) - MOST_FAILURES} more in rounds.jsonl")
    return ["", *lines] if lines else []


def _knobs(knobs: Mapping[str, Any]) -> str:
    """
    >>> _knobs({"eta": 0.5, "base": {"name": "fedprox", "mu": 0.1}})
    'base=fedprox (mu=0.1), eta=0.5'
    """
    return ", ".join(f"{name}={_value(value)}" for name, value in sorted(knobs.items()))


def _value(value: Any) -> str:
    if not (isinstance(value, Mapping) and "name" in value):
        return str(value)
    inner = _knobs({name: each for name, each in value.items() if name != "name"})
    return f"{value['name']} ({inner})" if inner else str(value["name"])


def _clients(count: int) -> str:
    return f"{count} client{'s' if count > 1 else ''}"


def _megabytes(counts: Any) -> str:
    return f"{sum(counts) / 1e6:.1f} MB"
