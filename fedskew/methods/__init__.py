"""The named methods: each a few lines that return a recipe, with its card."""

from fedskew.methods import baselines, personal, similarity

__all__ = ["baselines", "personal", "similarity"]
