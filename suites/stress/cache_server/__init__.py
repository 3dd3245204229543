"""Clients of the cache server that are killed while they store.

In: counts of clients and operations. Out: lost or foreign bytes.
Imports the cache server and its suite.
"""
