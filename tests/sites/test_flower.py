"""Real processes: a SuperLink, a proxy, three sites with keys; the bits of one machine."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import NAMES, SILENT, Haste, Lot, fedskew, killed, running
from studies import CASES, MLP, TRAIN, assert_same, settings

from fedskew.api import run as run_here
from fedskew.config import make_config
from fedskew.diagnosis.carry_out import diagnose
from fedskew.diagnosis.outcome import write_diagnosis
from fedskew.errors import RunError, TooFewSites
from fedskew.federate.backends.wire import head_of
from fedskew.federate.progress import Progress
from fedskew.runs.experiment import Run, load_run, make_federation
from fedskew.runs.identity import resolve
from fedskew.sites.audit import read_audit
from fedskew.sites.flower import unpacked
from fedskew.sites.run import run_on_sites

pytestmark = pytest.mark.sites


@pytest.fixture(scope="module")
def lot(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lot]:
    with running(tmp_path_factory.mktemp("lot")) as made:
        yield made


def at_home(given: dict[str, Any], lot: Lot, out: Path) -> Run:
    section = {**given.get("federation", {}), "dataset": str(lot.folder / "all"),
               "partition": "owner", "clients": "all"}  # fmt: skip
    return run_here({**given, "federation": section, "executor": "threads"}, out=out, draw=False)


@pytest.mark.parametrize("name", ["fedavg", "fedshibu", "feddisk", "unseen"])
def test_real_processes_give_the_bits_of_one_machine(name: str, lot: Lot, tmp_path: Path) -> None:
    assert name in CASES
    with lot.link() as link:
        there = run_on_sites(make_config(settings(name)), link, tmp_path / "runs")
    assert_same(at_home(settings(name), lot, tmp_path / "one"), there)


def test_a_diagnosis_over_real_processes_is_that_of_one_process(lot: Lot, tmp_path: Path) -> None:
    study = tmp_path / "study.toml"
    study.write_text("seed = 0\n")
    process = fedskew("diagnose", study, "--sites", lot.lab.folder, "--out", tmp_path / "there")
    said, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    assert "4 clients" in said
    section = {"dataset": str(lot.folder / "all"), "partition": "owner", "clients": "all"}
    home = make_federation(resolve(make_config({"federation": section})))
    write_diagnosis(tmp_path / "here", diagnose(home))
    for name in ("diagnosis.json", "diagnosis.csv"):
        assert (tmp_path / "there" / name).read_bytes() == (tmp_path / "here" / name).read_bytes()
    assert [line["op"] for line in read_audit(lot.folder / "ann")][-2:] == ["openings", "summaries"]


def long_study(rounds: int) -> dict[str, Any]:
    return {"method": "scaffold", "model": MLP, "train": {**TRAIN, "rounds": rounds}}


def test_a_killed_site_is_left_out_and_comes_back_with_its_state(lot: Lot, tmp_path: Path) -> None:
    """Killed after round 2; started again after round 4; its data have not changed since."""
    failed: dict[int, dict[str, str]] = {}

    def watch(progress: Progress, record: Any, rows: Any) -> None:
        failed[record.round] = record.failures
        haste.round_ended()
        if record.round == 2:
            haste.begin()
            lot.kill("bob")
        if record.round == 4:
            lot.start_site("bob")
            lot.wait_for("bob")

    with lot.link() as link:
        haste = Haste(link)
        done = run_on_sites(make_config(long_study(8)), link, tmp_path / "runs", watch)
    assert done.result["rounds"] == 8
    assert "bob" in failed[4]
    assert "bob" not in failed[8]
    assert not any("ann" in each for each in failed.values())


def test_a_site_that_hangs_is_not_waited_for_twice(lot: Lot, tmp_path: Path) -> None:
    failed: dict[int, dict[str, str]] = {}

    def watch(progress: Progress, record: Any, rows: Any) -> None:
        failed[record.round] = record.failures
        haste.round_ended()
        if record.round == 2:
            haste.begin()
            lot.signal("ann", signal.SIGSTOP)
        if record.round == 5:
            before = lot.signs("ann")
            lot.signal("ann", signal.SIGCONT)
            lot.wait_for_sign("ann", before)

    try:
        with lot.link() as link:
            haste = Haste(link)
            done = run_on_sites(make_config(long_study(10)), link, tmp_path / "runs", watch)
    finally:
        lot.signal("ann", signal.SIGCONT)
    assert done.result["rounds"] == 10
    assert failed[4]["ann"].startswith(SILENT)
    assert "ann" not in failed[10]


def test_a_killed_superlink_costs_time_only(lot: Lot, tmp_path: Path) -> None:
    def watch(progress: Progress, record: Any, rows: Any) -> None:
        if record.round == 2:
            lot.kill("SuperLink")
            lot.start_server_again()

    with lot.link() as link:
        there = run_on_sites(make_config(long_study(5)), link, tmp_path / "runs", watch)
    assert_same(at_home(long_study(5), lot, tmp_path / "one"), there)
    assert not any(record.failures for record in there.results.records)


def test_a_killed_server_goes_on_with_the_same_command(lot: Lot, tmp_path: Path) -> None:
    study = tmp_path / "study.toml"
    study.write_text(
        'method = "scaffold"\nmodel = {name = "mlp", hidden = [12]}\n'
        "[train]\nrounds = 6\nlr = 0.05\nbatch_size = 16\n"
    )
    command = ("run", study, "--sites", lot.lab.folder, "--out", tmp_path / "runs")
    process = fedskew(*command)
    assert process.stdout is not None
    for line in process.stdout:
        if "round 3/6" in line:
            break
    killed(process)
    (folder,) = (tmp_path / "runs").glob("scaffold-*")
    assert not load_run(folder).results.is_finished
    again = fedskew(*command)
    out, err = again.communicate(timeout=300)
    assert again.returncode == 0, err
    assert "round 6/6" in out
    assert_same(at_home(long_study(6), lot, tmp_path / "one"), load_run(folder))


def test_lies_of_a_site_are_its_own_failures(lot: Lot, tmp_path: Path) -> None:
    """Rounds 2 to 5: not finite, another shape, an old round, another study; then the truth."""
    lies = {1: "nan", 2: "shape", 3: "old", 4: "other", 5: ""}
    failed: dict[int, dict[str, str]] = {}
    file = lot.folder / "bob" / "lie"

    def watch(progress: Progress, record: Any, rows: Any) -> None:
        failed[record.round] = record.failures
        file.write_text(lies.get(record.round, ""))

    lot.kill("bob")
    lot.start_liar("bob")
    lot.wait_for("bob")
    try:
        given = {"method": "fedavg", "model": MLP, "train": {**TRAIN, "rounds": 8},
                 "evaluate": {"every": 8}}  # fmt: skip
        with lot.link() as link:
            done = run_on_sites(make_config(given), link, tmp_path / "runs", watch)
    finally:
        lot.kill("bob")
        file.unlink()
        lot.start_site("bob")
        lot.wait_for("bob")
    assert done.result["rounds"] == 8
    assert "not finite" in failed[2]["bob"]
    assert "shape" in failed[3]["bob"]
    assert failed[4]["bob"] == "site bob: it answered what it was asked before"
    assert failed[5]["bob"] == "site bob: it answered for another experiment"
    assert not failed[6]


def test_data_that_change_at_a_site_are_refused_by_name(lot: Lot, tmp_path: Path) -> None:
    file = lot.held["ann"]
    before = file.read_bytes()
    failed: dict[int, dict[str, str]] = {}

    def watch(progress: Progress, record: Any, rows: Any) -> None:
        failed[record.round] = record.failures
        if record.round == 2:
            file.write_bytes(b"\n".join(before.splitlines()[:-1]) + b"\n")
        if record.round == 4:
            file.write_bytes(before)

    try:
        with lot.link() as link:
            run_on_sites(make_config(long_study(8)), link, tmp_path / "runs", watch)
    finally:
        file.write_bytes(before)
    assert "client 'ann' at site 'ann' changed since the run began" in failed[4]["ann"]
    assert "ann" not in failed[8]


def test_too_few_sites_are_named_and_end_the_command_with_3(lot: Lot, tmp_path: Path) -> None:
    lot.lab.add(_stranger())
    try:
        with lot.link(wait=1) as link, pytest.raises(TooFewSites, match="1 of 4 sites are not"):
            link.sites()
        command = ("run", "digits", "--sites", lot.lab.folder, "--wait", "1")
        process = fedskew(*command, "--out", tmp_path / "runs", "--set", "federation.dataset=sites",
                          "--set", "train.rounds=1")  # fmt: skip
        _, err = process.communicate(timeout=300)
    finally:
        lot.lab.remove("south")
    assert process.returncode == 2  # digits divides data among clients, which is said first
    assert "leave it out" in err
    lot.lab.add(_stranger())
    study = tmp_path / "study.toml"
    study.write_text('method = "fedavg"\n[train]\nrounds = 1\n')
    command = ("run", study, "--sites", lot.lab.folder, "--wait", "1", "--out", tmp_path / "runs")
    try:
        process = fedskew(*command)
        _, err = process.communicate(timeout=300)
        enough = fedskew(*command, "--min-sites", "3")
        out, said = enough.communicate(timeout=300)
    finally:
        lot.lab.remove("south")
    assert process.returncode == 3
    assert "1 of 4 sites are not connected: south" in err
    assert enough.returncode == 0, said
    assert "round 1/1" in out


def _stranger() -> Any:
    from fedskew.sites.keys import KeyPair
    from fedskew.sites.lines import Application

    return Application("south", KeyPair.new().pem)


def test_somebody_elses_run_gets_a_refusal_and_no_code_runs(lot: Lot) -> None:
    """What a stock Flower node would answer by loading and running the app of that run."""
    from flwr.app import ConfigRecord, Message, RecordDict

    with lot.link() as link:
        node = link._online()["ann"]
        content = RecordDict({"config": ConfigRecord({"command": "touch /tmp/owned"})})
        (number,) = link._grid.push_messages([Message(content, node, "train")])
        replies: list[Any] = []
        until = time.monotonic() + 180
        while not replies and time.monotonic() < until:
            replies = list(link._grid.pull_messages({number}))
        (reply,) = replies
        assert head_of(unpacked(reply.content))["error"].startswith("a message is damaged")
        assert link._online()["ann"] == node


def test_what_left_is_in_the_audit_of_every_site(lot: Lot) -> None:
    for name in NAMES:
        lines = (lot.folder / name / "audit.jsonl").read_text().splitlines()
        noted = [json.loads(line) for line in lines]
        assert {"hello", "agree", "exchange"} <= {line["op"] for line in noted}


def test_without_a_superlink_there_is_one_sentence(lot: Lot) -> None:
    from fedskew.sites.flower.link import FlowerLink

    nobody = FlowerLink("127.0.0.1:9", lot.lab.authority, {})
    with pytest.raises(RunError, match="does not answer: start it with"), nobody:
        pass
