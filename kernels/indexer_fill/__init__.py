"""The fill of an indexer's cache, swept against a copy.

In: keys, slots. Out: FP8 values and scales in pages. Imports `indexer` and the kernels' common
modules.
"""

from kvproof.kernels.indexer.fill import fill

__all__ = ["fill"]
