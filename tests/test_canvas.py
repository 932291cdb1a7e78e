"""One palette and one way to write a figure, whoever draws."""

from __future__ import annotations

import csv
import re
import subprocess
import sys
from pathlib import Path

import pytest
from matplotlib.colors import to_hex
from matplotlib.image import imread

import fedskew
from fedskew.canvas import (
    PALETTE,
    Picture,
    blank_figure,
    draw_band,
    draw_bars,
    line_styles,
    save_figure,
    save_picture,
)

ROOT = Path(fedskew.__file__).parent
OTHERS = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "canvas.py")


@pytest.mark.parametrize("path", OTHERS, ids=lambda path: str(path.relative_to(ROOT)))
def test_nobody_else_mixes_colours_or_writes_figures(path: Path) -> None:
    code = path.read_text()
    assert re.findall(r"\"#[0-9a-fA-F]{6}\"", code) == []
    assert "savefig" not in code


def test_importing_what_draws_does_not_import_matplotlib() -> None:
    code = "import sys, fedskew.api, fedskew.deploy.drift; print('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_many_curves_keep_a_look_of_their_own() -> None:
    roles = ["alone", "pooled", *["method", "control"] * 21]
    assert len(set(line_styles(roles))) == len(roles)
    assert len(set(line_styles(["reference"] * 6))) == 6


def test_methods_and_controls_share_no_colour_while_there_are_enough() -> None:
    """Seven, for black is the colour of references."""
    colours = [colour for colour, _ in line_styles(["method", "control"] * 3 + ["method"])]
    assert colours == list(PALETTE[:7])


def test_references_do_not_change_the_look_of_methods() -> None:
    alone, first, pooled, second = line_styles(["alone", "method", "pooled", "method"])
    assert [first, second] == line_styles(["method", "method"])
    assert [alone, pooled] == line_styles(["alone", "pooled"])


def test_equal_figures_are_equal_files_of_150_dots_an_inch(tmp_path: Path) -> None:
    for name in ("one.png", "two.png"):
        figure = blank_figure(2, 1)
        figure.subplots().plot([1, 2])
        save_figure(figure, tmp_path / name)
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two.png").read_bytes()
    assert imread(tmp_path / "one.png").shape[:2] == (150, 300)


def test_a_picture_is_its_numbers_and_a_figure(tmp_path: Path) -> None:
    table = [{"client": "ann", "score": 0.5}, {"client": "bob", "score": None}]
    save_picture(tmp_path, Picture("scores", table, lambda: blank_figure(1, 1)))
    with open(tmp_path / "scores.csv", newline="") as file:
        assert list(csv.reader(file)) == [["client", "score"], ["ann", "0.5"], ["bob", ""]]
    assert (tmp_path / "scores.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_without_numbers_is_not_written(tmp_path: Path) -> None:
    save_picture(tmp_path, Picture("empty", [], lambda: blank_figure(1, 1)))
    assert list(tmp_path.iterdir()) == []


def test_a_band_goes_from_the_low_to_the_high_end_of_intervals() -> None:
    axes = blank_figure(2, 2).subplots()
    table = [
        {"round": 1, "mean": 0.5, "low": 0.25, "high": 0.75},
        {"round": 2, "mean": 0.75, "low": 0.625, "high": 0.875},
    ]
    draw_band(axes, table, PALETTE[0], "ours")
    (line,), (band,) = axes.lines, axes.collections
    assert line.get_xydata().tolist() == [[1, 0.5], [2, 0.75]]
    corners = {tuple(corner) for corner in band.get_paths()[0].vertices.tolist()}
    assert {(1, 0.25), (1, 0.75), (2, 0.625), (2, 0.875)} <= corners
    assert to_hex(line.get_color()) == PALETTE[0].lower()


def test_a_band_of_one_seed_is_a_line() -> None:
    axes = blank_figure(2, 2).subplots()
    draw_band(axes, [{"round": 1, "mean": 0.5, "low": None, "high": None}], PALETTE[0], "ours")
    assert (len(axes.lines), len(axes.collections)) == (1, 0)


def test_bars_without_a_length_are_points() -> None:
    axes = blank_figure(2, 2).subplots()
    draw_bars(axes, [1.0, 2.0], [0.5, 0.75], [float("nan"), 0.25], PALETTE[0], "ours")
    (bars,) = axes.collections
    ends = [segment[:, 1].tolist() for segment in bars.get_segments()]
    assert ends == [[0.5, 0.5], [0.5, 1.0]]
