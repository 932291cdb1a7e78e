"""The command line: its commands, what they print while they work, and lists."""

from fedskew.cli.commands import main

__all__ = ["main"]
