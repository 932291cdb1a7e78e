"""Which federations the estimators are compared on, and the runs that do it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedskew import make_config
from fedskew.config import Config
from fedskew.runs.identity import resolve

ESTIMATORS = {
    "likelihood": "the ratio of the two MADEs' densities, tempered on validation data",
    "sampled": "held-out odds of a classifier between the client's samples and draws from "
    "everybody's MADE",
    "cross-fitted": "held-out odds of a classifier between the two MADEs' outputs on the client's "
    "samples",
    "literal": "the published one: as before, but not held out",
}
LAWS = {
    "gaussian": "Gaussians with means apart",
    "bernoulli": "independent bits with other chances",
    "digits": "MNIST dealt at random, each client keeping rows by where they lie (skew "
    "`selection`)",
}
DIMENSIONS, SHIFTS, STRENGTHS, SEEDS = (2, 20, 200, 784), (1.0, 2.0), (1.0, 3.0), 2
OWNERS, ROWS, IMAGES, PIXELS = 10, 500, 10_000, 784
TEST, VALIDATION = 0.2, 0.15
DRAWN = (("gaussian", 20, 1.0), ("bernoulli", 20, 1.0), ("digits", PIXELS, 3.0))
"""The federations one client of which is drawn sample by sample."""


@dataclass(frozen=True)
class Setting:
    """One federation, but for its seed; without a shift all clients are alike."""

    law: str
    dimensions: int
    shift: float
    seeds: int = SEEDS
    quick: bool = False

    @property
    def label(self) -> str:
        if self.law == "digits":
            return f"digits, selection {self.shift:g}"
        return f"{self.law}, {self.dimensions} dimensions, shift {self.shift:g}"

    @property
    def folder(self) -> str:
        return f"{self.law}-{self.dimensions}-{self.shift:g}" + ("-quick" if self.quick else "")

    @property
    def drawn(self) -> bool:
        return self.shift > 0 and (self.quick or (self.law, self.dimensions, self.shift) in DRAWN)

    @property
    def numbers(self) -> int:
        """How many numbers all samples are: what a run costs."""
        return self.dimensions * (IMAGES if self.law == "digits" else OWNERS * ROWS)

    def config(self, estimator: str, seed: int) -> Config:
        """The run: its main stage is as short as can be, for only the weights are studied."""
        method: dict[str, Any] = {
            "name": "feddisk", "estimator": estimator,
            "density": "gaussian-made" if self.law == "gaussian" else "made",
        }  # fmt: skip
        if self.quick:
            method |= {"density_rounds": 2, "local_epochs": 3}
        settings = {
            "seed": seed,
            "federation": {"test": TEST, "validation": VALIDATION, **self._federation(seed)},
            "model": "logistic",
            "method": method,
            "train": {"rounds": 1},
        }
        return resolve(make_config(settings))

    def _federation(self, seed: int) -> dict[str, Any]:
        if self.law == "digits":
            return {
                "dataset": "mnist", "normalise": "unit", "partition": "iid", "clients": OWNERS,
                "samples": IMAGES, "test_from": "holdout",
                "skew": [{"name": "selection", "strength": self.shift}],
            }  # fmt: skip
        owners, rows = (3, 60) if self.quick else (OWNERS, ROWS)
        return {
            "dataset": f"{self.law}-clients", "partition": "owner", "clients": owners,
            "normalise": "unit" if self.law == "bernoulli" else "standard",
            "options": {"owners": owners, "size": rows, "dimensions": self.dimensions,
                        "shift": self.shift, "data_seed": seed},
        }  # fmt: skip


def settings(quick: bool = False) -> list[Setting]:
    """All federations, in the order of the tables."""
    if quick:
        return [
            Setting("bernoulli", dimensions, shift, seeds, quick=True)
            for dimensions, shift, seeds in ((2, 1.0, 2), (6, 1.0, 2), (6, 0.0, 1))
        ]
    made = [
        Setting(law, dimensions, shift, SEEDS if shift else 1)
        for law in ("gaussian", "bernoulli")
        for dimensions in DIMENSIONS
        for shift in (*SHIFTS, 0.0)
    ]
    return made + [Setting("digits", PIXELS, strength) for strength in STRENGTHS]


def cheapest_first(chosen: list[Setting]) -> list[tuple[Setting, int]]:
    """Every federation and seed, in the order they run."""
    ordered = sorted(chosen, key=lambda setting: setting.numbers)
    return [(setting, seed) for setting in ordered for seed in range(setting.seeds)]
