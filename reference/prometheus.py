"""The name of `kvproof.reference.observe.prometheus` in versions up to 0.13; goes with 0.15."""

import sys

from kvproof.reference.observe import prometheus

sys.modules[__name__] = prometheus
