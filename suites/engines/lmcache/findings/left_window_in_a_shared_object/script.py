# ruff: noqa: T201 - a plain script: it prints its results
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""LMCache 0.5.6: by default a window that has left a chunk is stored with it, and served.

Needs lmcache and torch, no GPU: python script.py
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))
from lmcache_plain import Group, Server, key, pages

with Server(separate_object_groups=False) as server:
    full, window = pages(), pages()
    server.register([full, window], Group(0, (0,), 16), Group(1, (1,), 16, sw_size_tokens=64))
    for layer in (full, window):
        layer[:, 0] = -7  # arbitrary content of the null block
        layer[:, 1:] = 1

    # An engine has computed 128 tokens. Its window of 64 sees nothing of the first chunk any more:
    # its table begins with four null blocks.
    ids = [[1, 2, 3, 4, 5, 6, 7, 8], [0, 0, 0, 0, 5, 6, 7, 8]]
    _, well, kept = server.transfer.store_with_chunk_mask(key("a", 128), 1, ids, server.event)
    server.settled()
    print("stored:", kept)

    # Another request shares the first 64 tokens only. Token 64 looks back at 1..63.
    assert server.found("b", 64) == 64
    full[:, 9:] = window[:, 9:] = 0
    server.transfer.retrieve(key("b", 64), 1, [[9, 10, 11, 12]] * 2, server.event)
    server.settled()
    print("full attention reads", full[0, 9:13].unique().tolist(), "the window", end=" ")
    print(window[0, 9:13].unique().tolist())
    assert window[0, 9:13].unique().tolist() == [-7.0]
