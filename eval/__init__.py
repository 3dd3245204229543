"""LongBench v2 for caches, against any OpenAI-compatible server (E1 to E3).

In: settings, a model or a server. Out: records of answers, paired comparisons.
Imports the harness (errors, records, environments) and the reports' values; never suites or the
command line.
"""
