"""Which sites are connected to a server, and what they tell of themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedskew.federate.backends.wire import encode_head, head_of
from fedskew.sites.flower.link import FlowerLink
from fedskew.sites.lab import Lab, known_to
from fedskew.sites.site import ALL

if TYPE_CHECKING:
    from rich.table import Table

QUICKLY = 30.0
"""Seconds that a site has to say how it is."""


def sites_table(lab: Lab) -> Table:
    """A line for each site that is let in."""
    from rich.table import Table

    known = known_to(lab)
    there = {name: lab.sites()[name] for name, node in known.items() if node.status == "online"}
    told = _asked(lab, there) if there else {}
    table = Table(title=f"sites of {lab.settings.name!r}", box=None)
    for column in ("site", "state", "last seen", "clients", "rows", "fedskew", "torch", "allows"):
        table.add_column(column, justify="right" if column in ("clients", "rows") else "left")
    for name, node in sorted(known.items()):
        says = told.get(name, {})
        rows = says.get("rows", {})
        state = "connected" if says else "does not answer" if name in there else "away"
        if says and not rows:
            state = "connected, its data cannot be read"
        table.add_row(
            name, state, node.seen[:19].replace("T", " ") or "never", str(len(rows) or ""),
            f"{sum(rows.values()):,}" if rows else "", says.get("fedskew", ""),
            says.get("torch", ""), _allows(says),
        )  # fmt: skip
    return table


def _allows(says: dict[str, Any]) -> str:
    if not says:
        return ""
    lacking = [each for each in ALL if each not in says["allow"]]
    return "all" if not lacking else f"all but {', '.join(lacking)}"


def _asked(lab: Lab, keys: dict[str, bytes]) -> dict[str, dict[str, Any]]:
    """What connected sites say of themselves, by name."""
    who = encode_head({"op": "who"})
    with FlowerLink(lab.link_address, lab.authority, keys, 0.0, QUICKLY, 0) as link:
        replies = link.exchange(dict.fromkeys(keys, who))
    heads = {name: head_of(reply) for name, reply in replies.items() if isinstance(reply, bytes)}
    return {name: head for name, head in heads.items() if "error" not in head}
