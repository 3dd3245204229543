"""The suite `store`: objects that several clients share are whole, true and accounted for (G8).

In: histories of several clients. Out: verdicts. Imports `framework` and `reference.cache_server`.
"""
