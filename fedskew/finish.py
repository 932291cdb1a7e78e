"""The end of a run: last looks at its models, saving them, and the summary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedskew.backends.local import LocalBackend
from fedskew.config import Config
from fedskew.data.warnings import warnings
from fedskew.engine.streams import stream
from fedskew.folder import RunFolder
from fedskew.parts.generative import from_prior
from fedskew.parts.objective import Bound, Tensors
from fedskew.predictions import PREDICTIONS, Predictions
from fedskew.runs.results import Results
from fedskew.score import CENTRAL, Row, by_group, summarise
from fedskew.scoring import on_central_test
from fedskew.server import (
    Progress,
    Rounds,
    has_global_model,
    has_personal_models,
    primary_model,
    score_tasks,
    scored,
)
from fedskew.site import Site
from fedskew.store import save_tensors
from fedskew.weighing import SAMPLE_WEIGHTS, told
from fedskew.weighing import save as save_weights


def finish(
    config: Config,
    site: Site,
    backend: LocalBackend,
    rounds: Rounds,
    folder: RunFolder,
    sent: Mapping[str, int],
) -> Results:
    """Score what is scored once, save all models, sum up; from the last and the selected round.

    ``sent`` says how many parameters a client sends each round, by stage.
    """
    more: list[Row] = []
    notes: list[str] = []
    predictions = Predictions()
    stored = {"last": folder.last(site.stage), "selected": folder.selected(site.stage)}
    last, selected = (progress.round for progress, _ in stored.values())
    for which, (progress, private) in stored.items():
        backend.restore(private)
        if which == "last" or selected != last:
            at = config.evaluate.fine_tune_at
            adapts = rounds.adapts if at in ("both", which) or selected == last else ()
            # As they are, models are looked at once more for what they said of every sample.
            for adapt in (*([None] if progress.round == selected else []), *adapts):
                tasks = score_tasks(site, progress.state, progress.round, adapt, samples=True)
                results = scored(site, backend, tasks)
                if adapt is not None:
                    more += [row for _, rows in results for row in rows]
                if progress.round == selected:
                    predictions.add([on for on, _ in tasks], adapt, [found for found, _ in results])
                notes += [
                    f"{found.client} could not be adapted: {found.error}"
                    for found, _ in results
                    if found.error
                ]
            if "decoder" in site.recipe.objective.needs and len(site.federation.central_test):
                more += generative_rows(site, backend, progress, config.evaluate.generated)
        save_models(site, backend, progress, folder.path / "models" / which)
    predictions.save(folder.path / PREDICTIONS)
    folder.write_last(more)
    whole = Results(folder.path, whole=True)
    result = summary(config, site, whole, last, selected)
    result["stages"] = [_stage(folder, whole, name, count) for name, count in sent.items()]
    result["sample_weights"] = told(site.federation, backend.private_state())
    if result["sample_weights"] is not None:
        save_weights(folder.path / SAMPLE_WEIGHTS, site.federation, backend.private_state())
    folder.finish({**result, "notes": notes})
    return whole


def _stage(folder: RunFolder, results: Results, name: str, parameters: int) -> dict[str, Any]:
    """How long a stage went on, and what it sent."""
    records = [record for record in results.records if record.stage == name]
    return {
        "name": name,
        "rounds": folder.last(name)[0].round,
        "selected_round": folder.selected(name)[0].round,
        "parameters": parameters,
        "bytes_up": sum(record.bytes_up for record in records),
        "bytes_down": sum(record.bytes_down for record in records),
    }


def generative_rows(
    site: Site, backend: LocalBackend, progress: Progress, generated: int
) -> list[Row]:
    """What is asked of a generative model once: its samples, and the clients' models together.

    The clients' own models are scored on the central test set, one by one and, if by a loss, as
    an ensemble: every sample by the model that explains it best.
    """
    state, objective = progress.state, site.recipe.objective
    rows: list[Row] = []

    def note(model: str, client: str, found: Mapping[str, float]) -> None:
        for metric, value in found.items():
            rows.append(
                Row(
                    stage=site.stage, round=progress.round, model=model, on="central",
                    client=client, adapted="none", split="test", metric=metric, value=value,
                    n=len(site.federation.central_test),
                )
            )  # fmt: skip

    if has_global_model(site) and generated:
        sources = {"": {**site.initial, **state.shared}}
        note("global", CENTRAL, _judged(site, sources, generated))
    if has_personal_models(site):
        own = {
            client.name: backend.personal_model(client.name, state.sent_to(client.name))
            for client in site.federation.clients
        }
        values = on_central_test(site, own)
        for client, found in values.items():
            note("personal", client, objective.summed(found))
        best: dict[str, float] = {}
        if not objective.higher_is_better:
            each = torch.stack([found[objective.primary] for found in values.values()])
            best[f"ensemble_{objective.primary}"] = float(each.min(dim=0).values.mean())
        if generated:
            best |= _judged(site, own, generated)
        note("personal", CENTRAL, best)
    return rows


def _judged(site: Site, models: Mapping[str, Tensors], count: int) -> dict[str, float]:
    """Samples of some models, as many of each as its client holds of all data, judged."""
    from fedskew.quality import judged

    return judged(_drawn(site, models, count), site.federation, site.seed)


def _drawn(site: Site, models: Mapping[str, Tensors], count: int) -> Tensor:
    rng = stream(site.seed, site.stage, "generated")
    sizes = np.array([len(site.clients[n].train) if n else 1 for n in models], dtype=np.float64)
    shares = rng.multinomial(count, sizes / sizes.sum())
    module = site.evaluation.here()
    return torch.cat(
        [
            from_prior(Bound(module, tensors), int(share), rng)
            for tensors, share in zip(models.values(), shares, strict=True)
            if share
        ]
    )


def save_models(site: Site, backend: LocalBackend, progress: Progress, folder: Path) -> None:
    (folder / "personal").mkdir(parents=True, exist_ok=True)
    state = progress.state
    if has_global_model(site):
        save_tensors(folder / "global.safetensors", {**site.initial, **state.shared})
    if has_personal_models(site):
        for client in site.federation.clients:
            path = folder / "personal" / f"{client.name}.safetensors"
            save_tensors(path, backend.personal_model(client.name, state.sent_to(client.name)))


def _more_is_better(metric: str, primary: bool) -> bool:
    """Whether the worst client is the one with least; ``primary`` says it of the main metric."""
    if metric.endswith("loss"):
        return False
    return primary or metric.endswith("accuracy")


def summary(
    config: Config,
    site: Site,
    results: Results,
    last: int,
    selected: int,
) -> dict[str, Any]:
    """The run in one dictionary: what tables and reports are made of."""
    odd = set(site.federation.odd)

    def rows_in(number: int) -> list[Row]:
        rows = results.rows.where(stage=site.stage, round=number).rows()
        return rows + [replace(r, on="odd") for r in rows if r.on == "seen" and r.client in odd]

    records = results.records
    higher = site.recipe.objective.higher_is_better
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
        "primary_model": primary_model(site),
        "primary_metric": site.recipe.objective.primary,
        "higher_is_better": higher,
        "rounds": last,
        "selected_round": selected,
        "scores": scores,
        "bytes": {
            "up": sum(record.bytes_up for record in records),
            "down": sum(record.bytes_down for record in records),
        },
        "privacy": site.recipe.aggregates.spent(
            last, per_round or len(site.federation.clients), len(site.federation.clients)
        ),
        "failures": sum(len(record.failures) for record in records),
        "warnings": [
            *warnings(site.federation),
            *site.recipe.objective.remarks(site.federation),
        ],
        "seconds": results.seconds,
        "plan": site.plan.as_dict(),
        "model": {"name": config.model.name, "knobs": config.model.knobs},
        "sample_shape": list(site.federation.sample_shape),
        "classes": site.federation.classes,
    }
