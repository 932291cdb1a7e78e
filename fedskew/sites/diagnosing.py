"""A diagnosis whose clients are at real sites: the same sums, each made where its rows are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from fedskew.config import Config
from fedskew.diagnosis.basis import CELL, Basis, agreed, basis_of_no_row, kind_of
from fedskew.diagnosis.parcels import Arrays, Told, unpacked_opening, unpacked_summary
from fedskew.diagnosis.privacy import noise_for
from fedskew.diagnosis.report import Diagnosis, diagnosed
from fedskew.errors import ConfigError, RunError
from fedskew.federate.backends.wire import decode_groups, encode_head, head_of
from fedskew.runs.experiment import Tell
from fedskew.runs.identity import resolve
from fedskew.sites.describing import DIAGNOSIS, OPENINGS, SUMMARIES
from fedskew.sites.learned import from_plain
from fedskew.sites.meeting import Link, Meeting, meet, replies_of_all
from fedskew.sites.study import SITES, study_config

Made = TypeVar("Made")


def diagnose_on_sites(
    config: Config,
    link: Link,
    *,
    epsilon: float | None = None,
    cell: int = CELL,
    seed: int = 0,
    tell: Tell | None = None,
) -> tuple[Diagnosis, Basis]:
    """The diagnosis of the clients that would train, and the basis that it was made under.

    With ``epsilon`` sites are asked once: there is no opening, and noise is added at each site.
    """
    config = resolve(study_config(config))
    noise = noise_for(epsilon)
    section = config.federation
    if not noise.is_none and section.normalise not in ("unit", "signed"):
        raise ConfigError(
            f"federation.normalise = {section.normalise!r} scales samples by exact sums over rows, "
            "which --epsilon does not count: set federation.normalise=unit."
        )
    meeting = meet(config, link, tell, {"for": DIAGNOSIS, "epsilon": epsilon})
    if noise.is_none:
        openings = _asked(link, meeting, {"op": OPENINGS}, unpacked_opening)
        basis = agreed(openings, seed, cell)
    else:
        basis = _of_no_row(meeting, seed, cell)
    asked = {"op": SUMMARIES, "basis": basis.to_plain(), "epsilon": epsilon}
    summaries = _asked(link, meeting, asked, unpacked_summary)
    for each in summaries:
        if each.noise != noise:
            raise RunError(
                f"the summary of {each.client!r} has other noise than was asked for: install the "
                "same version of dp-accounting everywhere."
            )
    return diagnosed(summaries, basis), basis


def _of_no_row(meeting: Meeting, seed: int, cell: int) -> Basis:
    common = meeting.common
    kind = kind_of(SITES, from_plain(common["problem"]))
    shape = tuple(next(iter(meeting.told.values()))["sample_shape"])
    return basis_of_no_row(kind, tuple(common["class_names"]), shape, seed, cell)


def _asked(
    link: Link, meeting: Meeting, about: Told, make: Callable[[str, Told, Arrays], Made]
) -> list[Made]:
    """What sites tell of each of their clients that train."""
    clients: dict[str, list[str]] = {}
    for name in meeting.seen:
        clients.setdefault(meeting.site_of[name], []).append(name)
    messages = {
        site: encode_head({**about, "agreement": meeting.agreement(site), "clients": names})
        for site, names in clients.items()
    }
    found = []
    for site, reply in replies_of_all(link, messages).items():
        found += _told(site, clients[site], reply, make)
    return found


def _told(
    site: str, clients: list[str], reply: bytes, make: Callable[[str, Told, Arrays], Made]
) -> list[Made]:
    try:
        told: Mapping[str, Any] = head_of(reply)["parcels"]
        groups = decode_groups(reply)
        arrays = {client: {n: t.numpy() for n, t in groups[client].items()} for client in clients}
        parcels = {client: told[client] for client in clients}
        names = [str(parcel["client"]) for parcel in parcels.values()]
    except Exception as error:  # a broken or hostile reply can be wrong in any way at all
        raise RunError(f"{site}: its reply cannot be read ({type(error).__name__}).") from error
    if names != clients:
        raise RunError(f"{site}: it answered for other clients than it was asked for.")
    return [make(f"{site}: what it told", parcels[name], arrays[name]) for name in clients]
