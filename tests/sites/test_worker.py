"""Law 4 for real sites: the same study where the data are gives the same numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from here import Here, make_site, three_sites, write_clients
from safetensors.torch import load_file
from studies import CASES, MLP, TRAIN, assert_same_scores, settings

import fedskew
from fedskew.config import make_config
from fedskew.errors import ConfigError, RunError
from fedskew.federate.backends.wire import encode_head, head_of
from fedskew.federate.own_models import own_models as files_of
from fedskew.runs.experiment import Run
from fedskew.sites.run import run_on_sites
from fedskew.sites.site import Site
from fedskew.sites.worker import Worker


def here_and_there(name: str, tmp_path: Path) -> tuple[Run, Run, Here]:
    """The study on one machine, and on three sites."""
    files = write_clients(tmp_path / "all")
    given = settings(name)
    section = given.get("federation", {})
    at_home = {**section, "dataset": str(tmp_path / "all"), "partition": "owner", "clients": "all"}
    alone = {**given, "federation": at_home, "executor": "threads"}
    one = fedskew.run(alone, out=tmp_path / "one", draw=False)
    sites = three_sites(tmp_path / "sites", files)
    return one, run_on_sites(make_config(given), sites, tmp_path / "runs"), sites


def folders(sites: Here) -> list[Site]:
    return [worker.site for worker in sites.workers.values()]


def own_models(*places: Path) -> dict[str, dict[str, torch.Tensor]]:
    """The clients' own models of the last round, wherever they lie."""
    files = {
        client: file
        for place in places
        for folder in place.rglob("models/last")
        for client, file in files_of(folder).items()
    }
    return {client: load_file(file) for client, file in files.items()}


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_study_on_sites_has_the_bits_of_one_machine(name: str, tmp_path: Path) -> None:
    one, three, sites = here_and_there(name, tmp_path)
    assert one.result["selected_round"] == three.result["selected_round"]
    assert one.result["rounds"] == three.result["rounds"]
    for which in ("last", "selected"):
        for path in (one.path / "models" / which).glob("*.safetensors"):
            theirs = load_file(three.path / "models" / which / path.name)
            for key, tensor in load_file(path).items():
                assert torch.equal(theirs[key], tensor), key
    for client, model in own_models(one.path).items():
        for key, tensor in own_models(*(s.folder for s in folders(sites)))[client].items():
            assert torch.equal(model[key], tensor), (client, key)
    assert_same_scores(one, three)
    assert [(r.round, r.participants, r.bytes_up) for r in one.results.records] == [
        (r.round, r.participants, r.bytes_up) for r in three.results.records
    ]
    assert sites.messages


def test_a_round_is_one_message_a_site(tmp_path: Path) -> None:
    """Hello, agreement, three rounds, the scores of the last, and the last look."""
    *_, sites = here_and_there("fedavg", tmp_path)
    to_ann = [message for site, message, _ in sites.messages if site == "ann"]
    assert len(to_ann) == 2 + 3 + 1 + 2


class Restarted(Here):
    """All workers are replaced by new ones after some messages."""

    after = 9

    def exchange(self, messages: Any) -> dict[str, bytes | str]:
        if len(self.messages) >= self.after:
            self.after = 10**9
            self.workers = {name: Worker(w.site) for name, w in self.workers.items()}
        return super().exchange(messages)


@pytest.mark.parametrize("name", ["scaffold", "ditto"])
def test_a_worker_that_was_restarted_goes_on_with_its_state(name: str, tmp_path: Path) -> None:
    one, _, sites = here_and_there(name, tmp_path)
    again = Restarted({n: Worker(w.site) for n, w in sites.workers.items()})
    for worker in again.workers.values():
        for file in worker.site.folder.glob("state/*/*"):
            file.unlink()
    three = run_on_sites(make_config(settings(name)), again, tmp_path / "anew")
    assert again.after > 10**8
    assert_same_scores(one, three)


class Stops(Exception):
    pass


AGREEMENT = 2
"""Exchanges before the first that asks for anything."""


class Interrupted(Here):
    """The server is killed after so many exchanges."""

    left = 0

    def exchange(self, messages: Any) -> dict[str, bytes | str]:
        if not self.left:
            raise Stops
        self.left -= 1
        return super().exchange(messages)


