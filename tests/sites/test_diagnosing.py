"""A diagnosis over sites is that of one process, to the bit, and its noise is made at the sites."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from here import Here, make_site, three_sites, write_clients
from rich.console import Console
from typer.testing import CliRunner

from fedskew.cli.app import app
from fedskew.config import Config, make_config
from fedskew.diagnosis.basis import basis_of_no_row
from fedskew.diagnosis.carry_out import diagnosed_with_basis
from fedskew.diagnosis.privacy import noise_for
from fedskew.diagnosis.report import Diagnosis
from fedskew.diagnosis.summary import most_bytes, summarise
from fedskew.errors import ConfigError, DataError, RunError
from fedskew.federate.backends.wire import decode_groups, encode_groups, encode_head, head_of
from fedskew.runs.experiment import make_federation
from fedskew.runs.identity import resolve
from fedskew.sites.audit import read_audit
from fedskew.sites.checking import audit_table, diagnosis_would_leave
from fedskew.sites.diagnosing import diagnose_on_sites
from fedskew.sites.held import read
from fedskew.sites.study import study_config
from fedskew.sites.worker import Worker

UNIT = {"federation": {"normalise": "unit", "validation": 0.1, "test": 0.2}}


def sites_of(tmp_path: Path, rules: str = "") -> Here:
    return three_sites(tmp_path / "sites", write_clients(tmp_path / "all"), rules)


def at_home(section: dict[str, Any], folder: Path) -> Diagnosis:
    given = {**section, "dataset": str(folder), "partition": "owner", "clients": "all"}
    return diagnosed_with_basis(make_federation(resolve(make_config({"federation": given}))))[0]


@pytest.mark.parametrize(
    "section", [{}, {"normalise": "unit"}, {"normalise": "client"}, {"unseen": ["dan"]}]
)
def test_a_diagnosis_over_sites_has_the_bits_of_one_process(
    section: dict[str, Any], tmp_path: Path
) -> None:
    sites = sites_of(tmp_path)
    found, _ = diagnose_on_sites(make_config({"federation": section}), sites)
    one = at_home(section, tmp_path / "all")
    assert json.dumps(found.to_plain()) == json.dumps(one.to_plain())
    assert found.clients == ("ann", "bob", "cleo", "dan")[: len(found.clients)]
    assert found["label"].verdict == "found"


def test_targets_that_are_numbers_have_the_same_bits_too(tmp_path: Path) -> None:
    files = write_clients(tmp_path / "all")
    rng = np.random.default_rng(0)
    for path in files.values():
        head, *lines = path.read_text().splitlines()
        moved = [f"{line.rpartition(',')[0]},{rng.standard_normal():.5f}" for line in lines]
        path.write_text("\n".join([head, *moved]) + "\n")
    sites = three_sites(tmp_path / "sites", files)
    found, basis = diagnose_on_sites(Config(), sites)
    assert basis.kind == "numbers"
    assert found == at_home({}, tmp_path / "all")
    with pytest.raises((DataError, RunError), match="epsilon needs classes"):
        diagnose_on_sites(make_config(UNIT), sites, epsilon=2.0)


def test_three_messages_a_site_are_all_and_the_audit_says_what_left(tmp_path: Path) -> None:
    sites = sites_of(tmp_path)
    found, _ = diagnose_on_sites(Config(), sites)
    site = sites.workers["north"].site
    noted = read_audit(site.folder)
    assert [line["op"] for line in noted] == ["hello", "openings", "summaries"]
    assert [line["clients"] for line in noted[1:]] == [["cleo", "dan"]] * 2
    assert [set(line["fields"]) for line in noted[1:]] == [{"diagnosis"}] * 2
    left = [reply for name, _, reply in sites.messages if name == "north"]
    assert [line["bytes"] for line in noted] == list(map(len, left))
    sums = [found_in["sums"].nbytes for found_in in decode_groups(left[-1]).values()]
    assert sum(sums) < noted[-1]["fields"]["diagnosis"] <= len(left[-1])
    assert found.sent <= 4 * most_bytes(10)
    assert not (site.folder / "state").exists()


def test_cells_that_are_too_small_for_a_site_are_not_summed(tmp_path: Path) -> None:
    sites = sites_of(tmp_path, "min_cell = 12\n")
    with pytest.raises(RunError, match=r"ann' sums up no fewer than 12 rows .* set --cell 12"):
        diagnose_on_sites(Config(), sites)
    found, basis = diagnose_on_sites(Config(), sites, cell=12)
    assert basis.cell == 12
    for name, _, reply in sites.messages[-3:]:
        for told in decode_groups(reply).values():
            counts = told["counts"].numpy()
            assert (counts[counts > 0] >= 12).all(), name
    assert found.hidden > 0


def test_a_site_that_does_not_allow_it_is_asked_nothing_more(tmp_path: Path) -> None:
    sites = sites_of(tmp_path, 'allow = ["parameters", "scores", "moments"]\n')
    with pytest.raises(RunError) as caught:
        diagnose_on_sites(Config(), sites)
    said = str(caught.value)
    assert "site 'ann' lets no diagnosis leave, which 'fedskew diagnose' needs" in said
    assert 'add "diagnosis" to allow in its site.toml' in said
    assert {head_of(reply).get("parcels") for *_, reply in sites.messages} == {None}
    message = encode_head({"op": "summaries", "clients": ["ann"]})
    assert "lets no diagnosis leave" in head_of(sites.workers["ann"].handle(message))["error"]
    alone = 'allow = ["diagnosis", "moments"]\n'
    assert diagnose_on_sites(Config(), sites_of(tmp_path / "b", alone))[0].clients


def test_under_epsilon_nothing_exact_leaves_and_noise_is_made_at_the_site(tmp_path: Path) -> None:
    sites = sites_of(tmp_path)
    config = make_config(UNIT)
    found, basis = diagnose_on_sites(config, sites, epsilon=2.0)
    assert found.noise == noise_for(2.0)
    assert basis.public
    assert [line["op"] for line in read_audit(sites.workers["ann"].site.folder)] == [
        "hello", "summaries",
    ]  # fmt: skip
    hello, summaries = (head_of(r) for name, _, r in sites.messages if name == "ann")
    assert hello["data"] == {"ann": ""}
    assert [hello[name] for name in ("moments", "columns", "targets")] == [{}] * 3
    told = [decode_groups(reply) for name, _, reply in sites.messages if name == "ann"][1]["ann"]
    assert told["hashes"].numel() == 0
    assert summaries["parcels"]["ann"]["spread"] == 0.0
    study = resolve(study_config(config))
    federation = read(sites.workers["ann"].site, study).alone(study)
    own = basis_of_no_row("classes", federation.class_names, federation.sample_shape, 0, 2)
    (exact,) = summarise(federation, own)
    apart = told["products"].numpy() - exact.products
    assert apart.std() == pytest.approx(noise_for(2.0).products * np.sqrt(0.5), rel=0.1)
    again, _ = diagnose_on_sites(config, sites, epsilon=2.0)
    assert again != found


def test_epsilon_that_is_spent_adds_up_in_the_log(tmp_path: Path) -> None:
    sites = sites_of(tmp_path)
    for epsilon in (2.0, 3.0):
        diagnose_on_sites(make_config(UNIT), sites, epsilon=epsilon)
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(audit_table(sites.workers["ann"].site, 9))
    text = console.export_text()
    assert "an epsilon of 5 at most for any row" in text
    assert "(epsilon 3)" in text


def test_what_scales_by_rows_does_not_go_with_epsilon(tmp_path: Path) -> None:
    sites = sites_of(tmp_path)
    with pytest.raises(ConfigError, match=r"set federation\.normalise=unit"):
        diagnose_on_sites(Config(), sites, epsilon=2.0)
    with pytest.raises(ConfigError, match="above 0"):
        diagnose_on_sites(make_config(UNIT), sites, epsilon=0.0)
    assert not sites.messages
    # A server that asks nevertheless is told the same by the site.
    scaled = resolve(study_config(Config())).resolved()
    hello = {"op": "hello", "config": scaled, "for": "diagnosis", "epsilon": 2.0}
    said = head_of(sites.workers["ann"].handle(encode_head(hello)))
    assert "epsilon does not count" in said["error"]


class Lying(Here):
    """One site's summaries are replaced."""

    lie: Any = None

    def exchange(self, messages: Any) -> dict[str, bytes | str]:
        replies = super().exchange(messages)
        if "parcels" in head_of(replies["ann"]):  # type: ignore[arg-type]
            replies["ann"] = self.lie(replies["ann"])
        return replies


