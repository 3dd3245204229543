"""The name of `kvproof.harness.contract.operations` in versions up to 0.13; goes with 0.15."""

import sys

from kvproof.harness.contract import operations

sys.modules[__name__] = operations
