"""A router's index: the blocks of several workers, as their cache events tell them (D5, W8).

In: messages of workers, in any order. Out: the blocks of a prompt that each worker holds, by tier,
and the messages that are missing. Imports nothing of the reference.
"""
