"""Features that nobody scaled are pointed out: 'unit' is for images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedskew


def warnings(folder: Path, x: Any, **federation: Any) -> list[str]:
    np.savez(folder / "own.npz", x=x, y=np.arange(len(x)) % 2)
    settings = {
        "model": "logistic",
        "federation": {
            "dataset": str(folder / "own.npz"), "clients": 2, "partition": "iid", **federation,
        },
        "train": {"rounds": 1},
    }  # fmt: skip
    found: list[str] = fedskew.run(settings, out=folder, draw=False).result["warnings"]
    return found


def test_features_as_stored_are_pointed_out_with_their_range(tmp_path: Path) -> None:
    x = np.tile([[-2.0, 0.5], [1.0, 900.0]], (20, 1))
    (sentence,) = warnings(tmp_path, x, normalise="unit")
    assert sentence.startswith("features were used as they are stored, from -2 to 900,")
    assert "Set it to 'standard', or federation.features = {scale = 'feature'}" in sentence


@pytest.mark.parametrize(
    ("wide", "federation"),
    [
        (900.0, {"normalise": "standard"}),
        (900.0, {"normalise": "unit", "features": {"scale": "feature"}}),
        (9.0, {"normalise": "unit"}),
    ],
)
def test_scaled_or_narrow_features_are_nothing_to_say(
    tmp_path: Path, wide: float, federation: dict[str, Any]
) -> None:
    x = np.tile([[-2.0, 0.5], [1.0, wide]], (20, 1))
    assert warnings(tmp_path, x, **federation) == []


def test_images_have_a_range_of_their_own(tmp_path: Path) -> None:
    x = np.arange(40 * 16, dtype=np.float32).reshape(40, 4, 4) % 17
    assert warnings(tmp_path, x, normalise="unit") == []
