"""Suites: what a file under papers/ means, its verdicts, and the page it ends in."""
