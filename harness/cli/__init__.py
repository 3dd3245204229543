"""The command line: thin modules on top of everything, imported by nobody."""

from kvproof.harness.cli.app import main

__all__ = ["main"]
