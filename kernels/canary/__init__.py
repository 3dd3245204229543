"""A word of eight bytes for each slot of a cache, written and checked on the device.

In: the slot mapping and the block table that an engine hands to its own kernels. Out: counts of
slots that held other content. Imports numpy, torch and Triton.
"""
