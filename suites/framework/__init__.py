"""The parts of a suite: properties, machines, exploring, shrinking, verdicts.

In: a suite and a budget. Out: verdicts with minimal histories.
Imports the harness; knows no suite.
"""
