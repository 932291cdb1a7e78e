"""Full bake-offs: every method for all rounds, and what it scored on the way."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.recommend_parts.federations import CASES, ROUNDS, Case
from fedskew.comparisons.runner import Runner
from fedskew.config import Config, Named
from fedskew.errors import ConfigError
from fedskew.methods import find
from fedskew.runs.experiment import Run
from fedskew.runs.identity import resolve

GRID = (3, 5, 8, 11, 14, ROUNDS)
"""Rounds at which a method that fine-tunes is stopped, fine-tuned and scored, then extended."""
METHODS = (
    "local", "fedavg", "fedprox", "scaffold", "fednova", "fedgma", "ditto", "fed-classifier",
    "fedper", "fedrep", "fedrod", "per-fedavg", "fedbabu", "fedshibu", "fedavg-crsm", "grouped",
    "self-mix",
)  # fmt: skip


def lines(folder: Path, seeds: range, done: set[tuple[str, str, int]]) -> Iterator[dict[str, Any]]:
    """A line for each federation, method and seed that is not done yet."""
    for seed in seeds:
        for case in CASES:
            left = [name for name in METHODS if (case.name, name, seed) not in done]
            if left:
                yield from _of(case, seed, left, folder)


def _of(case: Case, seed: int, methods: list[str], folder: Path) -> Iterator[dict[str, Any]]:
    config = case.config(folder, seed)
    given = case.changed(config)
    config = case.on_its_data(config, given)
    runner = Runner(folder / "runs", None, tell=lambda _: None, given=given)
    for name in methods:
        start, busy = time.perf_counter(), time.process_time()
        own = resolve(config.model_copy(update={"method": Named(name=name)}))
        try:
            runner.check([own])
        except ConfigError as error:
            yield {
                "case": case.name,
                "method": name,
                "seed": seed,
                "refused": str(error),
                "busy": 0,
            }
            continue
        found = _measured(runner, own)
        spent = {"seconds": time.perf_counter() - start, "busy": time.process_time() - busy}
        yield {"case": case.name, "method": name, "seed": seed, **found, **spent}


def _measured(runner: Runner, config: Config) -> dict[str, Any]:
    """Scores by split, round and client, and beside them those of the fine-tuned model."""
    adapts = find(config.method.name).recipe(**config.method.knobs).adapts is not None
    tuned: dict[str, Any] = {}
    for rounds in GRID if adapts else (ROUNDS,):
        train = config.train.model_copy(update={"rounds": rounds})
        run = runner.run(config.model_copy(update={"train": train}))
        if adapts:
            tuned[str(rounds)] = _tuned(run)
    result, rows = run.result, run.results.as_trained
    mine = rows.where(on="seen", model=result["primary_model"])
    return {
        "metric": result["primary_metric"],
        "higher": result["higher_is_better"],
        "bytes": result["bytes"],
        "loss": _by_round(mine.where(split="validation", metric="loss")),
        "tuned": tuned,
        **{
            split: _by_round(mine.where(split=split, metric=result["primary_metric"]))
            for split in ("validation", "test")
        },
    }


def _by_round(rows: Any) -> dict[str, dict[str, list[float]]]:
    found: dict[str, dict[str, list[float]]] = {}
    for row in rows.rows():
        found.setdefault(str(row.round), {})[row.client] = [round(row.value, 5), row.n]
    return found


def _tuned(run: Run) -> dict[str, Any]:
    """Of the selected round, by split and client, as fine-tuned."""
    result = run.result
    at = result["selected_round"]
    rows = run.results.rows.where(
        stage="main", on="seen", model=result["primary_model"], round=at,
        metric=result["primary_metric"],
    )  # fmt: skip
    found: dict[str, Any] = {"validation": {}, "test": {}}
    for row in rows.rows():
        if row.adapted != "none" and row.split in found:
            found[row.split][row.client] = [round(row.value, 5), row.n]
    return found


def kept(path: Path) -> list[dict[str, Any]]:
    """The lines that were written before."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
