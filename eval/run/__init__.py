"""One evaluation: configurations, servers, passes, records.

In: settings and a model folder. Out: one record for each answer.
Imports `benchmark` and `http`.
"""
