"""A person's path, typed as the guide says it: one command for each step."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from here import write_clients
from processes import ended, fedskew, killed

from fedskew.sites.proxy import find_nginx
from fedskew.sites.trial import free_ports

pytestmark = pytest.mark.sites


def typed(*words: str | Path) -> tuple[int, str]:
    """Exit code, and all that a command printed."""
    process = fedskew(*words)
    out, err = process.communicate(timeout=300)
    return process.returncode, out + err


def first_line(text: str, start: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(start))


def fingerprints(text: str) -> set[str]:
    return set(re.findall(r"(?:[0-9A-F]{4} ){7}[0-9A-F]{4}", text))


def until(process: subprocess.Popen[str], words: str) -> str:
    """Read what a process prints up to a line with these words."""
    assert process.stdout is not None
    read = ""
    for line in process.stdout:
        read += line
        if words in line:
            return read
    raise AssertionError(f"{read}\n{process.stderr.read() if process.stderr else ''}")


def left_over(folder: Path) -> list[str]:
    """Processes that name this folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in words:
            found.append(words)
    return found


def test_a_server_a_site_and_a_study_from_nothing(tmp_path: Path) -> None:
    lab, here = tmp_path / "lab", tmp_path / "hospital-a"
    data = write_clients(tmp_path / "all")["bob"]
    port, door = free_ports(2)
    proxy = "nginx" if find_nginx() else "none"
    address = f"127.0.0.1:{door if proxy == 'nginx' else port}"
    code, made = typed("server", "init", lab, "--address", address, "--port", str(port),
                       "--proxy", proxy)  # fmt: skip
    assert code == 0, made
    code, said = typed("site", "init", here, "--data", data)
    assert code == 0, said
    assert "site 'hospital-a': 90 samples" in said
    code, added = typed("server", "add", first_line(said, "fedskew-site:"), "--server", lab)
    assert code == 0, added
    assert fingerprints(said) < fingerprints(added)
    assert fingerprints(made) < fingerprints(added)
    invitation = first_line(added, "fedskew-invitation:")
    code, refused = typed("site", "join", invitation, "--site", here)
    assert code == 2
    assert f"nothing answers at {address}" in refused
    server = fedskew("server", "start", lab)
    site = None
    try:
        until(server, "server 'lab' is ready")
        code, joined = typed("site", "join", invitation, "--site", here)
        assert code == 0, joined
        assert fingerprints(joined) == fingerprints(made)
        assert "site 'hospital-a' has joined 'lab'" in joined
        code, away = typed("sites", lab)
        assert code == 0, away
        assert re.search(r"hospital-a +away", away)
        site = fedskew("site", "start", here)
        until(site, "is connected to")
        twice = fedskew("site", "start", here, "--once")
        _, why = twice.communicate(timeout=300)
        assert twice.returncode == 2
        assert "site 'hospital-a' runs already" in why
        code, there = typed("sites", lab)
        assert re.search(r"hospital-a +connected .* 1 +90 .* all", there), there
        code, ran = typed("run", lab / "study.toml", "--sites", lab, "--out", tmp_path / "runs",
                          "--set", "train.rounds=2")  # fmt: skip
        assert code == 0, ran
        assert "finished after round 2" in ran
        assert str(lab) not in json.dumps([*(tmp_path / "runs").glob("*/config.json")], default=str)
        code, log = typed("site", "log", "--site", here)
        assert code == 0
        assert "parameters" in log
        code, used = typed("site", "predict", data, "--site", here, "--threshold", "0.5")
        assert code == 0, used
        assert "accuracy:" in used
    finally:
        codes = [ended(process) for process in (site, server) if process is not None]
    assert codes == [143, 143]
    assert not left_over(tmp_path)


def test_sites_die_with_whoever_started_them(tmp_path: Path) -> None:
    """A supervisor that is killed leaves no program behind that holds a port."""
    port, _ = free_ports(2)
    typed("server", "init", tmp_path / "lab", "--address", f"127.0.0.1:{port}", "--port",
          str(port), "--proxy", "none")  # fmt: skip
    server = fedskew("server", "start", tmp_path / "lab")
    try:
        until(server, "is ready")
        assert len(left_over(tmp_path)) == 2
    finally:
        killed(server)
    for _ in range(600):
        if not left_over(tmp_path):
            return
        subprocess.run(["sleep", "0.1"], check=True)
    raise AssertionError(left_over(tmp_path))


def test_two_studies_run_at_once_on_the_same_site(tmp_path: Path) -> None:
    from processes import Lot

    lot = Lot(tmp_path)
    try:
        lot.start_server()
        lot.start_sites()
        study = tmp_path / "study.toml"
        study.write_text('model = {name = "mlp", hidden = [12]}\n[train]\nrounds = 4\nlr = 0.05\n')
        both = [
            fedskew("run", study, "--sites", lot.lab.folder, "--out", tmp_path / "runs", "--set",
                    f"method={method}")
            for method in ("scaffold", "fedrep")
        ]  # fmt: skip
        try:
            said = [process.communicate(timeout=300) for process in both]
        finally:
            for process in both:
                killed(process)
    finally:
        lot.end()
    for process, (out, err) in zip(both, said, strict=True):
        assert process.returncode == 0, err
        assert "finished after round 4" in out
        assert "failures" not in out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("server", "start"), "there is no folder of a server here"),
        (("site", "log"), "there is no folder of a site here"),
        (("server", "add", "hello", "--server", "x"), "x is no folder of a server"),
        (("server", "init", "lab", "--address", "fl.example.org"), "is a name and a port"),
        (("site", "init", "a", "--data", "nothing.csv"), "nothing.csv does not exist"),
        (("run", "digits", "--sites", "lab"), "lab is no folder of a server"),
        (("server", "try", "digits", "--sites", "20", "--out", "t"), "10 clients for 20 sites"),
    ],
)
def test_what_cannot_work_is_one_sentence(
    words: tuple[str, ...], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, said = typed(*words)
    assert code == 2
    assert sentence in said
    assert len(said.strip().splitlines()) == 1
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
