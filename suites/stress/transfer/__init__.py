"""Rates of block transfers.

In: sizes. Out: bytes per second.
Imports the transfer and its suite.
"""
