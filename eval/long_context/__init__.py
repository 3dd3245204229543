"""RULER and MRCR: rows that OpenCompass builds, graded, from the cache and recomputed.

In: tasks and lengths, or the public files. Out: requests and grades for `run`.
Imports `run` and `http`.
"""
