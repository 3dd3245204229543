"""Framework of all suites: properties, machines, exploring, shrinking, op logs, verdicts.

In: a suite and a budget. Out: verdicts with minimal histories. Imports the harness, but no suite.
"""
