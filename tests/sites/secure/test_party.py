"""A site that a server tries to make unmask a single update."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from summing import Summing, five_sites

from fedskew.config import make_config
from fedskew.errors import RunError
from fedskew.federate.backends.wire import decode_answers, encode_head, head_of
from fedskew.sites.run import run_on_sites

STUDY: dict[str, Any] = {
    "method": "fedavg",
    "model": "logistic",
    "train": {"rounds": 1, "lr": 0.05, "batch_size": 16},
    "secure": True,
}
Change = Callable[[dict[str, Any]], None]


def run(sites: Summing, out: Path, **more: Any) -> dict[str, str]:
    """Who failed in the last round."""
    done = run_on_sites(make_config({**STUDY, **more}), sites, out)
    return done.results.records[-1].failures


def lying(sites: Summing, op: str, change: Change, to: str = "ann") -> Summing:
    """The server tells one site something else."""

    def lie(kind: str, site: str, message: bytes) -> bytes:
        if (kind, site) != (op, to):
            return message
        length = int.from_bytes(message[:4], "little")
        head = json.loads(message[4 : 4 + length])
        change(head)
        text = json.dumps(head).encode()
        return len(text).to_bytes(4, "little") + text + message[4 + length :]

    sites.change = lie
    return sites


def replies(sites: Summing, op: str, site: str) -> list[dict[str, Any]]:
    return [head_of(r) for s, m, r in sites.messages if s == site and f'"op": "{op}"'.encode() in m]


def both_kinds(head: dict[str, Any]) -> None:
    head["gone"] = ["bob"]


def one_gone_that_is_there(head: dict[str, Any]) -> None:
    head["active"].remove("bob")


def own_key(head: dict[str, Any]) -> None:
    head["active"].remove("ann")
    head["gone"] = ["ann"]


def one_alone(head: dict[str, Any]) -> None:
    head["gone"] = head["active"][2:]
    head["active"] = head["active"][:2]


def stranger(head: dict[str, Any]) -> None:
    head["active"].append("mallory")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (both_kinds, "other sites' secrets than those of the sum"),
        (one_gone_that_is_there, "other sites' secrets than those of the sum"),
        (stranger, "other sites' secrets than those of the sum"),
        (own_key, "this site's own key"),
        (one_alone, "takes part in sums of 4 sites at least, and this would be of 2"),
    ],
)
def test_a_site_tells_no_share_that_would_lay_one_update_open(
    change: Change, sentence: str, tmp_path: Path
) -> None:
    sites = lying(five_sites(tmp_path), "unmask", change)
    run(sites, tmp_path / "runs")
    (reply,) = replies(sites, "unmask", "ann")
    assert sentence in reply["error"]
    assert "shares" not in reply


def other_keys(head: dict[str, Any]) -> None:
    head["keys"]["ann"] = head["keys"]["bob"]


def twins(head: dict[str, Any]) -> None:
    head["keys"]["bob"] = head["keys"]["cleo"]


def few(head: dict[str, Any]) -> None:
    head["keys"] = {name: head["keys"][name] for name in ("ann", "bob")}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (other_keys, "other keys of this site than its own"),
        (twins, "two sites have the same keys"),
        (few, "sums of 3 sites at least, and this would be of 2"),
    ],
)
def test_a_site_shares_its_secrets_with_no_false_company(
    change: Change, sentence: str, tmp_path: Path
) -> None:
    failures = run(lying(five_sites(tmp_path), "shares", change), tmp_path / "runs")
    assert sentence in failures["ann"]


def fewer_letters(head: dict[str, Any]) -> None:
    head["sum"]["letters"] = {"bob": head["sum"]["letters"]["bob"]}


def swapped_letters(head: dict[str, Any]) -> None:
    letters = head["sum"]["letters"]
    letters["bob"], letters["cleo"] = letters["cleo"], letters["bob"]


def no_sum(head: dict[str, Any]) -> None:
    del head["sum"]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (fewer_letters, "sums of 4 sites at least, and this would be of 2"),
        (swapped_letters, "a letter from another site cannot be opened"),
        (no_sum, "updates leave a site only in sums"),
    ],
)
def test_a_site_sends_no_vector_that_few_masks_cover(
    change: Change, sentence: str, tmp_path: Path
) -> None:
    sites = lying(five_sites(tmp_path), "vectors", change)
    failures = run(sites, tmp_path / "runs")
    assert failures.keys() == {"ann"}
    assert sentence in failures["ann"]
    for site, _, reply in sites.messages:
        if site == "ann" and b'"answers"' in reply:
            assert b'"beside"' not in reply or not any(a.update for a in decode_answers(reply))


def nothing_to_learn(head: dict[str, Any]) -> None:
    for ask in head["asks"]:
        ask["train"]["lr_factor"] = 0.0


def test_a_sum_with_updates_that_the_server_knows_cannot_be_unmasked(tmp_path: Path) -> None:
    """Whoever is told not to learn sends what it was sent; the sum would be the others' alone."""
    sites = lying(five_sites(tmp_path), "vectors", nothing_to_learn)
    with pytest.raises(RunError, match="the masks do not cancel"):
        run(sites, tmp_path / "runs")