@pytest.mark.parametrize("name", ["scaffold", "fedrep", "patience", "feddisk", "unseen"])
def test_a_server_that_is_killed_before_every_message_goes_on(name: str, tmp_path: Path) -> None:
    """The run is stopped after one message, then after one more, and so on to its end."""
    one, _, sites = here_and_there(name, tmp_path)
    killed = Interrupted({n: Worker(w.site) for n, w in sites.workers.items()})
    for worker in killed.workers.values():
        for file in worker.site.folder.glob("state/*/*"):
            file.unlink()
    for stops in range(100):
        killed.left = AGREEMENT + stops % 3 + 1
        try:
            three = run_on_sites(make_config(settings(name)), killed, tmp_path / "anew")
            break
        except Stops:
            continue
    assert stops > 2
    assert not three.result["notes"]
    assert one.result["rounds"] == three.result["rounds"]
    for client, model in own_models(one.path).items():
        for key, tensor in own_models(*(s.folder for s in folders(sites)))[client].items():
            assert torch.equal(model[key], tensor), (client, key)
    assert_same_scores(one, three)
    assert not any(record.failures for record in three.results.records)


@pytest.mark.parametrize("name", ["scaffold", "fedrep", "ditto"])
def test_a_run_on_sites_can_be_made_longer(name: str, tmp_path: Path) -> None:
    """Two rounds, then as many as one machine made at once."""
    files = write_clients(tmp_path / "all")
    sites = three_sites(tmp_path / "sites", files)
    given = {**settings(name), "train": {**TRAIN, "rounds": 6}}
    short = {**given, "train": {**TRAIN, "rounds": 2}}
    run_on_sites(make_config(short), sites, tmp_path / "runs")
    three = run_on_sites(make_config(given), sites, tmp_path / "runs")
    home = {"dataset": str(tmp_path / "all"), "partition": "owner", "clients": "all"}
    one = fedskew.run(
        {**given, "federation": home, "executor": "threads"}, out=tmp_path / "one", draw=False
    )
    assert not three.result["notes"]
    assert_same_scores(one, three)


def test_a_site_that_is_away_is_left_out_and_said(tmp_path: Path) -> None:
    files = write_clients(tmp_path / "all")

    class Leaves(Here):
        def exchange(self, messages: Any) -> dict[str, bytes | str]:
            if len(self.messages) > 8:
                self.lost = {"bob"}
            return super().exchange(messages)

    sites = Leaves(three_sites(tmp_path / "sites", files).workers)
    done = run_on_sites(make_config(settings("fedavg")), sites, tmp_path / "runs")
    failures = [record.failures for record in done.results.records]
    assert any("bob" in each for each in failures)
    assert failures[-1]["bob"] == "site bob: it is away"


def test_a_site_that_is_lost_before_round_one_is_waited_for(tmp_path: Path) -> None:
    """A node that just started again may be lost once, to its SuperLink, without being gone."""
    files = write_clients(tmp_path / "all")

    class Blinks(Here):
        waited = 0

        def sites(self) -> list[str]:
            self.waited += 1
            self.lost = {"bob"} if self.waited == 1 else set()
            return super().sites()

    sites = Blinks(three_sites(tmp_path / "sites", files).workers)
    done = run_on_sites(make_config(settings("fedavg")), sites, tmp_path / "runs")
    assert sites.waited == 2
    assert not any(record.failures for record in done.results.records)


def test_what_a_site_does_not_allow_does_not_leave(tmp_path: Path) -> None:
    files = write_clients(tmp_path / "all")
    rules = 'allow = ["parameters", "scores", "counts", "moments"]\n'
    sites = three_sites(tmp_path / "sites", files, rules)
    with pytest.raises(RunError, match="lets no reports leave"):
        run_on_sites(make_config(settings("scaffold")), sites, tmp_path / "runs")
    silent = three_sites(tmp_path / "silent", files, 'allow = ["parameters", "scores"]\n')
    with pytest.raises(RunError, match="ann: site 'ann' lets no moments leave"):
        run_on_sites(make_config(settings("fedavg")), silent, tmp_path / "runs")


