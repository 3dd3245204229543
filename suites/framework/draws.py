"""Strategies that are drawn from all the time, each made once."""

from __future__ import annotations

from functools import cache

from hypothesis import strategies as st

integers = cache(st.integers)
"""The same strategy at each call: Hypothesis' own cache costs more than its draw."""

sampled_from = cache(st.sampled_from)
"""The same for a tuple, which must not equal one with other types: `(0, 1) == (False, True)`."""
