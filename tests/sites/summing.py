"""Sites whose updates are summed: as many as wanted, with a client each, lost when one likes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from here import Here, make_site
from sklearn.datasets import load_digits

from fedskew.federate.backends.wire import digest_of, head_of
from fedskew.sites.worker import Worker

SIZES = {"ann": 60, "bob": 90, "cleo": 75, "dan": 110, "eve": 50}
TRAINING = {"ann": 43, "bob": 65, "cleo": 54, "dan": 79, "eve": 36}
"""What is left for training of a fifth for testing and a tenth for validation."""


def write_files(folder: Path, names: Sequence[str] = tuple(SIZES)) -> dict[str, Path]:
    """A file a client, of its own size and with labels of its own."""
    folder.mkdir(parents=True)
    x, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(3)
    found = {}
    for k, name in enumerate(names):
        liked = np.isin(y, [k, k + 1, k + 2, 7])
        rows = rng.choice(np.flatnonzero(liked), SIZES[name], replace=False)
        header = ",".join(f"p{i}" for i in range(0, 64, 4)) + ",label"
        lines = [",".join(map(str, [*x[row, ::4], int(y[row])])) for row in rows]
        found[name] = folder / f"{name}.csv"
        found[name].write_text("\n".join([header, *lines]) + "\n")
    return found


def error_bound(weights: Sequence[int], most: int, clip: float = 8.0, bits: int = 24) -> float:
    """The furthest a parameter of the mean can be from the exact one.

    Each client's number is off by half a step at most; a step is 2·clip/2**bits of its change times
    weight/most.
    """
    return len(weights) * clip / 2**bits * most / sum(weights)


class Summing(Here):
    """Sites can be lost at a stage of the protocol, and replies can be changed on the way."""

    def __init__(self, workers: Mapping[str, Worker]) -> None:
        super().__init__(workers)
        self.drops: set[tuple[str, str]] = set()
        """Pairs of a message's kind and the site that does not answer it."""
        self.meddle: Callable[[str, str, bytes], bytes] = lambda op, site, reply: reply
        self.change: Callable[[str, str, bytes], bytes] = lambda op, site, message: message

    def exchange(self, messages: Mapping[str, bytes]) -> dict[str, bytes | str]:
        kinds = {site: op_of(message) for site, message in messages.items()}
        there = {
            site: self.change(kinds[site], site, message)
            for site, message in messages.items()
            if (kinds[site], site) not in self.drops
        }
        replies = super().exchange(there)
        for site, message in there.items():  # a server that lies knows what it said
            if isinstance(reply := replies[site], bytes):
                told, said = digest_of(message).encode(), digest_of(messages[site]).encode()
                replies[site] = reply.replace(told, said)
        return {
            site: self.meddle(kinds[site], site, reply) if isinstance(reply, bytes) else reply
            for site, reply in (dict.fromkeys(messages, "it is away") | replies).items()
        }


def op_of(message: bytes) -> str:
    """What a message is: one in which a sum is made is told from one with scores only."""
    head: dict[str, Any] = head_of(message)
    return "vectors" if "sum" in head else str(head["op"])


def sites_of(folder: Path, held: Mapping[str, Sequence[Path]], rules: str = "") -> Summing:
    return Summing(
        {name: Worker(make_site(folder / name, name, its, rules)) for name, its in held.items()}
    )


def five_sites(folder: Path, rules: str = "") -> Summing:
    files = write_files(folder / "files")
    return sites_of(folder / "sites", {name: [file] for name, file in files.items()}, rules)
