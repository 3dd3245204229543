"""Draws for transfers of a target: caches, and moves between them and objects.

Known hard features (`LIMITS`) are drawn only by name, so that each can be an expected failure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import lcm
from typing import Protocol

from hypothesis import strategies as st

from kvproof.suites.framework.component_suite import Arguments, Config, Draw
from kvproof.suites.reference.transfer.oracle import Cache

INTERLEAVED = "layers of one object group with those of another between them"
SMALL_WINDOWS = "a window below a chunk"
ODD_SKIPS = "a skip inside of a block"
PACKED = "pages of an indexer"
LIMITS = (INTERLEAVED, SMALL_WINDOWS, ODD_SKIPS, PACKED)

OBJECTS = 6
BLOCKS = st.integers(25, 40)
"""At least those of the chunks of the smallest blocks; block 0 is null, and no history has it."""
SEEDS = st.integers(0, 2**16)


class Drawn(Protocol):
    """The drawn configuration of a machine."""

    chunk: int
    caches: Sequence[Cache]
    odd_skips: bool


def draw_config(draw: Draw, *, allowed: Iterable[str]) -> Config:
    """Draw one to three tables; `allowed` are among the limits above."""
    order = draw(st.sampled_from(("nhd", "hnd")))
    chunk, blocks = draw(st.sampled_from((16, 32))), draw(BLOCKS)
    sizes = draw(_sizes(chunk, allowed))
    caches: list[Config] = []
    for table, size in enumerate(sizes):
        most = min(chunk, size or chunk)
        caches += _table(draw, order, most, packed=PACKED in allowed and not size)
        for number, cache in enumerate(caches):
            if "table" not in cache:
                kind = "window" if size else "full"
                cache |= {"name": f"l{number}", "layer": f"l{number}", "table": table}
                cache |= {"kind": kind, "size": size, "blocks": blocks}
    drawn = {"order": order, "chunk": chunk, "caches": caches, "seed": draw(SEEDS)}
    return {**drawn, "odd_skips": ODD_SKIPS in allowed}


def _sizes(chunk: int, allowed: Iterable[str]) -> st.SearchStrategy[list[int]]:
    if INTERLEAVED in allowed:
        return st.sampled_from(([0, chunk, 0], [chunk, 0, chunk]))
    windows = (0, 0, chunk, 2 * chunk) + ((4, 8) if SMALL_WINDOWS in allowed else ())
    return st.lists(st.sampled_from(windows), min_size=1, max_size=3).map(sorted)


def _table(draw: Draw, order: str, most: int, *, packed: bool) -> list[Config]:
    layouts = ("latent", order, f"kv-{order}", f"page-kv-{order}")
    layout = draw(st.sampled_from(("indexer", *layouts[:1]) if packed else layouts))
    page = draw(st.sampled_from([page for page in (4, 8, 16) if page <= most]))
    shared = {"layout": layout, "page": page, "ratio": 1, "pad": 0}
    return [shared | _row(draw, layout, order) for _ in range(draw(st.integers(1, 3)))]


def _row(draw: Draw, layout: str, order: str) -> Config:
    if layout == "indexer":
        return {"item": 1, "heads": 1, "head": 132, "scales": 4}
    item = draw(st.sampled_from((1, 2, 4)))
    heads = 1 if layout == "latent" else draw(st.sampled_from((1, 2, 3, 8)))
    width = draw(st.sampled_from((2, 3, 8, 33, 66))) * (2 if layout == order else 1)
    return {"item": item, "heads": heads, "head": item * width, "scales": 0}


def draw_operation(machine: Drawn, draw: Draw) -> tuple[str, Arguments]:
    """Draw an operation."""
    verb = draw(st.sampled_from(("store", "store", "retrieve", "retrieve", "write")))
    if verb == "write":
        return verb, {"seed": draw(SEEDS)}
    count = draw(st.integers(1, OBJECTS if machine.chunk == 16 else OBJECTS // 2))
    order = draw(st.permutations(range(1, machine.caches[0].blocks)))
    chosen = draw(st.permutations(range(OBJECTS)))[:count]
    given: Arguments = {"blocks": list(order), "objects": list(chosen)}
    if verb == "retrieve":
        step = 1 if machine.odd_skips else lcm(*(cache.block for cache in machine.caches))
        given["skip"] = draw(st.integers(0, count * machine.chunk // step)) * step
    return verb, given
