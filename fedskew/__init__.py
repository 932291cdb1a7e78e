"""Federated learning for clients whose data differ.

>>> import fedskew
>>> sorted(fedskew.__all__)[:3]
['Client', 'Comparison', 'Config']
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedskew.comparison import Comparison, compare
    from fedskew.config import Config, load_config, make_config
    from fedskew.data.federation import Client, Federation
    from fedskew.deploy.adapt import adapt
    from fedskew.deploy.generate import generate
    from fedskew.deploy.predict import predict
    from fedskew.errors import ConfigError, DataError, FedskewError, RunError
    from fedskew.experiment import Run, load_run, make_federation, run

__all__ = [
    "Client",
    "Comparison",
    "Config",
    "ConfigError",
    "DataError",
    "Federation",
    "FedskewError",
    "Run",
    "RunError",
    "adapt",
    "compare",
    "generate",
    "load_config",
    "load_run",
    "make_config",
    "make_federation",
    "predict",
    "run",
]

__version__ = version("fedskew")

_HOME = {
    "Client": "fedskew.data.federation",
    "Comparison": "fedskew.comparison",
    "Config": "fedskew.config",
    "ConfigError": "fedskew.errors",
    "DataError": "fedskew.errors",
    "Federation": "fedskew.data.federation",
    "FedskewError": "fedskew.errors",
    "Run": "fedskew.experiment",
    "RunError": "fedskew.errors",
    "adapt": "fedskew.deploy.adapt",
    "compare": "fedskew.comparison",
    "generate": "fedskew.deploy.generate",
    "load_config": "fedskew.config",
    "load_run": "fedskew.experiment",
    "make_config": "fedskew.config",
    "make_federation": "fedskew.experiment",
    "predict": "fedskew.deploy.predict",
    "run": "fedskew.experiment",
}


def __getattr__(name: str) -> Any:
    """Import on first use: ``fedskew --help`` must not wait for torch."""
    if name not in _HOME:
        raise AttributeError(f"module 'fedskew' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
