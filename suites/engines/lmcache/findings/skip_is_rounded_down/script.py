# ruff: noqa: T201 - a plain script: it prints its results
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""LMCache 0.5.6: a skip that ends inside a block is rounded down.

Needs lmcache and torch, no GPU: python script.py
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))
from lmcache_plain import Group, Server, key, pages

with Server() as server:
    layer = pages()
    server.register([layer], Group(0, (0,), 16))
    layer[:, 1:5] = 1
    server.transfer.store(key("a", 64), 1, [[1, 2, 3, 4]], server.event)
    server.settled()
    layer[:, 5:9] = 7
    assert server.found("b", 64) == 64
    server.transfer.retrieve(key("b", 64), 1, [[5, 6, 7, 8]], server.event, skip_first_n_tokens=24)
    server.settled()
    written = (layer[0, 5:9].reshape(64, -1) == 1).all(1)
    first = int(written.nonzero()[0])
    print("asked to skip 24 tokens, the first written is", first)
    assert first == 16
