"""The picture of synthetic samples."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image


def test_the_picture_has_a_row_a_class_and_is_white_where_one_is_missing(tmp_path: Path) -> None:
    from fedskew.deploy.generate import Generated
    from fedskew.deploy.sample_sheet import draw_samples

    x = torch.zeros(6, 1, 4, 4)
    made = Generated(
        x, np.array([0, 0, 0, 2, 2, 2]), np.ones(6, np.float32), ("a", "b", "c"),
        "unit", "", "a toy", 6, {},
    )  # fmt: skip
    draw_samples(tmp_path / "toy.png", made)
    pixels = np.asarray(Image.open(tmp_path / "toy.png").convert("L"))
    dark = (pixels < 40).sum(axis=1) > 150
    starts = np.flatnonzero(np.diff(dark.astype(int)) == 1)
    assert len(starts) == 2
    (gap,) = np.diff(starts)
    height = int(dark[starts[0] + 1 :].argmin())
    assert gap > 1.8 * height
