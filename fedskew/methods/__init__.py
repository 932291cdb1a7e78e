"""The named methods: each a few lines that return a recipe, with its card."""

from fedskew.methods import baselines, discrepancy, generative, personal, similarity

__all__ = ["baselines", "discrepancy", "generative", "personal", "similarity"]
