"""torch and Triton, in the interpreter without a GPU; tests that import this skip without them."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="the extra gpu is not installed")
pytest.importorskip("triton", reason="the extra gpu is not installed")
