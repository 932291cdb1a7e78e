"""Rows of made-up clinics with words, missing values and an id, for tests of deployment."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np

HEADER = ("patient", "age", "ward", "bp", "smoker", "admitted", "outcome")
FEATURES = ("age", "ward", "bp", "smoker", "admitted")
Row = list[str]


def rows(count: int, seed: int, older: float = 0.0, wards: str = "ABC") -> list[Row]:
    """Patients; of one in ten the age is not known."""
    rng = np.random.default_rng(seed)
    made = []
    for number in range(count):
        age, ward = rng.normal(50 + older, 12), str(rng.choice(list(wards)))
        sick = (age - 50) / 12 + 1.5 * (ward == "A") + rng.normal(0, 0.5) > 0.5
        made.append(
            [
                f"P{seed}-{number:04d}", "" if rng.random() < 0.1 else f"{age:.1f}", ward,
                f"{rng.normal(120, 15):.0f}", str(rng.choice(["yes", "no"])),
                f"2024-{rng.integers(1, 13):02d}-{rng.integers(1, 29):02d}",
                "sick" if sick else "well",
            ]
        )  # fmt: skip
    return made


def write(path: Path, of: list[Row], columns: tuple[str, ...] = HEADER) -> Path:
    """A CSV of some columns, in the order that they are named."""
    places = [HEADER.index(name) for name in columns]
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows([[row[place] for place in places] for row in of])
    return path


def settings(data: Path, **train: Any) -> dict[str, Any]:
    """A quick run on such a file."""
    return {
        "model": {"name": "mlp", "hidden": [12]},
        "federation": {
            "dataset": str(data), "label": "outcome", "clients": 3, "partition": "iid",
            "validation": 0.2, "columns": {"patient": "ignore"},
        },
        "train": {"rounds": 5, "epochs": 3, "lr": 0.1, **train},
    }  # fmt: skip
