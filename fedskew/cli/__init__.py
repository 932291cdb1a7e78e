"""The command line: its commands, what they print while they work, and lists."""

from fedskew.cli.app import main

__all__ = ["main"]
