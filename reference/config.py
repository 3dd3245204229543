"""The name of `kvproof.reference.core.cache_config` in versions up to 0.13; goes with 0.15."""

import sys

from kvproof.reference.core import cache_config

sys.modules[__name__] = cache_config
