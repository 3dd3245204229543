# ruff: noqa: T201 - a plain script: it prints its results
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""LMCache 0.5.6: a retrieve writes into the null block.

Needs lmcache and torch, no GPU: python script.py
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))
from lmcache_plain import Group, Server, key, pages

with Server() as server:
    layer = pages()
    server.register([layer], Group(0, (0,), 16, sw_size_tokens=96))
    layer[:, 1:] = 1
    server.transfer.store(key("a", 128), 1, [[1, 2, 3, 4, 5, 6, 7, 8]], server.event)
    server.settled()

    # A window of 96 looks back from token 128 at 33..127: it needs both chunks, and of the first
    # one not the first 32 tokens. The engine has null blocks in their place.
    assert server.found("b", 128) == 128
    layer[:, 9:] = 0
    null = layer[:, 0].clone()
    server.transfer.retrieve(key("b", 128), 1, [[0, 0, 9, 10, 11, 12, 13, 14]], server.event)
    server.settled()
    changed = int((layer[:, 0] != null).sum())
    print(f"{changed} of {null.numel()} numbers of the null block have changed")
    assert changed == null.numel()
