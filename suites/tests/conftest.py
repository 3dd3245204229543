"""Without a GPU, kernels run in Triton's interpreter: chosen before any test imports Triton.

Collecting the tests makes 700,000 objects that stay. The garbage collector is off meanwhile, and
does not look at them afterwards: each full collection would take 0.3 s.
"""

from __future__ import annotations

import gc
import os
from pathlib import Path

if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")

gc.disable()


def pytest_collection_finish() -> None:
    """Freeze what the tests have imported."""
    gc.freeze()
    gc.enable()