def replayed(sites: Summing, op: str, site: str = "ann") -> bytes:
    """The site's answer to a message that it got before."""
    message = next(m for s, m, _ in sites.messages if s == site and f'"op": "{op}"'.encode() in m)
    return sites.workers[site].handle(message)


def test_a_session_is_answered_once(tmp_path: Path) -> None:
    sites = five_sites(tmp_path)
    run(sites, tmp_path / "runs")
    for op in ("shares", "unmask"):
        assert "no such session" in head_of(replayed(sites, op))["error"]
    again = five_sites(tmp_path / "again")

    def twice(op: str, site: str, message: bytes) -> bytes:
        if op in ("shares", "vectors") and site == "ann":
            again.workers["ann"].handle(message)
        return message

    again.change = twice
    failures = run(again, tmp_path / "again")
    assert "has shared its secrets already" in failures["ann"]
    third = five_sites(tmp_path / "third")

    def vectors_twice(op: str, site: str, message: bytes) -> bytes:
        if (op, site) == ("vectors", "ann"):
            third.workers["ann"].handle(message)
        return message

    third.change = vectors_twice
    assert "has sent its masked vector already" in run(third, tmp_path / "third")["ann"]


def test_a_round_is_summed_again_only_for_the_same_sites_and_models(tmp_path: Path) -> None:
    """Two sums of a round that differ in one site would tell what that one sent."""
    sites = five_sites(tmp_path)
    run(sites, tmp_path / "runs")
    assert run(sites, tmp_path / "same") == {}

    def hide_history(op: str, site: str, reply: bytes) -> bytes:
        if op != "keys":
            return reply
        head = head_of(reply)
        return encode_head({**head, "before": []})

    sites.meddle = hide_history
    sites.drops = {("keys", "bob")}
    with pytest.raises(RunError, match="0 are left"):
        run(sites, tmp_path / "without")
    for name in ("ann", "cleo", "dan", "eve"):
        last = replies(sites, "unmask", name)[-1]
        assert "only for the same sites and models" in last["error"]
    sites.drops = set()

    def other_rate(op: str, site: str, message: bytes) -> bytes:
        return message.replace(b'"lr_factor": 1', b'"lr_factor": 2')

    study = {**STUDY, "evaluate": {"every": 2}}
    held = {name: worker for name, worker in sites.workers.items() if name != "bob"}
    with pytest.raises(RunError, match="only for the same sites and models"):
        run_on_sites(make_config(study), Summing(held), tmp_path / "another")
    assert run(Summing(held), tmp_path / "seed", seed=1) == {}
    sites.change = other_rate
    with pytest.raises(RunError, match="only for the same sites and models"):
        run(sites, tmp_path / "faster")
