"""A run whose clients are at real sites: the same loop, folder and results as anywhere else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedskew.comparisons.runner import Observer, run_name
from fedskew.config import Config
from fedskew.errors import ConfigError
from fedskew.runs.experiment import Run, Tell, Watch, carry_out
from fedskew.runs.identity import identify, resolve
from fedskew.sites.backend import SitesBackend
from fedskew.sites.flower.link import FlowerLink, registered
from fedskew.sites.lab import Lab
from fedskew.sites.meeting import Link
from fedskew.sites.study import study_config
from fedskew.views.figures import draw_apart


def run_on_sites(
    config: Config,
    link: Link,
    out: Path,
    watch: Watch | None = None,
    tell: Tell | None = None,
    draw: bool = False,
) -> Run:
    """Run a study on the sites that a link reaches, or finish it."""
    config = resolve(study_config(config))
    backend = SitesBackend(config, link, tell)
    identity = identify(config, lambda: backend.roster, backend.data)
    done = carry_out(identity, lambda folder: backend, out, watch, tell=tell)
    if draw:
        draw_apart(done, backend.roster)
    return done


@contextmanager
def connected(
    lab: Lab,
    config: Config,
    wait: float = 120.0,
    deadline: float = 3600.0,
    least: int | None = None,
) -> Iterator[FlowerLink]:
    """A link to all sites that a server lets in: see :class:`FlowerLink` for the numbers."""
    keys = lab.sites()
    if not keys:
        raise ConfigError(
            f"server {lab.settings.name!r} lets no site in yet: fedskew server add LINE."
        )
    if least is not None and least > len(keys):
        raise ConfigError(f"--min-sites is {least}, but {len(keys)} sites are let in.")
    study_config(config)  # what it refuses should not be told after waiting for sites
    registered(lab.link_address, lab.authority, keys)
    with FlowerLink(lab.link_address, lab.authority, keys, wait, deadline, least) as link:
        yield link


def run_on_lab(
    lab: Lab,
    config: Config,
    out: Path,
    watch: Observer,
    tell: Tell | None = None,
    wait: float = 120.0,
    deadline: float = 3600.0,
    least: int | None = None,
) -> Run:
    """The same on all sites that a server lets in."""
    with connected(lab, config, wait, deadline, least) as link:
        watch.begin(config, 1, 1, run_name(config))
        done = run_on_sites(config, link, out, watch, tell, draw=True)
        watch.end(done, False)
    return done
