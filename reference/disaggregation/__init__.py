"""From prefill to decode: which worker sends which slots to which other one (D1, D3, Q4).

In: the sizes of both sides, and the tables of a prompt. Out: pieces to copy, and the readers that a
worker waits for before it lets go. Imports nothing of the reference.
"""