def test_the_audit_names_everything_that_left(tmp_path: Path) -> None:
    *_, sites = here_and_there("scaffold", tmp_path)
    lines = (sites.workers["north"].site.folder / "audit.jsonl").read_text().splitlines()
    everything = [json.loads(line) for line in lines]
    assert [line["op"] for line in everything[:2]] == ["hello", "agree"]
    assert set(everything[0]["fields"]) == {"moments"}
    assert set(everything[1]["fields"]) == {"counts"}
    noted = [line for line in everything if line["op"] == "exchange"]
    assert [line["round"] for line in noted][:3] == [1, 2, 3]
    assert noted[0]["fields"]["parameters"] == 2 * 4 * (16 * 12 + 12 + 12 * 7 + 7)
    assert noted[0]["clients"] == ["cleo", "dan"]
    assert set(noted[1]["fields"]) == {"parameters", "reports", "scores"}
    assert all(len(line["sha256"]) == 64 for line in noted)


def test_all_metrics_of_the_last_look_are_numbers_that_leave_as_scores(tmp_path: Path) -> None:
    one, three, sites = here_and_there("auroc", tmp_path)
    assert three.result["metrics"][0]["metric"] == "auroc"
    for mine, there in zip(one.result["metrics"], three.result["metrics"], strict=True):
        assert mine["pooled"] is not None
        assert there["pooled"] is None
        assert (mine["metric"], mine["clients"]) == (there["metric"], there["clients"])
        assert there["mean"] == pytest.approx(mine["mean"], abs=1e-6)
    lines = (sites.workers["ann"].site.folder / "audit.jsonl").read_text().splitlines()
    told = [json.loads(line).get("fields", {}) for line in lines]
    *_, looked = [fields["scores"] for fields in told if set(fields) == {"scores"}]
    assert looked < 1000


def test_data_that_changed_are_refused_by_name(tmp_path: Path) -> None:
    files = write_clients(tmp_path / "all")

    class Changes(Here):
        def exchange(self, messages: Any) -> dict[str, bytes | str]:
            if len(self.messages) > 8:
                file = self.workers["bob"].site.data
                lines = file.read_text().splitlines()
                file.write_text("\n".join(lines[:-1]) + "\n")
            return super().exchange(messages)

    sites = Changes(three_sites(tmp_path / "sites", files).workers)
    done = run_on_sites(make_config(settings("fedavg")), sites, tmp_path / "runs")
    last = done.results.records[-1].failures
    assert "client 'bob' at site 'bob' changed since the run began" in last["bob"]


def test_a_reply_of_another_study_or_of_noise_is_the_sites_error(tmp_path: Path) -> None:
    files = write_clients(tmp_path / "all")

    class Lies(Here):
        def exchange(self, messages: Any) -> dict[str, bytes | str]:
            replies = super().exchange(messages)
            if len(self.messages) > 8:
                replies["ann"] = b"\x00" * 40
                reply = replies["bob"]
                assert isinstance(reply, bytes)
                study = json.loads(reply[4 : 4 + int.from_bytes(reply[:4], "little")])["study"]
                replies["bob"] = reply.replace(study.encode(), b"0" * 16)
            return replies

    sites = Lies(three_sites(tmp_path / "sites", files).workers)
    done = run_on_sites(make_config(settings("fedavg")), sites, tmp_path / "runs")
    last = done.results.records[-1].failures
    assert "its reply cannot be read" in last["ann"]
    assert "it answered for another experiment" in last["bob"]


@pytest.mark.parametrize(
    ("section", "sentence"),
    [
        ({"dataset": "digits"}, "data of this machine"),
        ({"partition": "iid"}, "federation.partition divides or changes data"),
        ({"skew": [{"name": "noise"}]}, "federation.skew divides or changes data"),
    ],
)
def test_what_divides_data_is_refused(section: Any, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=sentence):
        run_on_sites(make_config({"federation": section}), Here({}), tmp_path)


