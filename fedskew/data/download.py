"""One official file over HTTPS: from hosts of the table only, resumed, never more than promised."""

from __future__ import annotations

import json
import re
import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from fedskew.data.offers import OfficialFile

CHUNK = 1 << 16
LOOPBACK = frozenset({"127.0.0.1", "localhost"})
"""Hosts of this machine, which no table of ours lists; only they need no encryption."""
MOST_SECONDS = 60.0
"""The longest pause that a server may ask for."""


@dataclass(frozen=True)
class Patience:
    """Attempts that bring nothing before an address is given up, and seconds between them."""

    tries: int = 4
    pause: float = 1.0
    timeout: float = 30.0


PATIENT = Patience()


class Failed(Exception):
    """An address does not give the file; the message says why."""


class Passing(Failed):
    """Another attempt may succeed."""

    def __init__(self, reason: str, wait: float = 0.0) -> None:
        super().__init__(reason)
        self.wait = wait


class NoSuchPart(Passing):
    """The file of this address ends before the part that was asked for."""


def download(
    file: OfficialFile,
    part: Path,
    progress: Callable[[int], None],
    patience: Patience = PATIENT,
) -> str:
    """Fetch a file into ``part``, which may hold its beginning; the address that gave it.

    What is in ``part`` in the end is the official file. If no address gives it, what came stays
    for the next attempt, unless it is known to be wrong.
    """
    reasons = []
    for address in file.addresses:
        try:
            _insist(address, file, part, progress, patience)
            return address
        except Failed as failed:
            reasons.append(f"{urlsplit(address).netloc} {failed}")
    raise Failed("; ".join(reasons))


def _insist(
    address: str,
    file: OfficialFile,
    part: Path,
    progress: Callable[[int], None],
    patience: Patience,
) -> None:
    """Try an address until the file is there, or as long as attempts bring something."""
    vain, afresh = 0, False
    while True:
        before = _size(part)
        try:
            _receive(address, file, part, progress, patience.timeout)
        except Passing as failed:
            vain = 0 if _size(part) > before else vain + 1
            if vain >= patience.tries:
                raise Failed(f"{failed} ({vain} times)") from failed
            time.sleep(max(min(failed.wait, MOST_SECONDS), patience.pause * 2 ** max(vain - 1, 0)))
            continue
        wrong = file.wrong(part)
        if not wrong:
            _notes(part).unlink(missing_ok=True)
            return
        part.unlink()
        # The beginning may have been that of another file; from the start there is no excuse.
        if not before or afresh:
            raise Failed(f"gives another file: {wrong}")
        afresh = True


def _receive(
    address: str, file: OfficialFile, part: Path, progress: Callable[[int], None], timeout: float
) -> None:
    """One attempt: what is still missing, or all of it."""
    got = _size(part)
    if got > file.size:
        part.unlink()
        got = 0
    if got == file.size:
        return
    try:
        answer = _open(address, file, _resuming(address, part, got), timeout)
    except NoSuchPart:
        part.unlink(missing_ok=True)
        raise
    with answer:
        got = _start(answer, file, part, got)
        _note(part, address, answer)
        with open(part, "ab" if got else "wb") as out:
            progress(got)
            for chunk in _chunks(answer):
                got += len(chunk)
                if got > file.size:
                    break
                out.write(chunk)
                progress(got)
    if got > file.size:
        part.unlink()
        raise Failed(f"sends more than the {file.size} bytes of the official file")
    if got < file.size:
        raise Passing(f"ended after {got} of {file.size} bytes")


def _chunks(answer: HTTPResponse) -> Iterator[bytes]:
    while True:
        try:
            chunk = answer.read(CHUNK)
        except (OSError, HTTPException) as error:
            raise Passing(f"broke off ({_reason(error)})") from error
        if not chunk:
            return
        yield chunk


