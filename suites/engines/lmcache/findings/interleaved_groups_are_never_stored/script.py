# ruff: noqa: T201 - a plain script: it prints its results
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""LMCache 0.5.6: on a CPU, groups of one object with another between them are never stored.

Needs lmcache and torch, no GPU: python script.py
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))
from lmcache_plain import Group, Server, key, pages

with Server() as server:
    server.register(
        [pages(), pages(), pages(heads=2)],
        Group(0, (0,), 16),
        Group(1, (1,), 16, sw_size_tokens=64),
        Group(0, (2,), 16),
    )
    _, well = server.transfer.store(key("a", 64), 1, [[1, 2, 3, 4]] * 3, server.event)
    print("stored:", well)
    assert not well
