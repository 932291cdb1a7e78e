"""Tables with words, dates and gaps at sites: encoded as on one machine, and what leaves for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from here import NAMES, Here, make_site, three_sites
from safetensors.torch import load_file
from studies import MLP, TRAIN, assert_same_scores

import fedskew
from fedskew.config import make_config
from fedskew.data.tables.reading import read_table
from fedskew.deploy.model import open_model
from fedskew.errors import DataError, RunError
from fedskew.runs.experiment import Run
from fedskew.sites.audit import read_audit
from fedskew.sites.checking import what_would_leave
from fedskew.sites.run import run_on_sites
from fedskew.sites.serving import model_in_use
from fedskew.sites.worker import Worker

WARDS = ("burns", "eyes", "hearts")


def write_wards(folder: Path) -> dict[str, Path]:
    """Four clients whose tables differ in scale, words, gaps and the way yes and no are written."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(4)
    found = {}
    for k, (name, size) in enumerate(zip(NAMES, (60, 90, 75, 110), strict=True)):
        label = rng.integers(0, 2, size)
        dose = (1 + 0.3 * k) * (5 + label + rng.normal(size=size))
        ward = rng.choice(WARDS[: 2 + (k > 1)], size)
        day = 1 + 10 * label + rng.integers(0, 9, size)
        smokes = rng.integers(0, 2, size)
        gone = rng.random(size) < (0.1 if k == 2 else 0.0)
        lines = [
            f"{'' if gone[i] else f'{dose[i]:.3f}'},{ward[i]},2024-03-{day[i]:02},"
            f"{smokes[i] if k % 2 else ('no', 'yes')[smokes[i]]},{name}{i},"
            f"{('well', 'ill')[label[i]]}"
            for i in range(size)
        ]
        found[name] = folder / f"{name}.csv"
        found[name].write_text("\n".join(["dose,ward,seen,smokes,patient,label", *lines]) + "\n")
    return found


def given(**section: Any) -> dict[str, Any]:
    return {"method": "fedavg", "model": MLP, "train": TRAIN, "federation": section}


def at_home(folder: Path, out: Path, settings: dict[str, Any]) -> Run:
    section = {
        **settings["federation"], "dataset": str(folder), "partition": "owner", "clients": "all"
    }  # fmt: skip
    home = {**settings, "federation": section, "executor": "threads"}
    return fedskew.run(home, out=out, draw=False)


@pytest.mark.parametrize(
    "section",
    [
        {},
        {"normalise": "client"},
        {"normalise": "unit"},
        {"unseen": ["cleo"]},
        {"columns": {"ward": "hash", "seen": "category", "dose": "number", "patient": "ignore"}},
    ],
    ids=lambda section: "-".join(map(str, section)) or "default",
)
def test_tables_at_sites_have_the_bits_of_one_machine(
    section: dict[str, Any], tmp_path: Path
) -> None:
    files = write_wards(tmp_path / "all")
    sites = three_sites(tmp_path / "sites", files)
    there = run_on_sites(make_config(given(**section)), sites, tmp_path / "runs")
    here = at_home(tmp_path / "all", tmp_path / "one", given(**section))
    mine, theirs = (
        load_file(run.path / "models" / "last" / "global.safetensors") for run in (here, there)
    )
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[key], theirs[key]) for key in mine)
    assert_same_scores(here, there)


def test_what_columns_are_is_told_by_the_server_as_on_one_machine(tmp_path: Path) -> None:
    files = write_wards(tmp_path / "all")
    sites = three_sites(tmp_path / "sites", files)
    said: list[str] = []
    run_on_sites(make_config(given()), sites, tmp_path / "runs", tell=said.append)
    (table,) = [sentence for sentence in said if "columns become" in sentence]
    lines = [" ".join(line.split()) for line in table.splitlines()]
    assert lines[2:] == [
        "dose number scaled by median and quartiles; missing ones flagged",
        "ward category 0 or 1 for each of: burns, eyes, hearts",
        "seen date days, scaled by median and quartiles",
        "smokes boolean 0 or 1",
        "patient ignored another word in every row, like a name or number of the row",
    ]


def test_sums_and_words_that_leave_are_written_down_and_no_row_does(tmp_path: Path) -> None:
    files = write_wards(tmp_path / "all")
    sites = three_sites(tmp_path / "sites", files)
    run_on_sites(make_config(given()), sites, tmp_path / "runs")
    hello = read_audit(sites.workers["north"].site.folder)[0]
    assert hello["op"] == "hello"
    assert set(hello["fields"]) == {"moments", "words"}
    words = [{"ward": ["burns", "eyes", "hearts"]}] * 2
    assert hello["fields"]["words"] == sum(len(json.dumps(each)) for each in words)
    replies = b"".join(reply for _, _, reply in sites.messages)
    assert b"hearts" in replies
    assert b"cleo1" not in replies, "a patient's number"
    assert b"2024-03" not in replies


