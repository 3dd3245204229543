"""The name of `kvproof.reference.model.symbolic` in versions up to 0.13; goes with 0.15."""

import sys

from kvproof.reference.model import symbolic

sys.modules[__name__] = symbolic
