"""Runs on federations that a program made and handed over: what their config says of the data."""

from __future__ import annotations

from fedskew.config import Config, FederationSection, Named
from fedskew.data.federation import Federation
from fedskew.errors import ConfigError

GIVEN = "given-in-python"
"""What ``federation.dataset`` says of data that no name or path leads to."""


def on_given(config: Config, federation: Federation) -> Config:
    """The config of a run on this federation.

    Where the config says how the federation was made, the caller has made it so beforehand, and it
    stands; a federation of :func:`fedskew.federation_from` has all settings of its own.
    """
    section = config.federation
    if "federation" in config.model_fields_set and section.dataset != GIVEN:
        if federation.prepared is None:
            return config
        for name in section.model_fields_set:
            raise ConfigError(
                f"federation.{name} says how to make a federation, but {federation.name!r} is made "
                "already: hand the setting to federation_from, or leave it out."
            )
    prepared = federation.prepared
    made = FederationSection(
        dataset=GIVEN,
        options={"name": federation.name},
        partition=Named(name="owner"),
        clients=None,
    )
    if prepared is not None:
        made = made.model_copy(update={"normalise": prepared.normalise, "image": prepared.image})
    return config.model_copy(update={"federation": made})


def refuse_given(section: FederationSection) -> None:
    """Say that the data of a run cannot be made again by its config."""
    if section.dataset == GIVEN:
        raise ConfigError(
            f"the data of this run, {section.options.get('name', GIVEN)!r}, were made by a program "
            "and are in no file: hand them over again, fedskew.run(..., federation=...)."
        )
