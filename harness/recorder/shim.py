"""The name of `kvproof.harness.recorder.import_hook` in versions up to 0.13; goes with 0.15."""

import sys

from kvproof.harness.recorder import import_hook

sys.modules[__name__] = import_hook
