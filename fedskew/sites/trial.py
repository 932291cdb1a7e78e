"""A server and its sites on one machine: the tutorial, and a test of everything at once."""

from __future__ import annotations

import json
import math
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from fedskew.config import Config, Named
from fedskew.data.federation import Federation
from fedskew.data.formats import read_npz
from fedskew.errors import ConfigError, RunError
from fedskew.runs.experiment import Run
from fedskew.sites.lab import Lab, known_to
from fedskew.sites.programs import Program, Supervisor, site_program
from fedskew.sites.proxy import find_nginx
from fedskew.sites.site import Site
from fedskew.store import make_folder, save_arrays

Say = Callable[[str], None]
FIELDS = ("x", "y", "owner", "owner_names", "class_names", "vocabulary", "signals")
LEFT_HERE = ("partition", "skew", "clients", "samples", "test_samples", "public", "classes",
             "features", "held_out_environment", "options", "dataset")  # fmt: skip
"""What was done to the data before sites got them, and is no setting of a study."""


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens at, on this machine only."""
    taken = [socket.socket() for _ in range(count)]
    try:
        for each in taken:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in taken]
    finally:
        for each in taken:
            each.close()


def divide(federation: Federation, folder: Path, sites: int) -> dict[str, Path]:
    """Write the data of a federation's clients for so many sites, an npz each."""
    clients = sorted([*federation.clients, *federation.unseen], key=lambda client: client.name)
    if len(clients) < sites:
        raise ConfigError(
            f"there are {len(clients)} clients for {sites} sites: choose fewer sites, or more "
            "clients (federation.clients)."
        )
    found = {}
    for number, part in enumerate(np.array_split(np.arange(len(clients)), sites)):
        mine = [clients[place] for place in part]
        rows = [np.concatenate([c.split(s) for s in ("train", "validation", "test")]) for c in mine]
        together = torch.from_numpy(np.concatenate(rows))
        path = make_folder(folder) / f"site-{number + 1}.npz"
        save_arrays(
            path,
            {
                "x": federation.x[together].numpy(),
                # Sites scale targets themselves, by everybody's sums.
                "y": federation.problem.in_units(federation.y[together]).numpy(),
                "owner": np.repeat(np.arange(len(mine)), [len(each) for each in rows]),
                "owner_names": np.array([client.name for client in mine]),
                "class_names": np.array(federation.class_names),
                "vocabulary": np.array(federation.vocabulary),
                "signals": np.array(len(federation.sample_shape) == 2),
            },
        )
        found[f"site-{number + 1}"] = path
    return found


def study_of(config: Config) -> Config:
    """The settings of a config that are left once its data are at sites, already scaled."""
    section = config.federation
    kept = {
        name: getattr(section, name)
        for name in section.model_fields_set
        if name not in LEFT_HERE and name != "normalise"
    }
    fresh = type(section)(**{**kept, "normalise": "unit"})
    return config.model_copy(update={"federation": fresh})


@contextmanager
def small_lab(
    folder: Path, data: Mapping[str, Path], say: Say
) -> Iterator[tuple[Lab, list[Program]]]:
    """A server and sites that run as processes of their own, and end with this block."""
    port, door = free_ports(2)
    proxy = "nginx" if find_nginx() else "none"
    address = f"127.0.0.1:{door if proxy == 'nginx' else port}"
    say(f"$ fedskew server init {folder / 'server'} --address {address}")
    lab = Lab.create(folder / "server", "trial", address, port=port, proxy=proxy)
    say(f"  certificate {lab.fingerprint}")
    if proxy == "none":
        say("  nginx is not installed: sites reach the SuperLink itself, on this machine only")
    sites = []
    for name, path in data.items():
        say(f"$ fedskew site init {folder / name} --data {path}")
        site = Site.create(folder / name, name, path)
        say(f"$ fedskew server add '{site.application}'")
        site.join(lab.add(site.application))
        say(f"$ fedskew site join 'fedskew-invitation:…' --site {folder / name}")
        sites.append(site)
    programs = lab.programs()
    say(f"$ fedskew server start {lab.folder}")
    with Supervisor(programs, say):
        lab.wait_until_up(programs)
        known_to(lab)
        for site in sites:
            say(f"$ fedskew site start {site.folder}")
        workers = [site_program(site.folder, site.folder / "log.txt") for site in sites]
        with Supervisor(workers, say):
            yield lab, [*programs, *workers]


def write_study(config: Config, path: Path) -> None:
    """Write the settings of a study that differ from the defaults, as TOML."""
    given = config.model_dump(mode="json", exclude_unset=True, exclude_none=True)
    plain = {name: value for name, value in given.items() if name not in _sections(given)}
    lines = [f"{name} = {_toml(value)}" for name, value in plain.items()]
    for name in _sections(given):
        lines += ["", f"[{name}]", *(f"{n} = {_toml(v)}" for n, v in given[name].items())]
    path.write_text("\n".join(lines) + "\n")


def _sections(given: Mapping[str, Any]) -> list[str]:
    return [
        name for name, value in given.items() if isinstance(value, dict) and "name" not in value
    ]


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {_toml(inner)}" for name, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)


def largest_difference(one: Run, other: Run) -> tuple[float, float]:
    """How far two runs of a study are apart at most: their global models, and their scores."""
    apart = 0.0
    for path in (one.path / "models").rglob("global.safetensors"):
        theirs = load_file(other.path / path.relative_to(one.path))
        for key, tensor in load_file(path).items():
            apart = max(apart, float((tensor.double() - theirs[key].double()).abs().max()))
    mine, found = _scores(one), _scores(other)
    if mine.keys() != found.keys():
        raise RunError("the two runs scored different models or clients.")
    between = [abs(value - found[key]) for key, value in mine.items() if math.isfinite(value)]
    return apart, max(between, default=0.0)


def _scores(run: Run) -> dict[tuple[object, ...], float]:
    return {
        (r.stage, r.round, r.model, r.on, r.client, r.adapted, r.split, r.metric): r.value
        for r in run.rows()
        if r.on != "central"
    }


def at_home(config: Config, data: Sequence[Path], path: Path) -> Config:
    """The same study with all sites' data in one file of this machine."""
    stored = [read_npz(each, FIELDS) for each in data]
    before = np.cumsum([0, *(len(each["owner_names"]) for each in stored)])
    owners = [each["owner"] + first for each, first in zip(stored, before, strict=False)]
    save_arrays(
        path,
        {
            "owner": np.concatenate(owners),
            **{n: np.concatenate([each[n] for each in stored]) for n in ("x", "y", "owner_names")},
            **{name: stored[0][name] for name in ("class_names", "vocabulary", "signals")},
        },
    )
    section = config.federation.model_copy(
        update={"dataset": str(path), "partition": Named(name="owner"), "clients": None}
    )
    return config.model_copy(update={"federation": section, "executor": "threads"})
