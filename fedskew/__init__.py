"""Federated learning for clients whose data differ.

>>> import fedskew
>>> sorted(fedskew.__all__)[:3]
['Adapt', 'Aggregator', 'Augmentation']
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedskew.api import compare, recommend, run
    from fedskew.config import Config, load_config, make_config
    from fedskew.data.bridges.federation import federation_from
    from fedskew.data.federation import Client, Federation
    from fedskew.deploy.adapt import adapt
    from fedskew.deploy.generate import generate
    from fedskew.deploy.predict import predict
    from fedskew.diagnosis.carry_out import diagnose
    from fedskew.diagnosis.keep import keep
    from fedskew.diagnosis.recommendation import Recommendation
    from fedskew.errors import ConfigError, DataError, FedskewError, RunError
    from fedskew.federate.recipe import Adapt, Phase, Recipe
    from fedskew.methods.registry import Card, ReducesTo, method
    from fedskew.parts.aggregate import Aggregator, Weighting
    from fedskew.parts.augment import Augmentation
    from fedskew.parts.begin import Begin, Begun
    from fedskew.parts.correct import Correction
    from fedskew.parts.finding import Finding
    from fedskew.parts.losses import Loss
    from fedskew.parts.objective import Erm, Objective
    from fedskew.parts.packing import Packing
    from fedskew.parts.report import Report, Reported
    from fedskew.parts.select import but, only
    from fedskew.parts.step import Step
    from fedskew.problem import Problem
    from fedskew.registry.knobs import Knob
    from fedskew.runs.experiment import Run, load_run, make_federation
    from fedskew.views.comparison import Comparison

__all__ = [
    "Adapt",
    "Aggregator",
    "Augmentation",
    "Begin",
    "Begun",
    "Card",
    "Client",
    "Comparison",
    "Config",
    "ConfigError",
    "Correction",
    "DataError",
    "Erm",
    "Federation",
    "FedskewError",
    "Finding",
    "Knob",
    "Loss",
    "Objective",
    "Packing",
    "Phase",
    "Problem",
    "Recipe",
    "Recommendation",
    "ReducesTo",
    "Report",
    "Reported",
    "Run",
    "RunError",
    "Step",
    "Weighting",
    "adapt",
    "but",
    "compare",
    "diagnose",
    "federation_from",
    "generate",
    "keep",
    "load_config",
    "load_run",
    "make_config",
    "make_federation",
    "method",
    "only",
    "predict",
    "recommend",
    "run",
]

__version__ = version("fedskew")

_HOME = {
    "Adapt": "fedskew.federate.recipe",
    "Aggregator": "fedskew.parts.aggregate",
    "Augmentation": "fedskew.parts.augment",
    "Begin": "fedskew.parts.begin",
    "Begun": "fedskew.parts.begin",
    "Card": "fedskew.methods.registry",
    "Client": "fedskew.data.federation",
    "Comparison": "fedskew.views.comparison",
    "Config": "fedskew.config",
    "ConfigError": "fedskew.errors",
    "Correction": "fedskew.parts.correct",
    "DataError": "fedskew.errors",
    "Erm": "fedskew.parts.objective",
    "Federation": "fedskew.data.federation",
    "FedskewError": "fedskew.errors",
    "Finding": "fedskew.parts.finding",
    "Knob": "fedskew.registry.knobs",
    "Loss": "fedskew.parts.losses",
    "Objective": "fedskew.parts.objective",
    "Packing": "fedskew.parts.packing",
    "Phase": "fedskew.federate.recipe",
    "Problem": "fedskew.problem",
    "Recipe": "fedskew.federate.recipe",
    "Recommendation": "fedskew.diagnosis.recommendation",
    "ReducesTo": "fedskew.methods.registry",
    "Report": "fedskew.parts.report",
    "Reported": "fedskew.parts.report",
    "Run": "fedskew.runs.experiment",
    "RunError": "fedskew.errors",
    "Step": "fedskew.parts.step",
    "Weighting": "fedskew.parts.aggregate",
    "adapt": "fedskew.deploy.adapt",
    "but": "fedskew.parts.select",
    "compare": "fedskew.api",
    "diagnose": "fedskew.diagnosis.carry_out",
    "federation_from": "fedskew.data.bridges.federation",
    "generate": "fedskew.deploy.generate",
    "keep": "fedskew.diagnosis.keep",
    "load_config": "fedskew.config",
    "load_run": "fedskew.runs.experiment",
    "make_config": "fedskew.config",
    "make_federation": "fedskew.runs.experiment",
    "method": "fedskew.methods.registry",
    "only": "fedskew.parts.select",
    "predict": "fedskew.deploy.predict",
    "recommend": "fedskew.api",
    "run": "fedskew.api",
}


def __getattr__(name: str) -> Any:
    """Import on first use: ``fedskew --help`` must not wait for torch."""
    if name not in _HOME:
        raise AttributeError(f"module 'fedskew' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
