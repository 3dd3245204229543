"""The name of `kvproof.harness.contract.target` in versions up to 0.13; goes with 0.15."""

import sys

from kvproof.harness.contract import target

sys.modules[__name__] = target
