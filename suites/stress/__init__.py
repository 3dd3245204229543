"""Stress programs: many processes against one server, killed at random.

In: a duration. Out: counts, and an exit code.
Imports the reference and `suites.reference`.
"""
