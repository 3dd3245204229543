"""Bugs that engines had, each with the properties that catch it or the reason why none can.

In: tables of engines' bugs. Out: Markdown and checks. Imports the suites' properties.
"""

from kvproof.suites.known_bugs.load import AWAITED, Bug, Engine, load
from kvproof.suites.known_bugs.markdown import table

__all__ = ["AWAITED", "Bug", "Engine", "load", "table"]
