# ruff: noqa: T201 - a plain script: it prints its results
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""LMCache 0.5.6: the server never gives back the pages of a CPU engine that has unregistered.

Needs lmcache and torch, no GPU, and Linux, which lists mapped pages: python script.py
"""

import gc
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))
from lmcache_plain import Group, Server, pages


def mapped():
    """Segments of KV pages in this process, their MiB, and descriptors of shared memory."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    lines = [line for line in lines if "/lmcache_kv_" in line]
    ends = [[int(end, 16) for end in line.split()[0].split("-")] for line in lines]
    files = [each.readlink() for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
    size = sum(stop - start for start, stop in ends) / 2**20
    return len(lines), round(size), sum("/lmcache_kv_" in str(file) for file in files)


with Server() as server:
    for turn in range(1, 6):
        server.register([pages(heads=204)], Group(0, (0,), 16))  # 8 MiB
        server.transfer.unregister_kv_cache(1)
        gc.collect()  # the engine's own tensors are gone, and their segments unlinked
        print(f"engines that came and went: {turn}; segments, MiB, descriptors left: {mapped()}")
    assert mapped() == (5, 40, 5)
