"""Calls with one wrong argument: they raise, and nothing at all is enqueued (G4).

Objects under a format of bytes that is not the reader's: other keys, and refused (H6, G2).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from kvproof.kernels.page_formats import FORMATS
from kvproof.reference.core.cache_config import CacheConfig
from kvproof.reference.core.identity import Namespace
from kvproof.reference.tiers import object_key
from kvproof.reference.transfer.chunk_layout import ChunkLayout, Geometry, LayoutError
from kvproof.reference.transfer.grouped import Transfer
from kvproof.reference.transfer.host_object import HostObject
from kvproof.reference.transfer.layer_groups import layer_groups
from kvproof.reference.transfer.layouts import Hint
from kvproof.suites.reference.transfer import properties as seen
from kvproof.suites.reference.transfer.state import TransferState


def refuse(
    machine: TransferState,
    *,
    kind: str,
    ids: dict[str, list[int]],
    objects: list[int],
    written: bool,
) -> object:
    if kind in _MEMORY:
        return _memory(machine, kind)
    subject = machine.subject
    call: dict[str, Any] = {
        "block_ids": [list(each) for each in machine.ids_of(ids)],
        "objects": [subject.objects[at] for at in objects],
        "skip_first_tokens": 0,
        "valid": None,
    }
    if not _SPOILT[kind](machine, call):
        return None
    before = subject.streams.enqueued if subject.streams else 0
    way = subject.transfer.retrieve if written or kind == "twice" else subject.transfer.store
    try:
        way(call.pop("block_ids"), call.pop("objects"), **call)
        answer = ""
    except ValueError as error:
        answer = str(error)
    after = subject.streams.enqueued if subject.streams else 0
    machine.coverage.event(seen.REFUSED[kind])
    machine.coverage.check(
        "wrong_arguments_move_nothing",
        answer and before == after and (machine.delayed or machine.unchanged()),
        lambda: f"a wrong {kind} is answered by {answer!r}, {after - before} works are enqueued",
    )
    return answer


def _id(machine: TransferState, call: dict[str, Any], wrong: int | None = None) -> bool:
    """Put an id after the last block, or another wrong one, at the end of the last group."""
    group = machine.subject.groups.groups[-1]
    ids = call["block_ids"][-1]
    if not ids or not machine.subject.layout.groups[-1].blocks:
        return False
    ids[-1] = group.blocks if wrong is None else wrong
    return True


def _count(_: TransferState, call: dict[str, Any]) -> bool:
    call["block_ids"][-1].append(0)
    return True


def _groups(_: TransferState, call: dict[str, Any]) -> bool:
    call["block_ids"].append([])
    return True


def _object(machine: TransferState, call: dict[str, Any]) -> bool:
    layout = machine.subject.layout
    geometries = [group.geometry for group in layout.groups]
    other = ChunkLayout.of(geometries, tokens=2 * layout.tokens)
    call["objects"][-1] = HostObject.allocate(other)
    return True


def _twice(machine: TransferState, call: dict[str, Any]) -> bool:
    """Name one block for the last places of two chunks."""
    ids, count = call["block_ids"][-1], len(call["objects"])
    if count < 2 or not ids or not machine.subject.layout.groups[-1].blocks:
        return False
    ids[-1] = ids[len(ids) // count - 1] = 1
    return True


def _skip(_: TransferState, call: dict[str, Any]) -> bool:
    call["skip_first_tokens"] = -1
    return True


def _ranges(machine: TransferState, call: dict[str, Any]) -> bool:
    count = len(call["objects"])
    call["valid"] = [[range(0)] * (count + 1) for _ in machine.subject.groups.groups]
    return True


FOREIGN_PAGE = 4
FOREIGN_HEADS = 2
"""Tokens of a page, and of a chunk, of the objects of another format; KV heads of those that have
them."""


def foreign(machine: TransferState, *, one: str, other: str, width: int, seed: int) -> object:
    """Store a page of one format and retrieve it as another; formats are keys, "" is none.

    `width`: bytes of a row without a format.
    """
    widths = [FORMATS[name].row_bytes if name else width for name in (one, other)]
    headed = [_per_head(name or one or other) for name in (one, other)]
    writer, reader = map(_transfer, (one, other), widths, headed)
    pages = [transfer.groups.groups[0].paged.layers[0] for transfer in (writer, reader)]
    drawn = torch.Generator().manual_seed(seed)
    pages[0][1] = torch.randint(0, 256, pages[0][1].shape, generator=drawn, dtype=torch.uint8)
    made = HostObject.allocate(writer.layout)
    writer.store([[1]], [made])
    answer = ""
    try:
        reader.retrieve([[1]], [made])
    except ValueError as error:
        answer = str(error)
    if one != other:
        machine.coverage.event(seen.VERSIONS, one.split("/")[0] == other.split("/")[0])
        machine.coverage.event(seen.AS_LONG, widths[0] == widths[1])
        machine.coverage.event(seen.NO_FORMAT, not (one and other))
        right = "format" in answer or "/" in answer
        right = right and not pages[1].any() and _key(writer.layout) != _key(reader.layout)
    else:
        right = not answer and torch.equal(*pages) and _key(writer.layout) == _key(reader.layout)
    machine.coverage.check(
        "pages_of_another_format_are_refused",
        right,
        lambda: f"pages of {one or 'no format'} read as {other or 'none'}: {answer or 'no error'}",
    )
    return answer


def _per_head(name: str) -> bool:
    return name in FORMATS and FORMATS[name].per_head


def _transfer(name: str, width: int, headed: bool) -> Transfer:  # noqa: FBT001 - mapped over
    """A transfer of one layer with three pages of rows, of some KV heads or without heads."""
    row = (FOREIGN_PAGE, FOREIGN_HEADS, width) if headed else (FOREIGN_PAGE, width)
    found = FORMATS.get(name)
    nbytes = math.prod(row) if headed or not found else found.page_bytes(FOREIGN_PAGE)
    pages = torch.zeros((3, nbytes), dtype=torch.uint8)
    layer = pages[:, : math.prod(row)].unflatten(1, row)
    layout = "nhd" if headed else "" if found else "latent"
    groups = layer_groups([layer], hint=Hint(layout=layout, page=FOREIGN_PAGE, format=name))
    return Transfer(groups, groups.layout(tokens=FOREIGN_PAGE))


def _key(layout: ChunkLayout) -> bytes:
    """The key of an object of this layout, for a request of one unit."""
    keys = object_key.ObjectKeys(CacheConfig(8, FOREIGN_PAGE), geometry=layout.fingerprint)
    link = keys.chain(Namespace(), bytes(4 * FOREIGN_PAGE), (), 1)[0]
    return keys.key(link, object_key.FULL)


_MEMORY: dict[str, Callable[[int], torch.Tensor]] = {
    "memory with steps": lambda count: torch.zeros(2 * count, dtype=torch.uint8)[::2],
    "memory in two dimensions": lambda count: torch.zeros((1, count), dtype=torch.uint8),
    "memory of numbers": lambda count: torch.zeros(count, dtype=torch.int8),
    "memory too long": lambda count: torch.zeros(count + 1, dtype=torch.uint8),
}
"""Kind of memory that no object lies in -> a tensor of it, for so many bytes."""


def _memory(machine: TransferState, kind: str) -> object:
    """Make an object over memory that is not flat bytes of its size."""
    layout = machine.subject.layout
    if layout.nbytes < 2:  # one byte has no steps
        return None
    try:
        HostObject(layout, _MEMORY[kind](layout.nbytes))
        answer = ""
    except ValueError as error:
        answer = str(error)
    machine.coverage.event(seen.REFUSED[kind])
    machine.coverage.check(
        "wrong_arguments_move_nothing",
        str(layout.nbytes) in answer,
        lambda: f"{kind} for {layout.nbytes} bytes is answered by {answer!r}",
    )
    return answer


def taken_layouts(layout: ChunkLayout) -> list[str]:
    """Return the errors in a description of this layout that raise no LayoutError (G2)."""
    tokens, geometries = layout.tokens, [group.geometry for group in layout.groups]
    last = geometries[-1]
    wrong: dict[str, tuple[int, Geometry]] = {
        f"a {name} of {value!r}": (tokens, replace(last, **{name: value}))
        for name, value in _IMPOSSIBLE
    }
    wrong["a chunk of 0 tokens"] = 0, last
    wrong["an entry longer than its block"] = tokens, replace(last, entry=last.block + 1)
    wrong["a window of 0 tokens"] = tokens, replace(last, kind="window", size=0)
    wrong["a block longer than a chunk"] = tokens, replace(last, block=(tokens + 1) * last.entry)
    return [name for name, each in wrong.items() if _is_taken([*geometries[:-1], each[1]], each[0])]


_IMPOSSIBLE: tuple[tuple[str, Any], ...] = (
    ("dtype", "float7"), ("names", ()), ("heads", 0), ("width", 0), ("kv", 0), ("block", 0),
    ("rows", 0), ("entry", 0),
)  # fmt: skip
"""Field of a geometry, and a value that no memory has."""


def _is_taken(geometries: list[Geometry], tokens: int) -> bool:
    try:
        ChunkLayout.of(geometries, tokens=tokens)
    except LayoutError:
        return False
    except Exception:  # noqa: BLE001 - of any kind: it was laid out until something broke
        return True
    return True


_SPOILT: dict[str, Callable[[TransferState, dict[str, Any]], bool]] = {
    "id": _id,
    "negative": partial(_id, wrong=-1),
    "count": _count,
    "groups": _groups,
    "object": _object,
    "twice": _twice,
    "skip": _skip,
    "ranges": _ranges,
}

REFUSALS: dict[str, Callable[..., object]] = {"refuse": refuse, "foreign": foreign}
