"""One file from a server on this machine: well, badly and maliciously behaved."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from loopback import PROXIES, Loopback, Page, official

from fedskew.data import download as subject
from fedskew.data.download import Failed, Patience, download
from fedskew.sites.keys import make_authority, make_certificate

CONTENT = np.random.default_rng(0).bytes(200_000)
HALF = len(CONTENT) // 2
QUICK = Patience(tries=3, pause=0.01, timeout=60.0)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Loopback]:
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
    with Loopback() as running:
        yield running


@pytest.fixture
def part(tmp_path: Path) -> Path:
    return tmp_path / "file.part"


def nobody_listens() -> str:
    """An address of this machine where nothing answers."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{taken.getsockname()[1]}/file"


def get(part: Path, *addresses: str, patience: Patience = QUICK, also: tuple[str, ...] = ()) -> str:
    file = official("file", CONTENT, *addresses, also=also)
    return download(file, part, lambda got: None, patience)


def beginning(part: Path, content: bytes, address: str, mark: str) -> None:
    """What an attempt leaves that was interrupted."""
    part.write_bytes(content)
    part.with_name(f"{part.name}.json").write_text(json.dumps({"address": address, "mark": mark}))


def test_a_good_file_arrives_with_one_request(server: Loopback, part: Path) -> None:
    address = server.serve("file", CONTENT)
    seen: list[int] = []
    assert download(official("file", CONTENT, address), part, seen.append, QUICK) == address
    assert part.read_bytes() == CONTENT
    assert [path.name for path in part.parent.iterdir()] == ["file.part"], "no notes are left"
    assert (seen[0], seen[-1], seen) == (0, len(CONTENT), sorted(seen))
    ((path, headers),) = server.asked
    assert (path, headers["accept-encoding"]) == ("/file", "identity")
    assert "range" not in headers
    assert headers["user-agent"].startswith("fedskew/")


def test_a_server_that_says_no_length_is_read_to_the_end(server: Loopback, part: Path) -> None:
    get(part, server.serve("file", CONTENT, length=-1))
    assert part.read_bytes() == CONTENT


def test_a_file_cut_short_goes_on_where_it_stopped(server: Loopback, part: Path) -> None:
    get(part, server.serve("file", CONTENT, cut=[70_000, 50_000]))
    assert part.read_bytes() == CONTENT
    asked = [(headers.get("range"), headers.get("if-range")) for _, headers in server.asked]
    assert asked == [(None, None), ("bytes=70000-", '"1"'), ("bytes=120000-", '"1"')]


def test_a_server_that_always_cuts_is_given_up_and_the_beginning_stays(
    server: Loopback, part: Path
) -> None:
    address = server.serve("file", CONTENT, ranges=False, cut=[70_000] * 9)
    with pytest.raises(Failed, match=r"ended after 70000 of 200000 bytes \(3 times\)"):
        get(part, address)
    assert len(server.asked) == 1 + QUICK.tries, "the first attempt brought something"
    assert part.read_bytes() == CONTENT[:70_000]


def test_a_wrong_file_of_the_right_size_is_removed(server: Loopback, part: Path) -> None:
    address = server.serve("file", CONTENT[::-1])
    with pytest.raises(Failed, match=r"gives another file: its SHA-256 is [0-9a-f]{64}, that of"):
        get(part, address)
    assert not part.exists()
    assert len(server.asked) == 1


def test_the_next_address_is_tried_when_one_gives_a_wrong_file(
    server: Loopback, part: Path
) -> None:
    bad, good = server.serve("bad", CONTENT[::-1]), server.serve("good", CONTENT)
    assert get(part, bad, good) == good
    assert part.read_bytes() == CONTENT


@pytest.mark.parametrize("code", [401, 403, 404, 410])
def test_a_refusal_is_final(server: Loopback, part: Path, code: int) -> None:
    address = server.serve("file", CONTENT, refuse=[code] * 9)
    with pytest.raises(Failed, match=rf"{server.host} answers {code} \("):
        get(part, address)
    assert len(server.asked) == 1
    assert not part.exists()


@pytest.mark.parametrize("code", [429, 500, 502, 503])
def test_a_server_in_trouble_is_asked_again(server: Loopback, part: Path, code: int) -> None:
    get(part, server.serve("file", CONTENT, refuse=[code, code]))
    assert part.read_bytes() == CONTENT
    assert len(server.asked) == 3


def test_a_server_in_lasting_trouble_is_given_up(server: Loopback, part: Path) -> None:
    with pytest.raises(Failed, match=r"answers 503 \(Service Unavailable\) \(3 times\)"):
        get(part, server.serve("file", CONTENT, refuse=[503] * 9))
    assert len(server.asked) == 3


