"""Bridges: federations of what programs already hold, arrays, tables, torch and other datasets."""
