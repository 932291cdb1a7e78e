"""Where and with what a page's numbers were made; nothing that names the machine or its paths."""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import fedskew
from fedskew.engine.arithmetic import Arithmetic, arithmetic
from fedskew.engine.workers import cores

UNKNOWN = "unknown"


@dataclass(frozen=True)
class Provenance:
    version: str
    commit: str
    cores: int
    processor: str
    memory: str
    python: str
    arithmetic: Arithmetic

    @property
    def code(self) -> str:
        return f"{self.version}, commit {self.commit}"


def provenance() -> Provenance:
    """This machine and this code."""
    return Provenance(
        version=_version(),
        commit=commit(Path(fedskew.__file__).parent),
        cores=cores(),
        processor=_processor(),
        memory=_memory(),
        python=platform.python_version(),
        arithmetic=arithmetic(),
    )


def _version() -> str:
    try:
        return version("fedskew")
    except PackageNotFoundError:
        return UNKNOWN


def commit(package: Path) -> str:
    """The commit the package's code is of, or "unknown" where it is not under version control."""
    # An installed copy may lie inside somebody else's repository: ours must know the file.
    if _git(package, "ls-files", "--error-unmatch", "__init__.py") is None:
        return UNKNOWN
    found = _git(package, "rev-parse", "HEAD")
    changed = _git(package, "status", "--porcelain", "--", ".")
    return (found or UNKNOWN) + (" with uncommitted changes" if changed else "")


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True, text=True, check=True, timeout=20,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine() or UNKNOWN


def _memory() -> str:
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return UNKNOWN
    return f"{total / 2**30:.1f} GiB"
