"""The name of `kvproof.harness.isolation.registry` in versions up to 0.13; goes with 0.15."""

import sys

from kvproof.harness.isolation import registry

sys.modules[__name__] = registry
