"""Who is there, and what all sites agree on before anything is asked of their data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fedskew.config import Config
from fedskew.data.build import chosen_unseen
from fedskew.data.tables.telling import columns_told
from fedskew.errors import RunError
from fedskew.federate.backends.wire import encode_head, head_of
from fedskew.rng import keyed_rng
from fedskew.runs.experiment import Tell
from fedskew.sites.held import common_classes, common_scale, encoder_in
from fedskew.sites.learned import as_plain, problem_of_sites
from fedskew.sites.study import check_alike, sites_of_clients

Head = dict[str, Any]


class Link(Protocol):
    """Carries messages to sites and brings their replies; who does not answer is left out."""

    def sites(self) -> Sequence[str]: ...

    def exchange(self, messages: Mapping[str, bytes]) -> Mapping[str, bytes | str]:
        """By site its reply, or a sentence why there is none."""
        ...


@dataclass(frozen=True)
class Meeting:
    """What sites told of themselves, and what follows for all of them."""

    told: Mapping[str, Head]
    site_of: Mapping[str, str]
    """The site of each client."""
    seen: list[str]
    """The clients that take part in training."""
    common: Head
    """Classes, problem and scale, the same for all sites."""

    @property
    def data(self) -> dict[str, str]:
        """The fingerprint of each client's data."""
        return {client: sha for each in self.told.values() for client, sha in each["data"].items()}

    def agreement(self, site: str) -> Head:
        """What is agreed with a site; it is told of the others' data only that they are there."""
        return {**self.common, "data": self.told[site]["data"]}


def meet(
    config: Config, link: Link, tell: Tell | None = None, about: Head | None = None
) -> Meeting:
    """Ask all sites who is there. ``config`` is resolved; ``about`` says what else for."""
    hello = encode_head({"op": "hello", "config": config.resolved(), **(about or {})})
    told = heads_of_all(link, dict.fromkeys(link.sites(), hello))
    if not told:
        raise RunError("no site is connected.")
    check_alike(told, tell)
    site_of = sites_of_clients(told)
    names = sorted(site_of)
    unseen = chosen_unseen(names, config.federation.unseen, keyed_rng(config.split_seed, "unseen"))
    seen = [name for name in names if name not in unseen]
    moments = {c: m for each in told.values() for c, m in each["moments"].items()}
    columns = {c: m for each in told.values() for c, m in each["columns"].items()}
    targets = {c: m for each in told.values() for c, m in each["targets"].items() if c in seen}
    class_names = common_classes([each["class_names"] for each in told.values()])
    section = config.federation
    problem = problem_of_sites(section, told, class_names, targets)
    if tell is not None:
        tell(problem.said)
    scaled, given = section.normalise == "standard", list(section.columns or ())
    common = {
        "config": config.resolved(),
        "class_names": class_names,
        "problem": as_plain(problem),
        **common_scale(moments, columns, seen, scaled, given),
        "seen": seen,
    }
    encoder = encoder_in(common)
    if encoder is not None and tell is not None:
        tell(columns_told(encoder, section.normalise == "client"))
    return Meeting(told, site_of, seen, common)


def heads_of_all(link: Link, messages: Mapping[str, bytes]) -> dict[str, Head]:
    return {site: head_of(reply) for site, reply in replies_of_all(link, messages).items()}


def replies_of_all(link: Link, messages: Mapping[str, bytes]) -> dict[str, bytes]:
    """Everybody's replies; all refusals are told at once.

    A site that was lost meanwhile is waited for, and asked once more.
    """
    replies = dict(link.exchange(messages))
    lost = {site for site, reply in replies.items() if isinstance(reply, str)}
    if lost and (back := lost & set(link.sites())):
        replies |= link.exchange({site: messages[site] for site in back})
    found, wrong = {}, []
    for site, reply in replies.items():
        why = reply if isinstance(reply, str) else head_of(reply).get("error")
        if why:
            wrong.append(f"{site}: {why}")
        elif not isinstance(reply, str):
            found[site] = reply
    if wrong:
        raise RunError("; ".join(wrong).rstrip(".") + ".")
    return found
