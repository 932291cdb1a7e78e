"""Sites in this process: real folders and real bytes, no network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from fedskew.sites.site import Site
from fedskew.sites.worker import Worker

NAMES = ("ann", "bob", "cleo", "dan")


def write_clients(folder: Path) -> dict[str, Path]:
    """Four clients of different sizes and labels, a file each."""
    folder.mkdir(parents=True)
    x, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(3)
    found = {}
    for k, (name, size) in enumerate(zip(NAMES, (60, 90, 75, 110), strict=True)):
        liked = np.isin(y, [k, k + 1, k + 2, 7])
        rows = rng.choice(np.flatnonzero(liked), size, replace=False)
        found[name] = folder / f"{name}.csv"
        header = ",".join(f"p{i}" for i in range(0, 64, 4)) + ",label"
        lines = [",".join(map(str, [*x[row, ::4], int(y[row])])) for row in rows]
        found[name].write_text("\n".join([header, *lines]) + "\n")
    return found


def make_site(folder: Path, name: str, files: Sequence[Path], rules: str = "") -> Site:
    """A site with a file per client."""
    (folder / "data").mkdir(parents=True)
    for file in files:
        (folder / "data" / file.name).write_bytes(file.read_bytes())
    path = "data" if len(files) > 1 else f"data/{files[0].name}"
    (folder / "site.toml").write_text(f'name = "{name}"\n{rules}[data]\npath = "{path}"\n')
    return Site.open(folder)


class Here:
    """Hands messages to workers; ``lost`` sites do not answer."""

    def __init__(self, workers: Mapping[str, Worker]) -> None:
        self.workers = dict(workers)
        self.lost: set[str] = set()
        self.messages: list[tuple[str, bytes, bytes]] = []

    def sites(self) -> list[str]:
        return sorted(self.workers)

    def exchange(self, messages: Mapping[str, bytes]) -> dict[str, bytes | str]:
        replies: dict[str, bytes | str] = {}
        for site, message in messages.items():
            if site in self.lost:
                replies[site] = "it is away"
                continue
            reply = self.workers[site].handle(message)
            self.messages.append((site, message, reply))
            replies[site] = reply
        return replies


def three_sites(folder: Path, files: Mapping[str, Path], rules: str = "") -> Here:
    """Two sites with a client each, named as it is, and one with two clients."""
    held = {
        "ann": [files["ann"]],
        "bob": [files["bob"]],
        "north": [files["cleo"], files["dan"]],
    }
    return Here(
        {name: Worker(make_site(folder / name, name, its, rules)) for name, its in held.items()}
    )
