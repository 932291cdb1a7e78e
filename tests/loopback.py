"""A small web server on this machine, as well or badly behaved as a test wants it."""

from __future__ import annotations

import hashlib
import re
import ssl
import time
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any, Self

from fedskew.data.offers import Offer, OfficialFile

PROXIES = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


@dataclass
class Page:
    """What a server answers under one path; ``refuse`` and ``cut`` are used up one by one."""

    content: bytes = b""
    etag: str = '"1"'
    ranges: bool = True
    refuse: list[int] = field(default_factory=list)
    cut: list[int] = field(default_factory=list)
    """So many bytes, then the connection ends."""
    length: int | None = None
    """What it says its length is; -1 for nothing."""
    says_range: str = ""
    """What it says of a part, in place of the truth."""
    leads_to: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    pause: float = 0.0
    """Seconds before every 16 kB."""
    gate: Event | None = None
    """The second half of the content waits until it is set."""


class Loopback:
    """Serves pages in a thread, and remembers what it was asked."""

    def __init__(self, certificates: Path | None = None) -> None:
        """With a folder of ``server.crt`` and ``server.key`` it speaks TLS."""
        self.pages: dict[str, Page] = {}
        self.asked: list[tuple[str, dict[str, str]]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append((self.path, {k.lower(): v for k, v in self.headers.items()}))
                outer.answer(self)

            def log_message(self, *said: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.scheme = "http"
        if certificates is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificates / "server.crt", certificates / "server.key")
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
            self.scheme = "https"
        self.thread = Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02})

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.server.server_port}"

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()

    def serve(self, path: str, content: bytes, **manners: Any) -> str:
        """Answer under a path from now on; its address."""
        self.pages[f"/{path}"] = Page(content, **manners)
        return f"{self.scheme}://{self.host}/{path}"

    def paths(self) -> list[str]:
        """What was asked for, in order."""
        return [path for path, _ in self.asked]

    def answer(self, to: BaseHTTPRequestHandler) -> None:
        page = self.pages.get(to.path)
        if page is None or page.refuse:
            code = page.refuse.pop(0) if page else 404
            to.send_response(code)
            for name, value in page.headers.items() if page else ():
                to.send_header(name, value)
            to.send_header("Content-Length", "0")
            to.end_headers()
            return
        if page.leads_to:
            to.send_response(302)
            to.send_header("Location", page.leads_to)
            to.send_header("Content-Length", "0")
            to.end_headers()
            return
        self._content(to, page)

    @staticmethod
    def _content(to: BaseHTTPRequestHandler, page: Page) -> None:
        content, total = page.content, len(page.content)
        wanted = re.fullmatch(r"bytes=(\d+)-", to.headers.get("Range", ""))
        unchanged = to.headers.get("If-Range", page.etag) == page.etag
        if wanted and page.ranges and unchanged:
            start = int(wanted[1])
            if start >= total:
                to.send_error(416)
                return
            content = content[start:]
            to.send_response(206)
            truth = f"bytes {start}-{total - 1}/{total}"
            to.send_header("Content-Range", page.says_range or truth)
        else:
            to.send_response(200)
        if page.etag:
            to.send_header("ETag", page.etag)
        if page.length != -1:
            to.send_header("Content-Length", str(page.length or len(content)))
        for name, value in page.headers.items():
            to.send_header(name, value)
        to.end_headers()
        content = content[: page.cut.pop(0)] if page.cut else content
        try:
            if page.gate is not None:
                half = len(content) // 2
                to.wfile.write(content[:half])
                content = content[half:]
                page.gate.wait(600)
            for start in range(0, len(content), 1 << 14):
                if page.pause:
                    time.sleep(page.pause)
                to.wfile.write(content[start : start + (1 << 14)])
        except OSError:
            pass  # the client has gone, as some tests want it
        to.close_connection = True


def official(name: str, content: bytes, *addresses: str, **facts: Any) -> OfficialFile:
    """The table's entry of a file with this content."""
    return OfficialFile(
        name, len(content), addresses, sha256=hashlib.sha256(content).hexdigest(), **facts
    )


def moved(offer: Offer, server: Loopback, contents: dict[str, bytes], **manners: Any) -> Offer:
    """An offer whose files have other contents and come from a server on this machine."""
    files = []
    for file in offer.files:
        content = contents[file.name]
        address = server.serve(file.name, content, **manners)
        digest = hashlib.sha256(content).hexdigest() if file.sha256 else ""
        files.append(
            replace(
                file,
                size=len(content),
                addresses=(address,),
                sha256=digest,
                md5=hashlib.md5(content).hexdigest(),
                also=(),
            )
        )
    return replace(offer, files=tuple(files))
