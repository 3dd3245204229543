"""Component suite `access`: may a request read and write the cache, and why not (A1, A2).

In: settings and request options. Out: verdicts. Imports `framework` and `reference.core`.
"""
