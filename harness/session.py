"""The name of `kvproof.harness.oracle.session` in versions up to 0.13; goes with 0.15."""

import sys

from kvproof.harness.oracle import session

sys.modules[__name__] = session
