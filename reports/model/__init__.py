"""A report as data, built from run records.

In: events. Out: sections, tables, verdicts.
Imports `values` and the records.
"""
