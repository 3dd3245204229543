"""The cache manager: admission, allocation, hit length, eviction, fences.

In: requests, tokens, steps. Out: block tables, hit lengths, freed ids, refusals with a reason.
Imports `core`, `prefix` and `states`.
"""
