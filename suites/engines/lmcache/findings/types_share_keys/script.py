# ruff: noqa: T201 - a plain script: it prints its results
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""LMCache 0.5.6: engines that keep one model's KV in unequal types read each other's bytes.

Needs lmcache and torch, no GPU: python script.py
"""

import sys
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).resolve().parents[1]))
from lmcache_plain import Group, Server, key, pages

with Server() as server:
    bfloat, half = pages(), pages(dtype=torch.float16)
    server.register([bfloat], Group(0, (0,), 16), engine=1)
    server.register([half], Group(0, (0,), 16), engine=2)

    bfloat[:, 1:5] = 1  # one engine runs the model with --dtype bfloat16
    server.transfer.store(key("a", 64), 1, [[1, 2, 3, 4]], server.event)
    server.settled()

    hit = server.found("b", 64)  # the other one with --dtype float16
    _, well = server.transfer.retrieve(key("b", 64), 2, [[1, 2, 3, 4]], server.event)
    server.settled()
    print(f"{hit} tokens are found, retrieved: {well}; 1.0 became {half[0, 1, 0, 0, 0].item()}")
    assert (hit, well, half[0, 1, 0, 0, 0].item()) == (64, True, 1.875)
