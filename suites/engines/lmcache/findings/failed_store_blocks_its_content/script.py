# ruff: noqa: T201 - a plain script: it prints its results
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""LMCache 0.5.6: after a failed store, no client can store the same content for ten minutes.

Needs lmcache and torch, no GPU: python script.py
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))
from lmcache_plain import Group, Server, key, pages

with Server() as server:
    server.register([pages()], Group(0, (0,), 16))
    absent = [[1, 2, 3, 99]]  # there is no block 99
    _, well = server.transfer.store(key("a", 64), 1, absent, server.event)
    now = server.settled()
    print("a store with a wrong block:", well, now)
    right = [[1, 2, 3, 4]]
    _, again, kept = server.transfer.store_with_chunk_mask(key("b", 64), 1, right, server.event)
    print("a store with right blocks:", again, kept)
    assert (well, again, kept, now["reserved"]) == (False, True, [False], 1)
