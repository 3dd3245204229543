"""Imported first by commands that compute with torch: without it they end with the reason."""

from __future__ import annotations

import sys
from importlib.util import find_spec

if find_spec("torch") is None:
    sys.stderr.write("left out: torch is not installed\n  make hf, or pip install 'kvproof[hf]'\n")
    sys.exit(2)
