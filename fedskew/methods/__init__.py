"""The named methods: each a few lines that return a recipe, with its card."""

from fedskew.methods import (
    baselines,
    civae,
    discrepancy,
    domains,
    feddisk,
    generative,
    personal,
    private,
    reptile,
    similarity,
)

__all__ = [
    "baselines",
    "civae",
    "discrepancy",
    "domains",
    "feddisk",
    "generative",
    "personal",
    "private",
    "reptile",
    "similarity",
]
