"""Component suite `hits`: the length of a hit over mixed groups, against brute force (X1 to X3).

In: contents of groups. Out: verdicts. Imports `framework` and `reference.cache`.
"""
