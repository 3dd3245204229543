"""A cache behind a server, as its client sees it: situations, and an own reading of hits.

In: prompts, answers, times and counts of cached tokens. Out: names of situations for each request.
Imports `http`.
"""
