"""The runs of a suite at a scale: every setting x seed x arm as a config."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedskew.config import Config, FederationSection, config_of
from fedskew.data.datasets import DATASETS
from fedskew.errors import ConfigError
from fedskew.papers.entries import Arm, Fallback, Scale, Setting, merged
from fedskew.papers.format import Suite, method_table
from fedskew.papers.pairs import matches
from fedskew.runs.identity import resolve


@dataclass(frozen=True)
class Cell:
    """One run of a suite; ``left_out`` is the client it does without, where it is a fold."""

    setting: str
    arm: str
    seed: int
    config: Config
    left_out: str = ""

    @property
    def label(self) -> str:
        """What observers call the run."""
        without = f" · without {self.left_out}" if self.left_out else ""
        return f"{self.setting} · {self.arm} · seed {self.seed}{without}"


def keys_of(plan: Iterable[Cell], labels: Collection[str]) -> frozenset[tuple[str, str, int]]:
    """Setting, arm and seed of the cells that observers call so."""
    return frozenset((c.setting, c.arm, c.seed) for c in plan if c.label in labels)


def cells(
    suite: Suite, scale_name: str, fallback: Fallback | None = None, seeds: int | None = None
) -> list[Cell]:
    """Every run of a scale, or of so many ``seeds``; those on the same data follow each other."""
    scale = suite.scale(scale_name)
    return [
        Cell(setting.name, arm.name, seed, _config(suite, scale, setting, arm, seed, fallback))
        for setting in _settings(suite, scale, fallback)
        for seed in range(seeds or scale.seeds_on.get(setting.name, scale.seeds))
        for arm in _arms(suite, scale, setting, fallback)
    ]


def _settings(suite: Suite, scale: Scale, fallback: Fallback | None) -> Iterable[Setting]:
    limits = (scale.settings, fallback.settings if fallback else None)
    allowed = [set(limit) for limit in limits if limit is not None]
    return [
        setting for setting in suite.settings if all(setting.name in names for names in allowed)
    ]


def _arms(suite: Suite, scale: Scale, setting: Setting, fallback: Fallback | None) -> Iterable[Arm]:
    limits = (setting.arms, scale.arms, fallback.arms if fallback else None)
    allowed = [limit for limit in limits if limit is not None]
    return [arm for arm in suite.arms if all(matches(arm.name, limit) for limit in allowed)]


def _config(
    suite: Suite, scale: Scale, setting: Setting, arm: Arm, seed: int, fallback: Fallback | None
) -> Config:
    last = fallback.config if fallback else {}
    below = merged(
        suite.defaults, scale.config, setting.config, scale.by_setting.get(setting.name, {})
    )
    federation = merged(below, arm.config, last).get("federation", {})
    dataset = federation.get("dataset", FederationSection().dataset)
    values = merged(
        below,
        arm.config,
        method_table(arm.method),
        arm.on.get(dataset, {}),
        arm.on.get(setting.name, {}),
        *(config for like, config in scale.by_arm.items() if matches(arm.name, [like])),
        last,
        {"seed": seed},
    )
    try:
        return resolve(config_of(values))
    except ConfigError as error:
        where = f"suite {suite.name!r}, setting {setting.name!r}, arm {arm.name!r}"
        raise ConfigError(f"{where}: {error}") from None


def missing_datasets(plan: Iterable[Cell], data_dir: Path | None) -> list[str]:
    """Which named datasets of these runs have no files here."""
    names = {cell.config.federation.dataset for cell in plan}
    known = sorted(names & DATASETS.keys())
    return [name for name in known if DATASETS[name].is_missing(data_dir)]


def flat(values: Any, prefix: str = "") -> dict[str, Any]:
    """Nested tables as dotted keys; a named table is one value.

    >>> flat({"train": {"lr": 0.1}, "model": {"name": "mlp", "hidden": [8]}})
    {'train.lr': 0.1, 'model': 'mlp (hidden=[8])'}
    """
    if isinstance(values, dict) and "name" in values:
        knobs = ", ".join(f"{k}={v}" for k, v in values.items() if k != "name")
        return {prefix: f"{values['name']} ({knobs})" if knobs else str(values["name"])}
    if isinstance(values, dict) and values:
        found: dict[str, Any] = {}
        for key, value in values.items():
            found.update(flat(value, f"{prefix}.{key}" if prefix else key))
        return found
    if isinstance(values, list):
        return {prefix: ", ".join(str(v) for item in values for v in flat(item).values()) or "none"}
    return {prefix: values}
