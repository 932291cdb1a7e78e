"""What a site answers to a diagnosis: its clients' openings and summaries, and no more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from fedskew.config import config_of
from fedskew.data.federation import Federation
from fedskew.diagnosis.basis import Basis, opening
from fedskew.diagnosis.parcels import packed_opening, packed_summary
from fedskew.diagnosis.privacy import Noise, noise_for
from fedskew.diagnosis.summary import summarise
from fedskew.engine.arithmetic import one_order
from fedskew.errors import RunError
from fedskew.federate.backends.wire import encode_groups
from fedskew.sites.audit import check_allowed
from fedskew.sites.held import Held, read
from fedskew.sites.site import Site

Head = dict[str, Any]
DIAGNOSIS = "diagnosis"
OPENINGS, SUMMARIES = "openings", "summaries"
OPS = (OPENINGS, SUMMARIES)
NEEDED = {DIAGNOSIS: "sums over training rows, by client and class"}
WHY = ", which 'fedskew diagnose' needs"


def answer(site: Site, head: Mapping[str, Any]) -> bytes:
    """The openings or summaries of the clients that a message asks for."""
    check_allowed(site.name, site.settings.allow, NEEDED, WHY)
    noise = noise_for(head.get("epsilon"))
    federation = _agreed(site, head, noise)
    if head["op"] == OPENINGS:
        with one_order():
            parcels = [packed_opening(opening(federation, c.name)) for c in federation.clients]
    else:
        basis = Basis.from_plain(head["basis"])
        _check_cell(site, basis)
        # Noise is made here: whoever asks knows how large it is, and never what it was.
        made = summarise(federation, basis, noise, site.settings.row_key)
        parcels = [packed_summary(each) for each in made]
    told = {parcel["client"]: parcel for parcel, _ in parcels}
    groups = {
        parcel["client"]: {name: torch.from_numpy(array) for name, array in arrays.items()}
        for parcel, arrays in parcels
    }
    return encode_groups(groups, {"site": site.name, "parcels": told})


def _check_cell(site: Site, basis: Basis) -> None:
    least = site.settings.min_cell
    if basis.cell < least:
        raise RunError(
            f"site {site.name!r} sums up no fewer than {least} rows of a class, and was asked for "
            f"{basis.cell}: set --cell {least}, or its owner min_cell in its site.toml."
        )


def _agreed(site: Site, head: Mapping[str, Any], noise: Noise) -> Federation:
    """The clients that are asked for, with samples as all sites agreed."""
    agreement = head["agreement"]
    config = config_of(agreement["config"])
    held = read(site, config)
    if noise.is_none:
        held.check_unchanged(agreement["data"], site.name)
    elif held.normalise == "client":
        # One row would change what all others of its client become.
        raise RunError("epsilon does not count rows that are scaled by others of their client.")
    federation = held.agreed(agreement, config.train.batch_size)
    if absent := [name for name in head["clients"] if name not in federation.by_name]:
        raise RunError(f"there is no client {absent[0]!r:.60} here.")
    chosen = tuple(federation.by_name[name] for name in head["clients"])
    return federation.with_data(clients=chosen)


def about(head: Mapping[str, Any]) -> Head:
    """What the audit adds to a line: the epsilon of what leaves, if it is counted."""
    counted = head.get("op") == SUMMARIES and head.get("epsilon") is not None
    return {"epsilon": float(head["epsilon"])} if counted else {}


def of_no_row(site: str, held: Held) -> Head:
    """What a site says of its data where epsilon counts all that it tells of rows."""
    federation = held.federation
    if federation.problem.kind == "regression":
        raise RunError("targets that are numbers are cut where rows say: epsilon needs classes.")
    if held.standardise or held.columns(()):
        raise RunError(
            f"samples of site {site!r} are scaled or encoded by exact sums over rows, which "
            "epsilon does not count: set federation.normalise=unit, with numbers in all columns."
        )
    nothing: Head = {"moments": {}, "targets": {}, "columns": {}}
    return {"data": dict.fromkeys(federation.by_name, ""), **nothing}
