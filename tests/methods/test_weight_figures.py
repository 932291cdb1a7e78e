"""What a run with sample weights shows: its lines in the terminal, its figures and their data."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import left_by
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from fedskew.api import run
from fedskew.methods import weight_figures as drawn
from fedskew.methods.sample_weights import SampleWeightsLeft
from fedskew.parts.sample_weights import ALL_EQUAL, FINE, TOO_FEW
from fedskew.runs.experiment import Run, load_run, make_federation
from fedskew.store import read_sealed, save_arrays, write_sealed
from fedskew.types import Groups
from fedskew.views.figures import draw_run
from fedskew.views.terminal import run_summary

SETTINGS: dict[str, Any] = {
    "model": "logistic", "train": {"rounds": 1}, "federation": {"clients": 4},
}  # fmt: skip
FELL_BACK = "client-003"
FIGURES = ("sample-weights", "density-ratios")


@pytest.fixture(scope="module")
def unweighed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(SETTINGS, out=tmp_path_factory.mktemp("runs"))


def weighed(unweighed: Run, folder: Path, known: bool, estimated: bool = True) -> Run:
    """The run as it were had its clients weighed their samples, drawn anew.

    Log weights are half the true ratios, so that they correlate perfectly with a slope of 2.
    """
    path = folder / unweighed.path.name
    shutil.copytree(unweighed.path, path, ignore=shutil.ignore_patterns("figures"))
    federation = make_federation(unweighed.config)
    rng = np.random.default_rng(5)
    log_ratio = torch.from_numpy(rng.normal(size=len(federation.y)).astype(np.float32))
    if known:
        federation = federation.with_data(log_ratio=log_ratio)
    private: dict[str, Groups] = {}
    for client in federation.clients:
        weights = (0.5 * log_ratio[torch.from_numpy(client.train)]).exp()
        trouble = FINE if estimated and client.name != FELL_BACK else ALL_EQUAL
        if trouble:
            weights = torch.ones_like(weights)
        private[client.name] = state(weights, entropy=50.0, trouble=trouble)
    left = left_by(SampleWeightsLeft(), federation, private)
    numbers = {client: each.numbers for client, each in left.items()}
    result = read_sealed(path / "result.json")
    write_sealed(path / "result.json", {**result, SampleWeightsLeft.name: numbers})
    parts = [each.arrays for each in left.values()]
    arrays = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    save_arrays(path / f"{SampleWeightsLeft.name}.npz", arrays)
    settings = read_sealed(path / "config.json")
    settings["config"]["method"] = {"name": "feddisk"}
    write_sealed(path / "config.json", settings)
    done = load_run(path)
    draw_run(done, lambda: federation)
    return done


def state(weights: torch.Tensor, entropy: float, trouble: int) -> Groups:
    numbers = {"entropy": entropy, "power": 1.0, "trouble": float(trouble)}
    return {
        "sample_weight": {"w": weights / weights.mean()},
        "weighing": {name: torch.tensor(value) for name, value in numbers.items()},
    }


def table(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_a_run_without_sample_weights_shows_nothing_of_them(unweighed: Run) -> None:
    assert "sample weights" not in run_summary(unweighed)
    for name in FIGURES:
        assert not (unweighed.path / "figures" / f"{name}.png").exists()


def test_both_figures_come_with_their_numbers(unweighed: Run, tmp_path: Path) -> None:
    done = weighed(unweighed, tmp_path, known=True)
    for name in FIGURES:
        assert (done.path / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    entries, arrays = done.result["sample_weights"], np.load(done.path / "sample_weights.npz")
    lines = table(done.path / "figures" / "sample-weights.csv")
    assert {line["client"] for line in lines} == set(entries)
    shares = [float(line["effective_share"]) for line in lines]
    assert shares == sorted(shares)
    for line in lines:
        entry = entries[line["client"]]
        own = arrays["weight"][arrays["client"] == line["client"]]
        assert float(line["effective_share"]) == entry["effective"] / entry["n"]
        assert float(line["true_effective_share"]) == entry["truth"]["effective"] / entry["n"]
        assert float(line["median"]) == pytest.approx(np.median(own))
        assert float(line["q95"]) == pytest.approx(np.percentile(own, 95))
        assert (line["fell_back"] == "True") == (line["client"] == FELL_BACK)
    points = table(done.path / "figures" / "density-ratios.csv")
    assert len(points) == len(arrays["row"])
    at = {int(row): i for i, row in enumerate(arrays["row"])}
    for point in points[::50]:
        i = at[int(point["row"])]
        assert point["client"] == arrays["client"][i]
        assert float(point["log_weight"]) == pytest.approx(np.log(arrays["weight"][i]))
        assert float(point["true_log_ratio"]) == arrays["truth"][i]


def test_without_a_known_truth_there_is_no_picture_of_it(unweighed: Run, tmp_path: Path) -> None:
    done = weighed(unweighed, tmp_path, known=False)
    assert (done.path / "figures" / "sample-weights.png").exists()
    assert not (done.path / "figures" / "density-ratios.csv").exists()
    (line, *_) = table(done.path / "figures" / "sample-weights.csv")
    assert line["true_effective_share"] == ""
    assert "  truth:" not in run_summary(done)


def test_a_summary_tells_worth_fallbacks_privacy_and_truth(unweighed: Run, tmp_path: Path) -> None:
    done = weighed(unweighed, tmp_path, known=True)
    entries = done.result["sample_weights"]
    shares = {client: entry["effective"] / entry["n"] for client, entry in entries.items()}
    worst = min(shares, key=lambda client: shares[client])
    total = sum(entry["n"] for entry in entries.values())
    largest = max(entries, key=lambda client: entries[client]["n"])
    best = np.median([entry["truth"]["effective"] / entry["n"] for entry in entries.values()])
    bits = [50.0 * entry["n"] / total for entry in entries.values()]
    of_largest = entries[largest]["n"] / total
    said = run_summary(done).splitlines()
    start = next(i for i, line in enumerate(said) if line.startswith("sample weights"))
    assert said[start : start + 4] == [
        f"sample weights of 4 clients leave {np.median(list(shares.values())):.0%} of the samples "
        f"effective in the median, {shares[worst]:.0%} at worst ({worst})",
        "  equal at 1 client: no difference to everybody's data was found or asked for",
        "  privacy: a draw from everybody's density tells of a client's sample at most "
        f"{np.median(bits):.3g} bits in the median, {50.0 * of_largest:.3g} at most ({largest}, "
        f"who holds {of_largest:.1%} of the training samples)",
        "  truth: log weights correlate 1.00 with it in the median of 3 clients (ranks 1.00, "
        f"slope 2.00), 1.00 at worst ({_first_worst(entries)}); true weights would leave "
        f"{best:.0%} effective",
    ]


def _first_worst(entries: dict[str, Any]) -> str:
    known = {c: e["truth"]["pearson"] for c, e in entries.items() if e["truth"]["pearson"]}
    return min(known, key=lambda client: known[client])


def test_where_all_fell_back_no_correlation_is_claimed(unweighed: Run, tmp_path: Path) -> None:
    said = run_summary(weighed(unweighed, tmp_path, known=True, estimated=False))
    assert "leave 100% of the samples effective in the median, 100% at worst" in said
    assert "equal at 4 clients" in said
    assert "truth: no client's weights vary together with it" in said


def test_weights_that_are_the_truth_are_told_and_drawn_as_such(tmp_path: Path) -> None:
    done = run(
        {
            "method": {"name": "feddisk", "estimator": "oracle", "clip": 1e6, "density_rounds": 1,
                       "local_epochs": 5},
            "model": "logistic",
            "train": {"rounds": 1},
            "federation": {"dataset": "bernoulli-clients", "partition": "owner", "clients": 3,
                           "normalise": "unit",
                           "options": {"owners": 3, "size": 60, "dimensions": 6}},
        },
        out=tmp_path,
    )  # fmt: skip
    entries = done.result["sample_weights"]
    assert len(entries) == 3
    for entry in entries.values():
        assert entry["truth"]["pearson"] == pytest.approx(1.0)
        assert entry["truth"]["spearman"] == pytest.approx(1.0)
        assert entry["truth"]["slope"] == pytest.approx(1.0, rel=1e-4)
        assert entry["effective"] == pytest.approx(entry["truth"]["effective"], rel=1e-4)
        assert entry["leak"]["bits"] == entry["leak"]["share"] * entry["entropy"]
    # Six bits have at most six bits of entropy; a model of them should not need many more.
    assert max(entry["entropy"] for entry in entries.values()) < 7.0
    for name in FIGURES:
        assert (done.path / "figures" / f"{name}.png").is_file()
    assert "correlate 1.00 with it in the median of 3 clients" in run_summary(done)


def entries_of(shares: list[float], fell: frozenset[int] = frozenset()) -> dict[str, Any]:
    return {
        f"c{i}": {"n": 100, "effective": 100 * share, "trouble": TOO_FEW if i in fell else FINE,
                  "truth": {"effective": 50.0, "pearson": 0.5}}
        for i, share in enumerate(shares)
    }  # fmt: skip


def arrays_of(clients: int, samples: int) -> dict[str, Any]:
    rng = np.random.default_rng(6)
    count = clients * samples
    return {
        "client": np.repeat([f"c{i}" for i in range(clients)], samples),
        "row": np.arange(count),
        "weight": np.exp(rng.normal(size=count)).astype(np.float32),
        "truth": rng.normal(size=count).astype(np.float32),
        "label": np.zeros(count, dtype=np.int64),
    }


def rectangles(axes: Axes) -> list[Rectangle]:
    return [patch for patch in axes.patches if isinstance(patch, Rectangle)]


def test_bars_are_shares_lowest_first_and_clients_that_fell_back_are_grey() -> None:
    lines = drawn.spread_table(entries_of([0.9, 0.2, 1.0], frozenset({2})), arrays_of(3, 50))
    top, bottom = drawn.spread_of(lines, "three").axes
    bars = rectangles(top)
    assert [bar.get_x() + bar.get_width() / 2 for bar in bars] == pytest.approx([0, 1, 2])
    assert [bar.get_height() for bar in bars] == [0.2, 0.9, 1.0]
    blue, same, grey = (bar.get_facecolor() for bar in bars)
    assert blue == same != grey
    names = [label.get_text() for label in bottom.get_xticklabels()]
    assert names == ["c1", "c0", "c2"]
    dots = np.asarray(top.collections[0].get_offsets())
    assert dots.tolist() == [[0, 0.5], [1, 0.5], [2, 0.5]]


def test_bands_reach_from_the_least_weight_to_the_most() -> None:
    arrays = arrays_of(2, 40)
    lines = drawn.spread_table(entries_of([0.3, 0.6]), arrays)
    _, bottom = drawn.spread_of(lines, "two").axes
    assert bottom.get_yscale() == "log"
    outer = rectangles(bottom)[0]
    own = arrays["weight"][arrays["client"] == "c0"]
    assert outer.get_y() == pytest.approx(own.min())
    assert outer.get_y() + outer.get_height() == pytest.approx(own.max())


def test_equal_weights_are_not_magnified() -> None:
    arrays = {**arrays_of(2, 40), "weight": np.ones(80, dtype=np.float32)}
    lines = drawn.spread_table(entries_of([1.0, 1.0], frozenset({0, 1})), arrays)
    _, bottom = drawn.spread_of(lines, "equal").axes
    assert bottom.get_ylim() == (0.5, 2.0)


def test_points_lie_at_estimate_and_truth_beside_the_line_where_both_are_equal() -> None:
    entries = entries_of([0.4, 0.5, 0.6], frozenset({1}))
    lines = drawn.ratio_table(entries, arrays_of(3, 20), seed=0)
    (axes,) = drawn.ratios(lines, entries, "three").axes
    seen = np.concatenate([np.asarray(group.get_offsets()) for group in axes.collections])
    wanted = [(line["log_weight"], line["true_log_ratio"]) for line in lines]
    assert sorted(map(tuple, seen.tolist())) == sorted(wanted)
    x, y = (np.asarray(values) for values in axes.lines[0].get_data())
    assert x.tolist() == y.tolist()
    assert x.tolist() == [np.min(wanted), np.max(wanted)]
    labels = [group.get_label() for group in axes.collections]
    assert labels == ["fell back to ones", "c0", "c2"]


def test_many_samples_are_thinned_the_same_way_every_time() -> None:
    entries, arrays = entries_of([0.5] * 50), arrays_of(50, 100)
    lines = drawn.ratio_table(entries, arrays, seed=1)
    assert len(lines) == drawn.POINTS
    assert lines == drawn.ratio_table(entries, arrays, seed=1)
    assert lines != drawn.ratio_table(entries, arrays, seed=2)
    (axes,) = drawn.ratios(lines, entries, "many").axes
    assert [group.get_label() for group in axes.collections] == ["samples of 50 clients"]
