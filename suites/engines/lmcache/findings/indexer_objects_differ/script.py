# ruff: noqa: T201 - a plain script: it prints its results
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""LMCache 0.5.6: objects of an indexer's pages differ between CPU and GPU.

Needs lmcache and torch, no GPU: python script.py
"""

import sys
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).resolve().parents[1]))
from lmcache_plain import Group, Server, key

with Server() as server:
    layer = torch.zeros((9, 16, 132), dtype=torch.uint8)
    server.register([layer], Group(0, (0,), 16))
    values = torch.arange(16, dtype=torch.uint8).repeat_interleave(128)
    scales = torch.arange(16, dtype=torch.uint8).repeat_interleave(4)
    layer[1:5] = torch.cat([values, scales]).reshape(16, 132)  # each byte is its token's number
    server.transfer.store(key("a", 64), 1, [[1, 2, 3, 4]], server.event)
    server.settled()
    (item,) = server.context.storage_manager._l1_manager._objects.values()
    row = sorted(set(item.memory_obj.get_tensor(0)[0, 0, 1].tolist()))
    print("the row of token 1 in the object has bytes of tokens", row)
    assert row == [1, 2]
