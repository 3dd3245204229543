"""Charts: one module for each kind.

In: values of a report. Out: SVG.
Imports `values` and `model`.
"""
