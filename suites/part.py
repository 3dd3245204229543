"""The name of `kvproof.suites.framework.model_test` in versions up to 0.13; goes with 0.15."""

import sys

from kvproof.suites.framework import model_test

sys.modules[__name__] = model_test
