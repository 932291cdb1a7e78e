"""What a user should know of the data before training, in sentences."""

from __future__ import annotations

from fedskew.config import FederationSection
from fedskew.data.datasets import DATASETS
from fedskew.data.federation import Federation
from fedskew.data.presets import PRESETS
from fedskew.data.tables.telling import columns_told, unscaled_told


def told_of(federation: Federation, section: FederationSection) -> list[str]:
    """What was made of a user's own data, and what is learned of them."""
    told = list(federation.remarks.said)
    if federation.encoder is not None:
        told.insert(0, columns_told(federation.encoder, bool(federation.scales)))
    if section.normalise == "unit" and (said := unscaled_told(federation.x)):
        told.append(said)
    if federation.problem.said and section.dataset not in {*DATASETS, *PRESETS}:
        told.append(federation.problem.said)
    return told
