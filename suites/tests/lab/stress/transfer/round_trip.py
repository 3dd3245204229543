"""Configurations that every transfer must support, and their round trip."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from kvproof.reference.transfer.grouped import LARGE_PAGE
from kvproof.suites.framework.component_suite import Config
from kvproof.suites.framework.coverage import Coverage
from kvproof.suites.reference.transfer.draws import WIDEST
from kvproof.suites.reference.transfer.machine import TransferMachine
from kvproof.suites.reference.transfer.oracle import NUMBERS
from kvproof.suites.reference.transfer.properties import PROPERTIES


def ids_of(machine: TransferMachine, chunks: int, first: int) -> dict[str, list[int]]:
    """Return blocks of each table for some chunks, from block `first` + 1 on."""
    return {
        str(table): [1 + (first + at) % (blocks - 1) for at in range(each * chunks)]
        for table, (each, blocks) in machine.rooms.items()
    }


def round_trip(config: Config) -> Coverage:
    """Copy two chunks out and back to other blocks, then with a skip, then for a hit.

    Raises Violation at the first byte that is wrong.
    """
    coverage = Coverage(PROPERTIES)
    machine = TransferMachine(config, coverage)
    machine.store(ids=ids_of(machine, 2, 0), objects=[3, 1], skip=0)
    machine.write(seed=7)
    skip = config["chunk"] * 5 // 4 + 1
    machine.retrieve(ids=ids_of(machine, 2, 2), objects=[3, 1], skip=skip)
    machine.write(seed=8)
    length = 2 * config["chunk"]
    machine.retrieve(ids=ids_of(machine, 2, 1), objects=[3, 1], skip=0, length=length)
    if machine.delayed:
        machine.settle()
    return coverage


def every_width(*, step: int = 100, turns: int = 1) -> Iterator[Config]:
    """Yield mixes of `step` widths so that every width up to `WIDEST` occurs in `turns` layouts."""
    names = list(NUMBERS)
    for first in range(1, WIDEST + 1, step):
        widths = range(first, min(first + step, WIDEST + 1))
        layouts = [names[(at + turn) % len(names)] for turn in range(turns) for at in widths]
        yield mix(layouts, list(chain.from_iterable([widths] * turns)))


def mix(layouts: Sequence[str], widths: Sequence[int]) -> Config:
    """Return one layer for each pair of a layout and a width, all of one table."""
    caches = []
    for number, (layout, width) in enumerate(zip(layouts, widths, strict=True)):
        state = layout == "state"
        name, packed = f"l{number}", layout == "indexer"
        caches.append(
            {"name": name, "layer": name, "layout": layout, "kind": "state" if state else "full",
             "size": 0, "table": int(state), "blocks": 9, "ratio": 1, "page": 1 if state else 2,
             "heads": 1 + number % 3, "head": width + 4 * packed, "item": 1, "pad": number % 4 * 3,
             "scales": 4 * packed}
        )  # fmt: skip
    return {"caches": caches, "chunk": 4, "reader": False, "slots": 0, "large": LARGE_PAGE,
            "delay": None, "seed": 3}  # fmt: skip
