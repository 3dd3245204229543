"""Suite `transfer`: grouped copies between pages and objects; needs torch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from math import gcd
from typing import TYPE_CHECKING

from hypothesis import strategies as st

from kvproof.suites.framework.component_suite import Arguments, ComponentSuite, Config, Draw
from kvproof.suites.framework.coverage import Coverage
from kvproof.suites.reference.transfer.draws import SEEDS, draw_delayed, draw_model, draw_random
from kvproof.suites.reference.transfer.properties import LAYOUTS, PROPERTIES, REFUSED
from kvproof.suites.reference.transfer.remote import offered

if TYPE_CHECKING:
    from kvproof.suites.reference.transfer.machine import TransferMachine

MOVES = ("store", "store", "retrieve", "retrieve", "write")
ASIDES = ("views", "item", "cut", "need", "read", "side", "refuse", "refuse", "foreign")
LATE = ("look", "happen", "happen", "settle")
OBJECTS = 5
MOST_CHUNKS = 4


def missing() -> str:
    """Return the missing packages of the suite."""
    return "" if find_spec("torch") else "needs torch: pip install 'kvproof[gpu]'"


def machine(config: Config, coverage: Coverage) -> TransferMachine:
    from kvproof.suites.reference.transfer.machine import TransferMachine

    return TransferMachine(config, coverage)


def draw_operation(machine: TransferMachine, draw: Draw) -> tuple[str, Arguments]:
    """Draw an operation."""
    verbs = MOVES + (LATE if machine.delayed else ASIDES)
    verb = draw(st.sampled_from(verbs))
    return verb, _ARGUMENTS[verb](machine, draw)


def _move(machine: TransferMachine, draw: Draw, *, unique: bool) -> Arguments:
    count = draw(st.integers(1, MOST_CHUNKS))
    ids = {
        str(table): _ids(draw, each * count, blocks, unique=unique)
        for table, (each, blocks) in machine.rooms.items()
    }
    first, step = draw(st.integers(0, OBJECTS - 1)), draw(st.integers(1, OBJECTS - 1))
    objects = [(first + step * at) % OBJECTS for at in range(count)]
    tokens = count * machine.config["chunk"]
    skip = draw(st.integers(0, tokens + 1)) if draw(st.integers(0, 2)) == 0 else 0
    return {"ids": ids, "objects": objects, "skip": skip}


def _ids(draw: Draw, count: int, blocks: int, *, unique: bool) -> list[int]:
    """Whole tables mostly; null from somewhere on, or here and there."""
    first, far = draw(st.integers(0, blocks - 2)), draw(st.booleans())
    step = next(n for n in range(blocks // 2, 0, -1) if gcd(n, blocks - 1) == 1) if far else 1
    found = [1 + (first + step * at) % (blocks - 1) for at in range(count)]
    if unique:
        found[blocks - 1 :] = [0] * len(found[blocks - 1 :])
    holes = draw(st.sampled_from((0, 0, 0, 1, 3)))
    for _ in range(holes):
        found[draw(st.integers(0, count - 1))] = 0
    return found


def _retrieve(machine: TransferMachine, draw: Draw) -> Arguments:
    found = _move(machine, draw, unique=True)
    chunk = machine.config["chunk"]
    length = draw(st.none() | st.integers(0, len(found["objects"]) * chunk))
    if length is not None and not machine.whole:
        length = length // chunk * chunk
    return {**found, "length": length}


def _refuse(machine: TransferMachine, draw: Draw) -> Arguments:
    found = _move(machine, draw, unique=True)
    kind, written = draw(st.sampled_from(sorted(REFUSED))), draw(st.booleans())
    return {"kind": kind, "ids": found["ids"], "objects": found["objects"], "written": written}


def _write(machine: TransferMachine, draw: Draw) -> Arguments:
    return {"seed": draw(SEEDS), "table": draw(st.none() | st.sampled_from(sorted(machine.rooms)))}


def _views(_: TransferMachine, draw: Draw) -> Arguments:
    return {
        "slot": draw(st.integers(0, 4)),
        "group": draw(st.integers(0, 2)),
        "count": draw(st.integers(1, 6)),
    }


def _cut(_: TransferMachine, draw: Draw) -> Arguments:
    return {
        "start": draw(st.integers(0, 200)),
        "size": draw(st.integers(0, 200)),
        "origin": draw(st.integers(0, 100)),
        "segment": draw(st.sampled_from((0, 1, 7, 16, 64))),
    }


def _need(machine: TransferMachine, draw: Draw) -> Arguments:
    chunks = draw(st.integers(1, 4))
    return {"length": draw(st.integers(0, chunks * machine.config["chunk"])), "chunks": chunks}


def _read(_: TransferMachine, draw: Draw) -> Arguments:
    sizes = {name: draw(st.integers(1, 4)) for name in ("pages", "page", "heads")}
    sizes["bytes"] = draw(st.integers(1, 8))
    given = draw(st.sets(st.sampled_from(("pages", "page", "heads")), max_size=2))
    layout, turned = (draw(st.sampled_from(LAYOUTS[:-1])) for _ in range(2))
    if layout == "indexer":
        sizes["bytes"] += 4
    named = sizes if "heads" in _AXES_WITH_HEADS[layout] else {**sizes, "heads": 1}
    hint = {name: named[name] for name in sorted(given)}
    return {"layout": layout, "sizes": sizes, "hint": hint, "turned": turned}


def _foreign(_: TransferMachine, draw: Draw) -> Arguments:
    """Draw mostly formats with rows of equal length."""
    from kvproof.kernels.page_formats import FORMATS

    widths = {name: each.row_bytes for name, each in FORMATS.items()}
    one = draw(st.sampled_from(sorted(widths)))
    alike = [name for name in widths if widths[name] == widths[one]]
    other = draw(st.sampled_from(sorted({*alike, ""})) | st.sampled_from(sorted(widths)))
    names = draw(st.permutations((one, other)))
    return {"one": names[0], "other": names[1], "width": widths[one], "seed": draw(SEEDS)}


_AXES_WITH_HEADS = {name: ("heads",) if name.endswith(("nhd", "hnd")) else () for name in LAYOUTS}

_ARGUMENTS: dict[str, Callable[[TransferMachine, Draw], Arguments]] = {
    "store": partial(_move, unique=False),
    "retrieve": _retrieve,
    "write": _write,
    "refuse": _refuse,
    "views": _views,
    "item": lambda _, draw: {"group": draw(st.integers(0, 6)), "seed": draw(SEEDS)},
    "cut": _cut,
    "need": _need,
    "read": _read,
    "foreign": _foreign,
    "side": lambda _, draw: {name: draw(st.integers(2, 4)) for name in ("blocks", "other")},
    "look": lambda _, draw: {"cache": draw(st.integers(0, 6))},
    "happen": lambda _, draw: {"call": draw(st.integers(0, 6)), "seed": draw(SEEDS)},
    "settle": lambda *_: {},
}

PROFILES = (draw_random, draw_delayed, draw_model)

SUITE = ComponentSuite(
    "transfer",
    PROPERTIES,
    draw_random,
    machine,
    draw_operation,
    profiles=PROFILES,
    under_test=("reference", "kernels"),
    missing=missing,
    target_provided=offered,
)