def test_central_is_refused_before_round_one(tmp_path: Path) -> None:
    files = write_clients(tmp_path / "all")
    sites = three_sites(tmp_path / "sites", files)
    with pytest.raises(ConfigError, match="all data in one place"):
        run_on_sites(make_config({"method": "central", "model": MLP}), sites, tmp_path / "runs")


def test_two_sites_with_one_client_are_named(tmp_path: Path) -> None:
    files = write_clients(tmp_path / "all")
    pair = [files["ann"], files["bob"]]
    sites = Here(
        {
            "east": Worker(make_site(tmp_path / "east", "east", pair)),
            "west": Worker(make_site(tmp_path / "west", "west", pair)),
        }
    )
    with pytest.raises(RunError, match="east and west both have a client 'ann'"):
        run_on_sites(make_config(settings("fedavg")), sites, tmp_path / "runs")


def test_a_site_that_lost_its_state_is_named(tmp_path: Path) -> None:
    files = write_clients(tmp_path / "all")

    class Loses(Here):
        def exchange(self, messages: Any) -> dict[str, bytes | str]:
            if len(self.messages) == 12:
                site = self.workers["bob"].site
                for file in site.folder.glob("state/*/*"):
                    file.unlink()
                self.workers["bob"] = Worker(site)
            return super().exchange(messages)

    sites = Loses(three_sites(tmp_path / "sites", files).workers)
    done = run_on_sites(make_config(settings("scaffold")), sites, tmp_path / "runs")
    failures = [record.failures for record in done.results.records]
    assert "client 'bob' holds no private state" in failures[-1]["bob"]
    assert not any("ann" in each for each in failures)


def test_words_of_the_data_do_not_leave_in_an_error(tmp_path: Path) -> None:
    """The owner reads which cell is wrong; the server does not."""
    files = write_clients(tmp_path / "all")
    sites = three_sites(tmp_path / "sites", files)
    said: list[str] = []
    worker = Worker(sites.workers["bob"].site, said.append)
    sites.workers["bob"] = worker
    text = worker.site.data.read_text().splitlines()
    text[5] = "Mrs-Miller" + text[5][text[5].index(",") :]
    worker.site.data.write_text("\n".join(text) + "\n")
    with pytest.raises(RunError, match=r"bob: its data cannot be used \(its log says why\)"):
        run_on_sites(make_config(settings("fedavg")), sites, tmp_path / "runs")
    assert "Mrs-Miller" in said[0]
    assert not any(b"Miller" in reply for _, _, reply in sites.messages)


@pytest.mark.parametrize("name", ["scaffold", "fedrep", "latent-weights", "feddisk"])
def test_nothing_private_is_in_any_byte_that_leaves(name: str, tmp_path: Path) -> None:
    """Samples, and the tensors of private states, searched in every message."""
    *_, sites = here_and_there(name, tmp_path)
    everything = [message + reply for _, message, reply in sites.messages]
    for worker in sites.workers.values():
        for file in worker.site.folder.glob("state/*/*.safetensors"):
            for key, tensor in load_file(file).items():
                if tensor.numel() > 4 and "control" not in key:
                    raw = tensor.numpy().tobytes()
                    assert not any(raw in each for each in everything), key


def test_code_that_a_server_names_is_not_run(tmp_path: Path) -> None:
    sites = three_sites(tmp_path / "sites", write_clients(tmp_path / "all"))
    config = make_config(settings("fedavg")).resolved()
    config["method"] = {"name": "os:system"}
    reply = sites.workers["ann"].handle(encode_head({"op": "hello", "config": config}))
    assert "os:system" in head_of(reply)["error"]
    config["method"] = {"name": "my_rules:mine"}
    reply = sites.workers["ann"].handle(encode_head({"op": "hello", "config": config}))
    assert "my_rules:mine" in head_of(reply)["error"]


@pytest.mark.parametrize(
    "message", [b"", b"\0", b"\xff" * 40, b"\x02\0\0\0{}", encode_head({"op": "rm"})]
)
def test_messages_that_are_none_are_refused(message: bytes, tmp_path: Path) -> None:
    files = write_clients(tmp_path / "all")
    worker = Worker(make_site(tmp_path / "ann", "ann", [files["ann"]]))
    assert head_of(worker.handle(message))["error"]
