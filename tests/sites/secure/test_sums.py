"""Whole rounds on sites in this process: the mean is right, whoever is lost, and stays the same."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from summing import TRAINING, Summing, error_bound, five_sites, sites_of, write_files

from fedskew.config import make_config
from fedskew.errors import ConfigError, RunError, RunStopped
from fedskew.federate.backends.wire import (
    decode_answers,
    decode_beside,
    encode_head,
    head_of,
)
from fedskew.parts.aggregate import Update
from fedskew.runs.experiment import Run
from fedskew.sites.run import run_on_sites
from fedskew.sites.worker import Worker
from fedskew.types import Tensors

STUDY: dict[str, Any] = {
    "method": "fedavg",
    "model": {"name": "mlp", "hidden": [12]},
    "train": {"rounds": 1, "lr": 0.05, "batch_size": 16},
}
PARAMETERS = 16 * 12 + 12 + 12 * 8 + 8


def run(sites: Summing, out: Path, secure: Any = True, **more: Any) -> Run:
    train = {**STUDY["train"], **more.pop("train", {})}
    return run_on_sites(
        make_config({**STUDY, **more, "train": train, "secure": secure}), sites, out
    )


def model(done: Run) -> Tensors:
    found: Tensors = load_file(done.path / "models" / "last" / "global.safetensors")
    return found


def far_apart(one: Tensors, other: Tensors) -> float:
    assert one.keys() == other.keys()
    return max(float((one[k].double() - other[k].double()).abs().max()) for k in one)


@pytest.fixture(scope="module")
def updates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Update]:
    """What everybody sends in the first round, read off the bytes of an open one."""
    folder = tmp_path_factory.mktemp("open")
    sites = five_sites(folder)
    run(sites, folder / "runs", secure=False)
    return {
        answer.client: answer.update
        for _, message, reply in sites.messages
        if head_of(message).get("op") == "exchange"
        for answer in decode_answers(reply)
        if answer.update is not None
    }


def plain_mean(updates: dict[str, Update], names: set[str]) -> Tensors:
    """The weighted mean of single updates, in doubles."""
    used = [updates[name] for name in sorted(names)]
    sizes = [update.size for update in used]
    assert sizes == [TRAINING[name] for name in sorted(names)]
    return {
        key: torch.from_numpy(
            np.average([u.tensors[key].double().numpy() for u in used], axis=0, weights=sizes)
        )
        for key in used[0].tensors
    }


EVERYBODY = set(TRAINING)
LOST = {
    "nobody": (set(), EVERYBODY),
    "one before its keys": ({("keys", "bob")}, EVERYBODY - {"bob"}),
    "one before its shares": ({("shares", "dan")}, EVERYBODY - {"dan"}),
    "one before its vector": ({("vectors", "bob")}, EVERYBODY - {"bob"}),
    "the first before its vector": ({("vectors", "ann")}, EVERYBODY - {"ann"}),
    "the last before its vector": ({("vectors", "eve")}, EVERYBODY - {"eve"}),
    "one before unmasking": ({("unmask", "cleo")}, EVERYBODY),
    "one at each end": ({("keys", "ann"), ("unmask", "eve")}, EVERYBODY - {"ann"}),
}


@pytest.mark.parametrize("case", sorted(LOST))
def test_the_sum_is_the_mean_of_those_in_it_within_the_bound(
    case: str, updates: dict[str, Update], tmp_path: Path
) -> None:
    """A number of the model is a float32: half a unit in its last place comes on top."""
    drops, inside = LOST[case]
    sites = five_sites(tmp_path)
    sites.drops = drops
    done = run(sites, tmp_path / "runs")
    exact = plain_mean(updates, inside)
    sizes = [TRAINING[name] for name in inside]
    # Whoever is lost before the vectors counted for the largest weight all the same.
    bound = error_bound(sizes, max(TRAINING.values()))
    furthest = max(float(t.abs().max()) for t in exact.values())
    assert 0 < far_apart(model(done), exact) <= bound + furthest * 2**-24
    (record,) = done.results.records
    assert record.participants == len(inside)
    assert record.failures == {
        name: f"site {name}: it is away" for name in sorted(EVERYBODY - inside)
    }
    assert record.bytes_up == 4 * (PARAMETERS + 1) * len(inside)


@pytest.mark.parametrize(
    ("stage", "left"), [("keys", 1), ("shares", 3), ("vectors", 3), ("unmask", 3)]
)
def test_with_too_few_sites_to_the_end_a_round_fails_and_says_who_was_lost(
    stage: str, left: int, tmp_path: Path
) -> None:
    """Four of five are needed; of those who give no keys nobody counts."""
    sites = five_sites(tmp_path)
    sites.drops = {(stage, name) for name in sorted(EVERYBODY)[left:]}
    least = 2 if left == 1 else 4
    said = rf"needs {least} sites to its end, and {left} are left .*eve: it is away"
    with pytest.raises(RunError, match=said):
        run(sites, tmp_path / "runs")


def test_a_failed_round_keeps_those_before_it_and_is_made_good_later(tmp_path: Path) -> None:
    whole = run(five_sites(tmp_path / "whole"), tmp_path / "whole", train={"rounds": 3})
    sites = five_sites(tmp_path)
    second = 0

    def lose(op: str, site: str, message: bytes) -> bytes:
        nonlocal second
        second += op == "vectors" and site == "ann"
        sites.drops = {("unmask", "ann"), ("unmask", "dan")} if second == 2 else set()
        return message

    sites.change = lose
    with pytest.raises(RunStopped, match=r"failed in round 2 .*3 are left \(ann: .*; dan: it is"):
        run(sites, tmp_path / "runs", train={"rounds": 3})
    sites.drops, sites.change = set(), lambda op, site, message: message
    done = run(sites, tmp_path / "runs", train={"rounds": 3})
    assert far_apart(model(whole), model(done)) == 0
    assert [r.round for r in done.results.records] == [1, 2, 3]


def test_a_round_that_was_summed_before_a_crash_is_summed_with_the_same_sites(
    tmp_path: Path,
) -> None:
    """Bob was lost in the round's first sum and is back for its second, which he stays out of."""

    class Stops(Exception):
        pass

    sites = five_sites(tmp_path)
    sites.drops = {("vectors", "bob")}
    seen = 0

    def stop(op: str, site: str, message: bytes) -> bytes:
        nonlocal seen
        seen += op == "keys"
        if seen > 5:
            raise Stops
        return message

    sites.change = stop
    with pytest.raises(Stops):
        run(sites, tmp_path / "runs", train={"rounds": 2})
    sites.drops, sites.change = set(), lambda op, site, message: message
    done = run(sites, tmp_path / "runs", train={"rounds": 2})
    first, last = done.results.records
    assert first.failures == {"bob": "site bob: main-000001 was summed without it before"}
    assert (first.participants, last.participants, last.failures) == (4, 5, {})