def _resuming(address: str, part: Path, got: int) -> dict[str, str]:
    """Headers that ask for the rest, if it is still the file that began here.

    Another address gives the same bytes or the wrong sum, so it is asked without a condition.
    """
    if not got:
        return {}
    headers = {"Range": f"bytes={got}-"}
    try:
        noted = json.loads(_notes(part).read_text())
        if noted["address"] == address and noted["mark"]:
            headers["If-Range"] = str(noted["mark"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return headers


def _note(part: Path, address: str, answer: HTTPResponse) -> None:
    """Remember which version of the file this is; weak marks cannot be asked for again."""
    mark = answer.headers.get("ETag", "")
    if not mark or mark.startswith("W/"):
        mark = answer.headers.get("Last-Modified", "")
    _notes(part).write_text(json.dumps({"address": address, "mark": mark}))


def _notes(part: Path) -> Path:
    return part.with_name(f"{part.name}.json")


def _start(answer: HTTPResponse, file: OfficialFile, part: Path, asked: int) -> int:
    """Where the answer begins; one that cannot be this file is refused before it comes."""
    length = answer.headers.get("Content-Length", "")
    if answer.status == 206:
        given = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", answer.headers.get("Content-Range", ""))
        if given is None or int(given[1]) != asked or given[2] not in ("*", str(file.size)):
            part.unlink(missing_ok=True)
            raise Passing("gives another part than the one asked for")
        return asked
    if answer.status != 200:
        raise Failed(f"answers {answer.status}")
    if length.isdecimal() and int(length) != file.size:
        raise Failed(f"offers {length} bytes, the official file has {file.size}")
    return 0


def _open(
    address: str, file: OfficialFile, headers: dict[str, str], timeout: float
) -> HTTPResponse:
    _check(address, file)
    headers = {
        "User-Agent": f"fedskew/{version('fedskew')}",
        "Accept-Encoding": "identity",
        **headers,
    }
    try:
        answer: HTTPResponse = build_opener(_Redirects(file)).open(
            Request(address, headers=headers), timeout=timeout
        )
        return answer
    except HTTPError as error:
        with error:
            raise _refused(error) from error
    except URLError as error:
        reason = error.reason if isinstance(error.reason, OSError) else error
        if isinstance(reason, TimeoutError | ConnectionResetError | ssl.SSLEOFError):
            raise Passing(f"did not answer ({_reason(reason)})") from error
        raise Failed(f"cannot be reached ({_reason(reason)})") from error
    except (OSError, HTTPException) as error:
        raise Passing(f"did not answer ({_reason(error)})") from error


def _refused(error: HTTPError) -> Failed:
    said = f"answers {error.code} ({error.reason})"
    if error.code == 416:
        return NoSuchPart(said)
    if error.code in (408, 425, 429) or error.code >= 500:
        wait = error.headers.get("Retry-After", "") if error.headers else ""
        return Passing(said, float(wait) if wait.isdecimal() else 0.0)
    return Failed(said)


def _reason(error: BaseException) -> str:
    """
    >>> _reason(ConnectionRefusedError(111, "Connection refused"))
    'connection refused'
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not valid: {error.verify_message}"
    if isinstance(error, TimeoutError) and not error.strerror:
        return "timed out"
    words = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return f"{words[:1].lower()}{words[1:]}"


class _Redirects(HTTPRedirectHandler):
    """Follows a server to hosts that the table lists for the file, and nowhere else."""

    def __init__(self, file: OfficialFile) -> None:
        self.file = file

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> Request | None:
        _check(newurl, self.file)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _check(address: str, file: OfficialFile) -> None:
    parts = urlsplit(address)
    if parts.netloc not in file.hosts:
        raise Failed(f"leads to {parts.netloc or address!r}, which the table does not list")
    if parts.scheme != "https" and parts.hostname not in LOOPBACK:
        raise Failed(f"leads to {parts.scheme}://{parts.netloc}, which is not encrypted")


def _size(part: Path) -> int:
    try:
        return part.stat().st_size
    except FileNotFoundError:
        return 0
