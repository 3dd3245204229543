"""The name of `kvproof.reference.cache.cache_manager` in versions up to 0.13; goes with 0.15."""

import sys

from kvproof.reference.cache import cache_manager

sys.modules[__name__] = cache_manager
