"""The progress of downloads: a live line in a terminal, a few plain lines anywhere else."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from fedskew.data.fetch import Watch
from fedskew.data.offers import OfficialFile

EVERY = 10.0
"""Seconds between two plain lines of one file."""


class PlainDownloads(Watch):
    """A line every few seconds, and what users should know."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.last: float | None = None
        self.file = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        pass

    def tell(self, sentence: str) -> None:
        self.console.print(sentence, markup=False, highlight=False, soft_wrap=True)

    def at(self, file: OfficialFile, got: int) -> None:
        now = time.monotonic()
        if file.name != self.file:
            self.file, self.last = file.name, now
            if 0 < got < file.size:
                self.tell(f"{file.name}: going on after {megabytes(got)}")
        elif self.last is not None and now - self.last >= EVERY:
            self.last = now
            self.tell(f"{file.name}: {megabytes(got)} of {megabytes(file.size)}")


class LiveDownloads(PlainDownloads):
    """A bar that moves, with speed and time left."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self.bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(compact=True),
            console=console,
            transient=True,
        )
        self.bar: TaskID | None = None

    def __enter__(self) -> Self:
        self.bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.bars.stop()

    def at(self, file: OfficialFile, got: int) -> None:
        if file.name != self.file or self.bar is None:
            if self.bar is not None:
                self.bars.remove_task(self.bar)
            self.file = file.name
            self.bar = self.bars.add_task(file.name, total=file.size, completed=got)
        self.bars.update(self.bar, completed=got)


def downloads_on(console: Console) -> PlainDownloads:
    """The progress that suits where the output goes."""
    return LiveDownloads(console) if console.is_terminal else PlainDownloads(console)


def megabytes(size: int) -> str:
    """
    >>> megabytes(9912422), megabytes(28881), megabytes(4542)
    ('9.9 MB', '28.9 kB', '4.5 kB')
    """
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.1f} kB"