def test_words_that_may_not_leave_are_hashed(tmp_path: Path) -> None:
    files = write_wards(tmp_path / "all")
    rules = 'allow = ["parameters", "scores", "counts", "moments"]\n'
    sites = three_sites(tmp_path / "sites", files, rules)
    done = run_on_sites(make_config(given()), sites, tmp_path / "runs")
    assert not any(b"hearts" in reply for _, _, reply in sites.messages)
    assert done.result["sample_shape"] == [2 + 32 + 1 + 1]


def test_tables_need_sums_to_leave(tmp_path: Path) -> None:
    files = write_wards(tmp_path / "all")
    sites = three_sites(tmp_path / "sites", files, 'allow = ["parameters", "scores"]\n')
    with pytest.raises(RunError, match="site 'ann' lets no moments leave"):
        run_on_sites(make_config(given()), sites, tmp_path / "runs")


def with_columns(tmp_path: Path, change: Any) -> Here:
    """The sites, bob's table changed."""
    files = write_wards(tmp_path / "all")
    files["bob"].write_text(change(files["bob"].read_text()))
    return three_sites(tmp_path / "sites", files)


def test_kinds_that_differ_between_sites_are_refused_by_name(tmp_path: Path) -> None:
    sites = with_columns(tmp_path, lambda text: text.replace("burns", "1").replace("eyes", "2"))
    sentence = (
        "the sites: column 'ward' is a category at client 'ann' and a number at 'bob': mend it, or "
        "set federation.columns = {ward = 'category'} for everybody."
    )
    with pytest.raises(DataError) as info:
        run_on_sites(make_config(given()), sites, tmp_path / "runs")
    assert str(info.value) == sentence
    run_on_sites(make_config(given(columns={"ward": "category"})), sites, tmp_path / "runs")


def test_a_column_that_a_site_lacks_is_named_and_can_be_left_out(tmp_path: Path) -> None:
    sites = with_columns(tmp_path, lambda text: text.replace("smokes", "drinks"))
    with pytest.raises(
        DataError, match=r"client 'ann' has a column 'smokes' and client 'bob' has "
    ):
        run_on_sites(make_config(given()), sites, tmp_path / "runs")
    left_out = {"smokes": "ignore", "drinks": "ignore"}
    run_on_sites(make_config(given(columns=left_out)), sites, tmp_path / "runs")


def test_columns_in_another_order_are_found_by_name(tmp_path: Path) -> None:
    def turned(text: str) -> str:
        return "\n".join(",".join(reversed(line.split(","))) for line in text.splitlines())

    sites = with_columns(tmp_path, turned)
    there = run_on_sites(make_config(given()), sites, tmp_path / "runs")
    here = at_home(tmp_path / "all", tmp_path / "one", given())
    assert_same_scores(here, there)


def test_tables_beside_arrays_must_be_plain_numbers(tmp_path: Path) -> None:
    files = write_wards(tmp_path / "all")
    rng = np.random.default_rng(0)
    arrays = tmp_path / "zoe.npz"
    np.savez(arrays, x=rng.normal(size=(40, 5)), y=np.arange(40) % 2, class_names=["ill", "well"])
    sites = Here({
        "ann": Worker(make_site(tmp_path / "ann", "ann", [files["ann"]])),
        "zoe": Worker(make_site(tmp_path / "zoe", "zoe", [arrays])),
    })  # fmt: skip
    with pytest.raises(DataError, match="client 'ann' holds a table of more than numbers, and cl"):
        run_on_sites(make_config(given()), sites, tmp_path / "runs")


@pytest.mark.parametrize("normalise", ["standard", "client"])
def test_a_site_keeps_how_its_tables_become_samples(normalise: str, tmp_path: Path) -> None:
    """The model ready for use at a site answers rows of its tables as it did in the run."""
    files = write_wards(tmp_path / "all")
    sites = three_sites(tmp_path / "sites", files)
    run_on_sites(make_config(given(normalise=normalise)), sites, tmp_path / "runs")
    site = sites.workers["north"].site
    deployed = open_model(model_in_use(site, "cleo"))
    study = next(iter(sites.workers["north"]._studies.values()))
    x = deployed.preparation.samples(read_table(files["cleo"]))
    client = study.federation.by_name["cleo"]
    held = np.concatenate([client.train, client.validation, client.test])
    mine, theirs = (sorted(map(tuple, rows.tolist())) for rows in (x, study.federation.x[held]))
    assert mine == theirs


def test_an_owner_is_told_what_of_its_columns_would_leave(tmp_path: Path) -> None:
    files = write_wards(tmp_path / "all")
    site = make_site(tmp_path / "ann", "ann", [files["ann"]], 'allow = ["parameters", "scores"]\n')
    lines, allowed = what_would_leave(site, "fedavg", make_config(given()))
    assert not allowed
    assert lines[-1] == "it would be refused before the first round: moments"
    (told,) = [line for line in lines if line.startswith("  moments")]
    assert "sums, median and quartiles of each column, by client: dose, ward, seen, smokes" in told
    assert any(line.startswith("  words ") and "hashed" in line for line in lines)
    # dose, two wards, seen, smokes to 12 to 2.
    assert any(f"{5 * 12 + 12 + 12 * 2 + 2:,} parameters" in line for line in lines)