@pytest.mark.parametrize(
    ("lie", "sentence"),
    [
        (lambda reply: encode_head({"site": "ann"}), "ann: its reply cannot be read"),
        (
            lambda reply: encode_groups(
                {"ann": {n: t * float("nan") for n, t in decode_groups(reply)["ann"].items()}},
                {"parcels": head_of(reply)["parcels"]},
            ),
            "ann: what it told is damaged",
        ),
        (
            lambda reply: encode_groups(
                decode_groups(reply),
                {"parcels": {"ann": {**head_of(reply)["parcels"]["ann"], "client": "bob"}}},
            ),
            "ann: it answered for other clients",
        ),
    ],
)
def test_a_site_that_answers_nonsense_is_named(lie: Any, sentence: str, tmp_path: Path) -> None:
    sites = Lying(sites_of(tmp_path).workers)
    sites.lie = lie
    with pytest.raises((DataError, RunError), match=sentence):
        diagnose_on_sites(Config(), sites)


def test_data_that_changed_between_the_two_questions_are_refused(tmp_path: Path) -> None:
    class Changing(Here):
        def exchange(self, messages: Any) -> dict[str, bytes | str]:
            replies = super().exchange(messages)
            if len(self.messages) == 6:
                path = self.workers["ann"].site.data
                path.write_text("\n".join(path.read_text().splitlines()[:-5]) + "\n")
            return replies

    with pytest.raises(RunError, match="the data of client 'ann' at site 'ann' changed"):
        diagnose_on_sites(Config(), Changing(sites_of(tmp_path).workers))


def test_one_client_at_one_site_is_nothing_to_compare(tmp_path: Path) -> None:
    files = write_clients(tmp_path / "all")
    alone = Here({"ann": Worker(make_site(tmp_path / "ann", "ann", [files["ann"]]))})
    with pytest.raises(DataError, match="there is one: bring two"):
        diagnose_on_sites(Config(), alone)


def test_a_site_is_told_beforehand_what_would_leave(tmp_path: Path) -> None:
    files = write_clients(tmp_path / "all")
    site = make_site(tmp_path / "ann", "ann", [files["ann"]])
    lines, allowed = diagnosis_would_leave(site, Config())
    text = "\n".join(lines)
    assert allowed
    assert "128 minima of keyed hashes" in text
    assert "10 rows at least" in text
    refusing = make_site(tmp_path / "b", "bob", [files["bob"]], 'allow = ["scores"]\n')
    lines, allowed = diagnosis_would_leave(refusing, Config())
    assert not allowed
    assert lines[-1].endswith("moments, diagnosis")
    done = CliRunner().invoke(app, ["site", "check", "diagnose", "--site", str(tmp_path / "b")])
    assert done.exit_code == 2
    assert "NOT ALLOWED" in done.output
