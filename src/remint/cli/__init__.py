"""The command line: one file per group of commands."""

from remint.cli.parser import main

__all__ = ["main"]
