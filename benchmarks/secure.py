"""``python -m benchmarks.secure``: what secure aggregation costs a round, and the models.

Sites are workers in this process with real bytes between them and the server, so seconds are of
processors, without a network. ``--accuracy`` compares what is learned with sums of so many bits.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from safetensors.torch import load_file
from sklearn.datasets import load_digits

from fedskew.config import make_config
from fedskew.federate.backends.wire import head_of
from fedskew.runs.experiment import Run
from fedskew.sites.run import run_on_sites
from fedskew.sites.secure.sums import SecureSum
from fedskew.sites.site import Site
from fedskew.sites.worker import Worker

MODELS = {"8 kB": [27], "0.9 MB": [3000]}
ROUNDS = 5
KINDS = ("keys", "shares", "trains", "unmask")


class Timed:
    """Hands messages to workers, and notes processor seconds and bytes by kind of message."""

    def __init__(self, workers: Mapping[str, Worker]) -> None:
        self.workers = workers
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self.down: dict[str, list[int]] = defaultdict(list)
        self.up: dict[str, list[int]] = defaultdict(list)

    def sites(self) -> list[str]:
        return sorted(self.workers)

    def exchange(self, messages: Mapping[str, bytes]) -> dict[str, bytes | str]:
        replies: dict[str, bytes | str] = {}
        for site, message in messages.items():
            head = head_of(message)
            trains = any(ask.get("train") for ask in head.get("asks", ()))
            kind = "trains" if trains else str(head["op"])
            begun = process_time()
            replies[site] = reply = self.workers[site].handle(message)
            self.seconds[kind].append(process_time() - begun)
            self.down[kind].append(len(message))
            self.up[kind].append(len(reply))
        return replies


def write_sites(folder: Path, count: int) -> dict[str, Worker]:
    """The digits, dealt to so many sites that each likes some labels."""
    x, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    likes = rng.dirichlet([0.5] * count, size=10)
    owner = np.array([rng.choice(count, p=likes[label]) for label in y])
    for site in range(count):  # twenty at least
        owner[rng.choice(len(y), 20, replace=False)] = site
    workers = {}
    for site in range(count):
        place = folder / f"site-{site}"
        place.mkdir(parents=True)
        rows = [",".join(map(str, [*x[i], int(y[i])])) for i in np.flatnonzero(owner == site)]
        header = ",".join([*(f"p{i}" for i in range(64)), "label"])
        (place / "data.csv").write_text("\n".join([header, *rows]) + "\n")
        (place / "site.toml").write_text(f'name = "site-{site}"\n[data]\npath = "data.csv"\n')
        workers[f"site-{site}"] = Worker(Site.open(place))
    return workers


def study(
    folder: Path, count: int, hidden: list[int], secure: Any, rounds: int
) -> tuple[Run, Timed]:
    config = make_config(
        {
            "model": {"name": "mlp", "hidden": hidden},
            "train": {"rounds": rounds, "lr": 0.1, "batch_size": 32},
            "secure": secure,
        }
    )
    link = Timed(write_sites(folder / "sites", count))
    return run_on_sites(config, link, folder / "runs"), link


def cost(count: int, name: str) -> str:
    """One row: what a round takes beside training, at a site and at the server, and its bytes."""
    inside: list[float] = []
    answers = SecureSum.answers

    def timed(self: SecureSum, asks: Any) -> Any:
        begun = process_time()
        try:
            return answers(self, asks)
        finally:
            inside.append(process_time() - begun)

    with tempfile.TemporaryDirectory() as place, patch.object(SecureSum, "answers", timed):
        _, plain = study(Path(place, "plain"), count, MODELS[name], False, ROUNDS)
        _, hidden = study(Path(place, "secure"), count, MODELS[name], True, ROUNDS)
    own = {kind: median(hidden.seconds[kind][count:]) for kind in KINDS}
    site = sum(own.values()) - median(plain.seconds["trains"][count:])
    rounds = [
        total - sum(sum(hidden.seconds[kind][k * count : (k + 1) * count]) for kind in KINDS)
        for k, total in enumerate(inside)
    ]
    up = [_per_site(link.up, count) for link in (plain, hidden)]
    down = [_per_site(link.down, count) for link in (plain, hidden)]
    return (
        f"| {count} | {name} | {1000 * site:.0f} ms | {1000 * median(rounds[1:]):.0f} ms | "
        f"{up[0]:,.0f} | {up[1]:,.0f} | {down[0]:,.0f} | {down[1]:,.0f} |"
    )


def _per_site(sizes: Mapping[str, list[int]], count: int) -> float:
    """The bytes of a round at one site, the first round left out."""
    return sum(median(sizes[kind][count:]) for kind in KINDS if kind in sizes)


def learned(bits: int | None, plain: Run | None, folder: Path, rounds: int = 30) -> tuple[str, Run]:
    """One row: accuracy at ten sites, and how far the model is from that in the open."""
    secure = False if bits is None else {"bits": bits}
    done, _ = study(folder / str(bits), 10, MODELS["8 kB"], secure, rounds)
    found = [
        row.value
        for row in done.rows()
        if row.round == rounds and row.split == "test" and row.metric == "accuracy"
    ]
    apart = ""
    if plain is not None:
        one, other = (
            load_file(run.path / "models" / "last" / "global.safetensors") for run in (plain, done)
        )
        furthest = max(float(torch.abs(one[key] - other[key]).max()) for key in one)
        apart = f"{furthest:.1e}"
    return f"| {bits or 'open'} | {100 * np.mean(found):.2f} | {apart} |", done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--accuracy", action="store_true", help="what is learned, not what it costs"
    )
    if parser.parse_args().accuracy:
        print("| bits | accuracy, mean over sites (%) | furthest parameter |\n|---|---|---|")
        with tempfile.TemporaryDirectory() as place:
            row, plain = learned(None, None, Path(place))
            print(row)
            for bits in (24, 20, 16, 12, 8):
                print(learned(bits, plain, Path(place))[0], flush=True)
        return
    print("| sites | model | a site | the server | up, open | up | down, open | down |")
    print("|---|---|---|---|---|---|---|---|")
    for count in (3, 10):
        for name in MODELS:
            print(cost(count, name), flush=True)


if __name__ == "__main__":
    main()
