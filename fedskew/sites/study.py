"""What a study on sites may say, and what all sites together told: who is there, and alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

import fedskew
from fedskew.config import Config, Named
from fedskew.data.federation import Client, Federation
from fedskew.engine.arithmetic import differences
from fedskew.errors import ConfigError, RunError
from fedskew.federate.roster import Member, Roster
from fedskew.runs.experiment import Tell
from fedskew.sites.held import encoder_in
from fedskew.sites.learned import from_plain
from fedskew.sites.secure.recipes import check_secure
from fedskew.trust.names import check_names

SITES = "sites"
"""What ``federation.dataset`` says of data that are at sites."""
AT_HOME = ("partition", "clients", "skew", "samples", "test_samples", "public", "classes",
           "features", "held_out_environment", "options", "label")  # fmt: skip
"""Settings that divide or change data, which nobody does to those of real sites."""


def study_config(config: Config) -> Config:
    """The settings of a study on real sites: what divides data among clients is refused."""
    section = config.federation
    if section.dataset != SITES and "dataset" in section.model_fields_set:
        raise ConfigError(
            f"federation.dataset = {section.dataset!r} are data of this machine, but those of a "
            "study are at its sites: leave it out."
        )
    given = [name for name in AT_HOME if name in section.model_fields_set]
    if given:
        raise ConfigError(
            f"federation.{given[0]} divides or changes data, but sites bring theirs as they are: "
            "leave it out."
        )
    if config.evaluate.keep is not None:
        raise ConfigError(
            "evaluate.keep compares models sample by sample in one place, but answers of sites "
            "stay there: leave it out."
        )
    changes = {"dataset": SITES, "partition": Named(name="owner"), "clients": None}
    updates: dict[str, Any] = {"federation": section.model_copy(update=changes)}
    if config.secure is not None:
        check_secure(config)
    if config.executor == "auto":
        # In a stack the last bits of a client depend on who else is in it: who shares a site.
        updates["executor"] = "threads"
    return config.model_copy(update=updates)


def check_alike(told: Mapping[str, Mapping[str, Any]], tell: Tell | None) -> None:
    """Refuse sites with other versions or samples of another shape."""
    for site, each in told.items():
        if each["fedskew"] != fedskew.__version__:
            raise RunError(
                f"site {site} has fedskew {each['fedskew']}, the server {fedskew.__version__}: "
                "install the same version everywhere."
            )
    first, *others = told
    for site in others:
        mine, theirs = told[first], told[site]
        tables = mine["columns"] and theirs["columns"]  # columns are compared by their names
        if not tables and theirs["sample_shape"] != mine["sample_shape"]:
            raise RunError(
                f"samples of site {site} have shape {theirs['sample_shape']}, those of {first} "
                f"{mine['sample_shape']}."
            )
        if theirs["vocabulary"] != mine["vocabulary"]:
            raise RunError(
                f"samples of site {site} have a vocabulary of {theirs['vocabulary']} token ids, "
                f"those of {first} of {mine['vocabulary']} (0: they are no token ids)."
            )
        other = differences(mine["arithmetic"], theirs["arithmetic"])
        if other and tell is not None:
            tell(f"site {site} computes otherwise than {first}: {other}; last bits will differ")


def sites_of_clients(told: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for site, each in told.items():
        for client in each["data"]:
            if client in found:
                raise RunError(
                    f"sites {found[client]} and {site} both have a client {client!r}: rename one."
                )
            found[client] = site
    check_names(SITES, found)
    return found


def roster_of_sites(
    agreement: Mapping[str, Any],
    told: Mapping[str, Mapping[str, Any]],
    agreed: Mapping[str, Mapping[str, Any]],
) -> Roster:
    """What all sites together told of their clients, in the order of names."""
    seen = set(agreement["seen"])
    members = []
    for each in agreed.values():
        for values in each["members"]:
            member = Member(
                values["name"], values["sizes"], tuple(values["classes"]),
                tuple(values["environments"]), values["name"] in seen,
            )  # fmt: skip
            members.append(member if member.seen else replace(member, environments=()))
    members.sort(key=lambda member: (not member.seen, member.name))
    most = max((len(member.environments) for member in members), default=0)
    members = [
        replace(m, environments=(*m.environments, *(0,) * (most - len(m.environments))))
        if m.seen
        else m
        for m in members
    ]
    if not all(member.classes for member in members):
        # Counts of some clients only would pass for those of all.
        members = [replace(member, classes=()) for member in members]
    encoder = encoder_in(agreement)
    shape = next(iter(told.values()))["sample_shape"]
    training = [each for each in agreed.values() if any(m["name"] in seen for m in each["members"])]
    return Roster(
        SITES,
        tuple(shape) if encoder is None else (len(encoder.outputs),),
        tuple(agreement["class_names"]),
        tuple(members),
        low=min(each["low"] for each in training),
        high=max(each["high"] for each in training),
        environments_by=next(iter(agreed.values()))["environments_by"],
        problem=from_plain(agreement["problem"]),
        vocabulary=next(iter(told.values()))["vocabulary"],
    )


def nobody(roster: Roster) -> Federation:
    """A federation without anybody's data, for what a server trains on itself."""
    return Federation(
        roster.name,
        torch.zeros(1, *roster.sample_shape),
        roster.problem.nothing(roster.class_names),
        roster.class_names,
        (Client("nobody", torch.zeros(1, dtype=torch.int64).numpy()),),
        problem=roster.problem,
    )
