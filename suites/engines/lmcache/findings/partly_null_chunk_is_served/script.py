# ruff: noqa: T201 - a plain script: it prints its results
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""LMCache 0.5.6: a chunk of which a window has left a part is served as if it were whole.

Needs lmcache and torch, no GPU: python script.py
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))
from lmcache_plain import Group, Server, key, pages

with Server() as server:
    layer = pages()
    server.register([layer], Group(0, (0,), 16, sw_size_tokens=128))
    layer[:, 0] = -7  # arbitrary content of the null block
    layer[:, 1:] = 1

    # An engine has computed 144 tokens. The window of 128 no longer looks at the first 16, so
    # block 0 of its table is the null block; two chunks are complete and are stored.
    ids = [[0, 1, 2, 3, 4, 5, 6, 7]]
    _, well, kept = server.transfer.store_with_chunk_mask(key("a", 128), 1, ids, server.event)
    server.settled()
    print("stored:", kept)

    # Another request with the same first 128 tokens. Token 128 looks back at 1..127.
    assert server.found("b", 128) == 128
    layer[:, 8:] = 0
    server.transfer.retrieve(key("b", 128), 1, [[8, 9, 10, 11, 12, 13, 14, 15]], server.event)
    server.settled()
    tokens = layer[0, 8:16].reshape(128, -1)
    wrong = [at for at in range(1, 128) if (tokens[at] != 1).any()]
    print(f"hit of 128 tokens: {wrong[0]} to {wrong[-1]} are the null block's:", end=" ")
    print(tokens[1, 0].item())
    assert wrong == list(range(1, 16))