@pytest.mark.parametrize("method", ["fedavg", "fedbabu", "fedbn", "feddisk", "fedreptile", "irm"])
def test_a_study_learns_the_same_as_in_the_open(method: str, tmp_path: Path) -> None:
    """Three rounds: rounding comes back through training, hence the wider bound."""
    knobs: dict[str, Any] = {"name": method}
    if method == "feddisk":
        knobs |= {"density_rounds": 2, "local_epochs": 1}
    given: dict[str, Any] = {"method": knobs, "train": {"rounds": 3}}
    files = write_files(tmp_path / "files")
    held = {"ann": [files["ann"]], "bob": [files["bob"]], "north": [files["cleo"], files["dan"]]}
    plain = run(sites_of(tmp_path / "a", held), tmp_path / "runs", secure=False, **given)
    hidden = run(sites_of(tmp_path / "b", held), tmp_path / "runs", **given)
    assert plain.path != hidden.path
    assert far_apart(model(plain), model(hidden)) < 1e-4
    for one, other in zip(plain.results.records, hidden.results.records, strict=True):
        assert (one.stage, one.round, one.participants) == (
            other.stage, other.round, other.participants,
        )  # fmt: skip
    sums = [r for r in hidden.results.records if r.bytes_up and r.stage == "main"]
    assert len(sums) == 3
    assert all(math.isnan(r.train_loss) and not r.update_norms for r in sums)


def test_who_shares_a_site_and_which_keys_are_drawn_changes_no_bit(tmp_path: Path) -> None:
    files = write_files(tmp_path / "files", ["ann", "bob", "cleo", "dan"])
    apart = sites_of(tmp_path / "a", {name: [file] for name, file in files.items()})
    held = {"ann": [files["ann"]], "bob": [files["bob"]], "north": [files["cleo"], files["dan"]]}
    one = run(apart, tmp_path / "one", train={"rounds": 2})
    other = run(sites_of(tmp_path / "b", held), tmp_path / "other", train={"rounds": 2})
    assert one.path.name == other.path.name
    assert far_apart(model(one), model(other)) == 0


def test_a_client_that_fails_is_left_out_of_its_sites_sum(
    updates: dict[str, Update], tmp_path: Path
) -> None:
    """Only Bob, whose weighted change is the furthest, goes beyond the clip."""
    files = write_files(tmp_path / "files")
    held = {name: [files[name]] for name in ("ann", "cleo", "dan")}
    held["north"] = [files["bob"], files["eve"]]
    started = run(sites_of(tmp_path / "a", held), tmp_path / "runs", train={"lr": 1e-9})
    changes = {
        name: far_apart(update.tensors, model(started)) * TRAINING[name] / TRAINING["dan"]
        for name, update in updates.items()
    }
    assert max(changes, key=lambda name: changes[name]) == "bob"
    clip = (sorted(changes.values())[-2] + changes["bob"]) / 2
    done = run(sites_of(tmp_path / "b", held), tmp_path / "runs", secure={"clip": clip})
    (record,) = done.results.records
    assert record.participants == 4
    assert list(record.failures) == ["bob"]
    assert "beyond secure.clip" in record.failures["bob"]


