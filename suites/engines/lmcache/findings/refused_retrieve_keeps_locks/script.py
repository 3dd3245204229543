# ruff: noqa: T201 - a plain script: it prints its results
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""LMCache 0.5.6: a retrieve that is refused keeps the locks of its look-up.

Needs lmcache and torch, no GPU: python script.py
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))
from lmcache_plain import Group, Server, key, pages

with Server() as server:
    server.register([pages()], Group(0, (0,), 16))
    server.transfer.store(key("a", 64), 1, [[1, 2, 3, 4]], server.event)
    server.settled()
    assert server.found("b", 64) == 64
    too_few = [[5, 6, 7]]  # of four
    _, well = server.transfer.retrieve(key("b", 64), 1, too_few, server.event)
    server.lookup.end_session("b")
    now = server.settled()
    print("retrieved:", well, "- after the end of the request:", now)
    assert now == {"reserved": 0, "locked": 1}