def test_pauses_double_and_servers_may_ask_for_longer_ones(
    server: Loopback, part: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(subject.time, "sleep", slept.append)
    get(part, server.serve("a", CONTENT, refuse=[500] * 3), patience=Patience(4, 1.0, 5.0))
    assert slept == [1, 2, 4]
    part.unlink()
    hurried = server.serve("b", CONTENT, refuse=[503], headers={"Retry-After": "7"})
    get(part, hurried)
    part.unlink()
    get(part, server.serve("c", CONTENT, refuse=[503], headers={"Retry-After": "86400"}))
    assert slept[3:] == [7, 60], "nobody waits for a day"


def test_a_file_that_says_it_is_larger_is_not_even_read(server: Loopback, part: Path) -> None:
    address = server.serve("file", CONTENT + b"more")
    with pytest.raises(Failed, match="offers 200004 bytes, the official file has 200000"):
        get(part, address)
    assert not part.exists()


def test_a_file_that_does_not_end_is_stopped(server: Loopback, part: Path) -> None:
    address = server.serve("file", CONTENT + bytes(10**7), length=-1)
    seen: list[int] = []
    with pytest.raises(Failed, match="sends more than the 200000 bytes of the official file"):
        download(official("file", CONTENT, address), part, seen.append, QUICK)
    assert max(seen) <= len(CONTENT)
    assert not part.exists()


def test_a_redirect_to_a_host_of_the_table_is_followed(server: Loopback, part: Path) -> None:
    with Loopback() as other:
        target = other.serve("moved", CONTENT)
        get(part, server.serve("file", b"", leads_to=target), also=(other.host,))
    assert part.read_bytes() == CONTENT


def test_a_redirect_off_the_table_is_refused_without_asking_there(
    server: Loopback, part: Path
) -> None:
    with Loopback() as other:
        target = other.serve("file", CONTENT)
        with pytest.raises(Failed, match=rf"leads to '{other.host}', which the table does not"):
            get(part, server.serve("file", b"", leads_to=target))
        assert other.asked == []
    assert not part.exists()


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/x", "//user@elsewhere/"])
def test_redirects_to_anything_else_are_refused(server: Loopback, part: Path, target: str) -> None:
    with pytest.raises(Failed, match=r"answers 302|does not list"):
        get(part, server.serve("file", b"", leads_to=target))


def test_only_this_machine_may_be_asked_without_encryption(server: Loopback, part: Path) -> None:
    address = server.serve("file", b"", leads_to="http://example.org/file")
    with pytest.raises(Failed, match=r"leads to http://example\.org, which is not encrypted"):
        get(part, address, also=("example.org",))
    with pytest.raises(Failed, match=r"leads to http://example\.org, which is not encrypted"):
        get(part, "http://example.org/file")


def test_a_loop_of_redirects_ends(server: Loopback, part: Path) -> None:
    address = f"http://{server.host}/file"
    with pytest.raises(Failed, match="answers 302"):
        get(part, server.serve("file", b"", leads_to=address))


def test_half_a_file_is_not_fetched_again(server: Loopback, part: Path) -> None:
    address = server.serve("file", CONTENT)
    beginning(part, CONTENT[:HALF], address, '"1"')
    get(part, address)
    assert part.read_bytes() == CONTENT
    ((_, headers),) = server.asked
    assert (headers["range"], headers["if-range"]) == (f"bytes={HALF}-", '"1"')


def test_a_server_that_knows_no_ranges_sends_all_of_it_again(server: Loopback, part: Path) -> None:
    address = server.serve("file", CONTENT, ranges=False)
    beginning(part, CONTENT[:HALF], address, '"1"')
    get(part, address)
    assert part.read_bytes() == CONTENT
    assert len(server.asked) == 1


def test_a_file_that_changed_meanwhile_starts_again(server: Loopback, part: Path) -> None:
    address = server.serve("file", CONTENT, etag='"2"')
    beginning(part, b"old" * 1000, address, '"1"')
    get(part, address)
    assert part.read_bytes() == CONTENT
    assert [headers["if-range"] for _, headers in server.asked] == ['"1"']


def test_a_weak_mark_is_not_asked_for(server: Loopback, part: Path) -> None:
    modified = "Wed, 21 Oct 2015 07:28:00 GMT"
    address = server.serve(
        "file", CONTENT, etag='W/"1"', cut=[100], headers={"Last-Modified": modified}
    )
    get(part, address)
    assert server.asked[1][1]["if-range"] == modified
    assert part.read_bytes() == CONTENT


def test_the_beginning_of_another_file_is_noticed_and_all_is_fetched_again(
    server: Loopback, part: Path
) -> None:
    address = server.serve("file", CONTENT)
    part.write_bytes(b"x" * HALF)  # from an attempt that left no notes
    get(part, address)
    assert part.read_bytes() == CONTENT
    assert [headers.get("range") for _, headers in server.asked] == [f"bytes={HALF}-", None]


def test_another_address_goes_on_where_the_first_stopped(server: Loopback, part: Path) -> None:
    first = server.serve("first", CONTENT, cut=[HALF, 0, 0, 0])
    second = server.serve("second", CONTENT, etag='"other"')
    assert get(part, first, second) == second
    path, headers = server.asked[-1]
    assert (path, headers["range"]) == ("/second", f"bytes={HALF}-")
    assert "if-range" not in headers


def test_what_is_complete_is_not_asked_for_again(server: Loopback, part: Path) -> None:
    part.write_bytes(CONTENT)
    get(part, server.serve("file", CONTENT))
    assert server.asked == []


def test_what_is_too_long_is_fetched_again(server: Loopback, part: Path) -> None:
    part.write_bytes(CONTENT + b"more")
    get(part, server.serve("file", CONTENT))
    assert part.read_bytes() == CONTENT


def test_a_file_that_is_shorter_on_the_server_is_refused(server: Loopback, part: Path) -> None:
    part.write_bytes(CONTENT[:HALF])
    with pytest.raises(Failed, match="offers 10 bytes, the official file has 200000"):
        get(part, server.serve("file", CONTENT[:10]))
    assert [headers.get("range") for _, headers in server.asked] == [f"bytes={HALF}-", None]


@pytest.mark.parametrize("said", ["bytes 0-199999/200000", "bytes 100000-199999/7", "rubbish"])
def test_a_part_that_says_to_be_another_one_is_not_appended(
    server: Loopback, part: Path, said: str
) -> None:
    part.write_bytes(CONTENT[:HALF])
    get(part, server.serve("file", CONTENT, says_range=said))
    assert part.read_bytes() == CONTENT
    assert [headers.get("range") for _, headers in server.asked] == [f"bytes={HALF}-", None]


def test_a_wrong_file_that_comes_in_pieces_is_given_up(server: Loopback, part: Path) -> None:
    address = server.serve("file", CONTENT[::-1], cut=[HALF, 10**9] * 9)
    with pytest.raises(Failed, match="gives another file"):
        get(part, address)
    assert len(server.asked) == 4, "twice in two pieces"


def test_a_larger_file_in_the_table_than_on_the_server_is_never_complete(
    server: Loopback, part: Path
) -> None:
    address = server.serve("file", CONTENT)
    part.write_bytes(CONTENT[:HALF])
    odd = official("file", CONTENT + b"tail", address)
    with pytest.raises(Failed, match="offers 200000 bytes, the official file has 200004"):
        download(odd, part, lambda got: None, QUICK)


def test_a_server_that_falls_silent_is_given_up(server: Loopback, part: Path) -> None:
    address = server.serve("file", CONTENT, pause=5.0)
    with pytest.raises(Failed, match=r"broke off \(timed out\) \(2 times\)"):
        get(part, address, patience=Patience(tries=2, pause=0.01, timeout=0.5))


def test_without_a_way_there_every_address_says_why(part: Path) -> None:
    with pytest.raises(Failed) as info:
        get(part, nobody_listens(), nobody_listens())
    assert str(info.value).count("cannot be reached (connection refused)") == 2


def test_a_proxy_of_the_environment_is_used(
    server: Loopback, part: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = nobody_listens()
    server.pages[address] = Page(CONTENT)
    monkeypatch.setenv("http_proxy", f"http://{server.host}")
    monkeypatch.setenv("no_proxy", "")
    get(part, address)
    assert server.paths() == [address], "a proxy is asked for whole addresses"
    assert part.read_bytes() == CONTENT


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    """A server's certificate and the authority that signed it, which nobody knows."""
    make_authority(tmp_path, "nobody")
    make_certificate(tmp_path, "localhost")
    return tmp_path


def test_a_server_is_trusted_only_with_a_valid_certificate(
    certificates: Path, part: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
    with Loopback(certificates) as server:
        address = server.serve("file", CONTENT)
        with pytest.raises(Failed, match=r"cannot be reached \(its certificate is not valid: "):
            get(part, address)
        assert not part.exists()
        monkeypatch.setenv("SSL_CERT_FILE", str(certificates / "ca.crt"))
        get(part, address)
    assert part.read_bytes() == CONTENT
