"""Work units over many processes, of this machine or of a Ray cluster.

In: units of work. Out: outcomes, in the order in which they end.
Imports `isolation`, `records` and `sweep`.
"""
