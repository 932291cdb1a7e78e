"""The named methods: each a few lines that return a recipe, with its card."""

from fedskew.methods import (  # noqa: F401  (they register)
    agreement,
    baselines,
    civae,
    compressed,
    discrepancy,
    feddisk,
    generative,
    invariance,
    personal,
    private,
    reptile,
    similarity,
)
from fedskew.methods.registry import METHODS, Card, Method, ReducesTo, find, method

__all__ = ["METHODS", "Card", "Method", "ReducesTo", "find", "method"]
