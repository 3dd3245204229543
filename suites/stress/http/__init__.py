"""Clients of `kvproof serve` that disconnect, cancel and send malformed requests.

In: an address. Out: requests by outcome, leaked blocks.
Imports the server's suite.
"""
