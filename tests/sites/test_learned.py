"""What is learned over sites where it is no class of many: numbers in common units, several labels,
two classes of which a site may hold one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from here import NAMES, Here, make_site, three_sites
from sklearn.datasets import load_diabetes
from studies import TRAIN, assert_same

import fedskew
from fedskew.config import make_config
from fedskew.errors import FedskewError, RunError
from fedskew.sites.run import run_on_sites
from fedskew.sites.site import Site
from fedskew.sites.worker import Worker

SIZES = (60, 90, 75, 110)
TABLE = load_diabetes()


def written(folder: Path, columns: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, Path]:
    """A file for each client; patients in order of age, so that clients differ."""
    folder.mkdir(parents=True)
    order = np.argsort(TABLE.data[:, 0], kind="stable")
    found, start = {}, 0
    for name, size in zip(NAMES, SIZES, strict=True):
        rows = order[start : start + size]
        start += size
        header = [*(f"f{i}" for i in range(10)), *columns]
        lines = [[*TABLE.data[row], *(values[row] for values in columns.values())] for row in rows]
        found[name] = folder / f"{name}.csv"
        text = "\n".join(",".join(map(str, line)) for line in [header, *lines])
        found[name].write_text(text + "\n")
    return found


NUMBERS = {"label": TABLE.target + 0.5 * (np.arange(442) % 2)}
CASES: dict[str, dict[str, Any]] = {
    "fedavg": {"method": "fedavg"},
    "scaffold": {"method": "scaffold"},
    "ditto": {"method": "ditto"},
    "pinball": {"train": {**TRAIN, "loss": {"name": "pinball", "quantile": 0.8}}},
    "unseen": {
        "method": "fedper", "federation": {"unseen": ["dan"]},
        "evaluate": {"shots": [2, "all"], "fine_tune_epochs": 1},
    },
}  # fmt: skip


@pytest.mark.parametrize("case", sorted(CASES))
def test_numbers_are_learned_over_sites_as_on_one_machine(case: str, tmp_path: Path) -> None:
    given = {"model": {"name": "mlp", "hidden": [8]}, "train": TRAIN, **CASES[case]}
    files = written(tmp_path / "all", NUMBERS)
    there = run_on_sites(make_config(given), three_sites(tmp_path / "sites", files), tmp_path / "r")
    section = {**given.get("federation", {}), "dataset": str(tmp_path / "all")}
    section |= {"partition": "owner", "clients": "all"}
    here = fedskew.run(
        {**given, "federation": section, "executor": "threads"}, out=tmp_path / "one", draw=False
    )
    assert_same(here, there)
    assert there.result["primary_metric"] == "rmse"
    assert not any(record.failures for record in there.results.records)


def test_several_labels_are_learned_over_sites_as_on_one_machine(tmp_path: Path) -> None:
    """Whether a patient is ill, and whether old: a column each at every site."""
    labels = {
        "ill": np.where(TABLE.target > 140, "ja", "nein"),
        "old": (TABLE.data[:, 0] > 0).astype(int),
    }
    files, workers = written(tmp_path / "all", labels), {}
    for name, its in (("ann", ["ann"]), ("bob", ["bob"]), ("north", ["cleo", "dan"])):
        site = make_site(tmp_path / "sites" / name, name, [files[each] for each in its])
        with open(site.folder / "site.toml", "a") as file:
            file.write('label = ["ill", "old"]\n')
        workers[name] = Worker(Site.open(site.folder))
    given = {"method": "scaffold", "model": {"name": "mlp", "hidden": [8]}, "train": TRAIN}
    there = run_on_sites(make_config(given), Here(workers), tmp_path / "runs")
    section = {"dataset": str(tmp_path / "all"), "partition": "owner", "clients": "all",
               "label": ["ill", "old"]}  # fmt: skip
    here = fedskew.run(
        {**given, "federation": section, "executor": "threads"}, out=tmp_path / "one", draw=False
    )
    assert_same(here, there)
    assert there.result["primary_metric"] == "macro_f1"
    assert there.result["classes"] == 2


def test_sums_of_targets_leave_only_with_those_of_samples(tmp_path: Path) -> None:
    files = written(tmp_path / "all", NUMBERS)
    sites = three_sites(tmp_path / "sites", files, 'allow = ["parameters", "scores", "counts"]\n')
    config = make_config({"train": TRAIN, "federation": {"normalise": "unit"}})
    with pytest.raises(RunError, match="ann: site 'ann' lets no moments leave"):
        run_on_sites(config, sites, tmp_path / "runs")


def test_one_site_may_hold_one_of_two_classes(tmp_path: Path) -> None:
    """Everybody knows both classes, and which one is looked for."""
    sick = np.where(TABLE.target > 140, "ill", "well")
    young = np.argsort(TABLE.data[:, 0], kind="stable")[: SIZES[0]]
    sick[young] = "well"
    files = written(tmp_path / "all", {"label": sick})
    told: list[str] = []
    config = make_config(
        {"train": TRAIN, "federation": {"task": "binary", "positive": "ill"},
         "model": {"name": "mlp", "hidden": [8]}}
    )  # fmt: skip
    sites = three_sites(tmp_path / "sites", files)
    there = run_on_sites(config, sites, tmp_path / "runs", tell=told.append)
    assert there.result["classes"] == 2
    assert any("'ill' the positive one" in sentence for sentence in told)


def disagreeing(folder: Path, one: Any, other: Any) -> Here:
    """Two sites, each with labels of its own."""
    first, second = written(folder / "a", one), written(folder / "b", other)
    return Here(
        {
            name: Worker(make_site(folder / name, name, [files[name]]))
            for name, files in (("ann", first), ("bob", second))
        }
    )


def test_sites_that_learn_different_things_are_told(tmp_path: Path) -> None:
    words = {"label": np.where(TABLE.target > 140, "ill", "well")}
    sites = disagreeing(tmp_path, NUMBERS, words)
    match = "labels of site bob are for binary, those of ann for regression: set federation.task"
    with pytest.raises(FedskewError, match=match):
        run_on_sites(make_config({"train": TRAIN}), sites, tmp_path / "runs")
