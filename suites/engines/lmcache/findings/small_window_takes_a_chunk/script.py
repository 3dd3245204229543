# ruff: noqa: T201 - a plain script: it prints its results
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""LMCache 0.5.6: on a CPU, a window below a chunk takes the room of the chunk.

Needs lmcache and torch, no GPU: python script.py
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))
from lmcache_plain import Group, Server, key, pages

with Server() as server:
    server.register([pages()], Group(0, (0,), 16, sw_size_tokens=16))
    _, well = server.transfer.store(key("a", 64), 1, [[1, 2, 3, 4]], server.event)
    server.settled()
    used, wanted = server.context.storage_manager.get_l1_usage()[0], 2 * 16 * 32 * 2
    print("stored:", well, "-", used, "bytes for", wanted)
    assert used == 4 * wanted
