"""The name of `kvproof.reference.engine.engine_config` in versions up to 0.13; goes with 0.15."""

import sys

from kvproof.reference.engine import engine_config

sys.modules[__name__] = engine_config
