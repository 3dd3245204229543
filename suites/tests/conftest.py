"""Without a GPU, kernels run in Triton's interpreter: chosen before any test imports Triton."""

from __future__ import annotations

import os
from pathlib import Path

if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")
