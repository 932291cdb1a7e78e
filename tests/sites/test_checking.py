"""What a site's owner can read: what a method would ask, and what has left."""

from __future__ import annotations

from pathlib import Path

import pytest
from here import make_site, three_sites, write_clients
from rich.console import Console
from studies import settings

from fedskew.config import Config, make_config
from fedskew.errors import ConfigError, RunError
from fedskew.sites.audit import fields_of, read_audit
from fedskew.sites.checking import audit_table, what_would_leave
from fedskew.sites.run import run_on_sites
from fedskew.sites.site import Site

STUDY = make_config({"model": {"name": "mlp", "hidden": [12]}})
PARAMETERS = 16 * 12 + 12 + 12 * 3 + 3
"""Of a site that knows three classes."""


def site_with(tmp_path: Path, rules: str = "") -> Site:
    tmp_path.mkdir(exist_ok=True)
    data = tmp_path / "a.csv"
    header = ",".join(f"p{i}" for i in range(16)) + ",label"
    lines = [",".join([str((i * k) % 7) for k in range(16)] + [str(i % 3)]) for i in range(30)]
    data.write_text("\n".join([header, *lines]) + "\n")
    return make_site(tmp_path / "ann", "ann", [data], rules)


def test_a_method_is_told_by_what_would_leave(tmp_path: Path) -> None:
    lines, allowed = what_would_leave(site_with(tmp_path), "scaffold", STUDY)
    assert allowed
    text = "\n".join(lines)
    assert "reports     the change of their control variates" in text
    assert f"{PARAMETERS:,} parameters" in text
    lines, _ = what_would_leave(site_with(tmp_path / "b"), "fedper", STUDY)
    assert f"{16 * 12 + 12:,} parameters" in lines[-1]
    assert "head.bias, head.weight stay here" in lines[-1]


def test_what_may_not_leave_is_marked(tmp_path: Path) -> None:
    site = site_with(tmp_path, 'allow = ["parameters", "scores", "moments"]\n')
    lines, allowed = what_would_leave(site, "scaffold", STUDY)
    assert not allowed
    assert lines[-1] == "it would be refused before the first round: reports"
    lines, allowed = what_would_leave(site, "fedavg", STUDY)
    assert allowed
    assert any("NOT ALLOWED" in line and "counts" in line for line in lines)


def test_methods_that_no_site_can_take_part_in(tmp_path: Path) -> None:
    lines, allowed = what_would_leave(site_with(tmp_path), "central", STUDY)
    assert not allowed
    assert "all data in one place" in lines[0]
    with pytest.raises(ConfigError, match="did you mean 'scaffold'"):
        what_would_leave(site_with(tmp_path / "b"), "scafold", Config())


def test_the_log_adds_up(tmp_path: Path) -> None:
    sites = three_sites(tmp_path / "sites", write_clients(tmp_path / "all"))
    run_on_sites(make_config(settings("scaffold")), sites, tmp_path / "runs")
    site = sites.workers["ann"].site
    left = [reply for name, _, reply in sites.messages if name == "ann"]
    noted = read_audit(site.folder)
    assert [line["bytes"] for line in noted] == [len(reply) for reply in left]
    assert [line["fields"] for line in noted] == [fields_of(reply) for reply in left]
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(audit_table(site, 3))
    text = console.export_text()
    assert f"{len(left)} replies, {sum(map(len, left)):,} bytes" in text
    assert len([line for line in text.splitlines() if "T" in line and "Z" in line]) == 3


def test_a_client_with_few_rows_takes_no_part(tmp_path: Path) -> None:
    sites = three_sites(tmp_path / "sites", write_clients(tmp_path / "all"), "min_rows = 60\n")
    with pytest.raises(RunError, match=r"ann: client 'ann' has \d+ training samples, and site"):
        run_on_sites(make_config(settings("fedavg")), sites, tmp_path / "runs")


@pytest.mark.parametrize(
    ("rules", "sentence"),
    [
        ('allow = ["everything"]\n', "allow"),
        ("min_rows = 0\n", "min_rows"),
        ("alow = []\n", "did you mean 'allow'"),
    ],
)
def test_mistakes_in_site_toml_are_named(rules: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=sentence):
        site_with(tmp_path, rules)