def test_a_worker_that_is_restarted_in_the_middle_is_left_out(tmp_path: Path) -> None:
    sites = five_sites(tmp_path)

    def restart(op: str, site: str, message: bytes) -> bytes:
        if (op, site) == ("vectors", "dan"):
            sites.workers["dan"] = Worker(sites.workers["dan"].site)
        return message

    sites.change = restart
    (record,) = run(sites, tmp_path / "runs").results.records
    assert record.failures.keys() == {"dan"}
    assert "no such session: its worker was restarted" in record.failures["dan"]


def test_wrong_shares_and_replies_of_noise_are_noticed(tmp_path: Path) -> None:
    sites = five_sites(tmp_path)

    def spoil(op: str, site: str, reply: bytes) -> bytes:
        if (op, site) != ("unmask", "bob"):
            return reply
        head = head_of(reply)
        ours = head["shares"]["ann"]
        head["shares"]["ann"] = ours[:8] + format(int(ours[8:10], 16) ^ 1, "02x") + ours[10:]
        return encode_head(head)

    sites.meddle = spoil
    with pytest.raises(RunError, match="wrong share"):
        run(sites, tmp_path / "runs")
    noisy = five_sites(tmp_path / "noisy")
    noisy.meddle = lambda op, site, reply: b"\x07" * 50 if site == "eve" and op in LATE else reply
    (record,) = run(noisy, tmp_path / "noisy").results.records
    assert record.failures.keys() == {"eve"}
    assert "cannot be read" in record.failures["eve"]


LATE = ("shares", "vectors", "unmask")


def test_two_sites_are_too_few_unless_both_say_otherwise(tmp_path: Path) -> None:
    files = write_files(tmp_path / "files", ["ann", "bob"])
    held = {name: [file] for name, file in files.items()}
    with pytest.raises(
        RunError, match=r"'ann' takes part in sums of 3 sites at least.*would be of 2"
    ):
        run(sites_of(tmp_path / "a", held), tmp_path / "runs")
    done = run(sites_of(tmp_path / "b", held, "min_sites = 2\n"), tmp_path / "runs")
    assert done.results.records[0].participants == 2


def test_the_audit_tells_sums_and_no_parameters(tmp_path: Path) -> None:
    sites = five_sites(tmp_path, 'allow = ["sums", "scores", "moments"]\n')
    run(sites, tmp_path / "runs")
    lines = (sites.workers["bob"].site.folder / "audit.jsonl").read_text().splitlines()
    left = [json.loads(line)["fields"] for line in lines]
    in_sums = [each for each in left if "sums" in each]
    assert [set(each) for each in in_sums] == [{"sums"}] * 4
    assert in_sums[2]["sums"] == 4 * (PARAMETERS + 1)
    assert not any({"parameters", "reports"} & set(each) for each in left)
    with pytest.raises(RunError, match="lets no parameters leave"):
        run(sites, tmp_path / "open", secure=False)
    closed = five_sites(tmp_path / "closed", 'allow = ["parameters", "scores", "moments"]\n')
    with pytest.raises(RunError, match="lets no sums leave"):
        run(closed, tmp_path / "closed")


def test_more_clients_than_a_sum_has_room_for_are_refused_before_round_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="leaves room for 3 clients"):
        run(five_sites(tmp_path), tmp_path / "runs", secure={"bits": 30})
    assert not (tmp_path / "runs").exists()


def test_the_server_sees_no_update_and_no_secret(tmp_path: Path) -> None:
    """All that passes by it: vectors that look like noise, and letters that it cannot read."""
    from scipy import stats

    sites = five_sites(tmp_path)
    sites.drops = {("vectors", "eve")}
    run(sites, tmp_path / "runs", model={"name": "mlp", "hidden": [200]})
    vectors, seen = {}, b""
    for site, message, reply in sites.messages:
        seen += message + reply
        if (beside := decode_beside(reply) if b'"beside"' in reply else None) is not None:
            vectors[site] = beside["masked"].numpy().view(np.uint32)[1:]
            assert all(answer.update is None for answer in decode_answers(reply))
    assert sorted(vectors) == ["ann", "bob", "cleo", "dan"]
    for vector in vectors.values():
        counts = np.bincount(vector >> 24, minlength=256)
        assert stats.chisquare(counts).pvalue > 1e-4
    one, other = vectors["ann"].astype(float), vectors["bob"].astype(float)
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.06
    assert b"PRIVATE KEY" not in seen
