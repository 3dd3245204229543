"""Checks other than moved bytes: groups, layouts, views, pieces, refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kvproof.reference.transfer.blocks import needed_blocks
from kvproof.reference.transfer.chunk_layout import ChunkLayout, LayoutError
from kvproof.reference.transfer.grouped import Transfer
from kvproof.reference.transfer.host_object import HostObject, copy_bytes, pieces
from kvproof.reference.transfer.layer_groups import layer_groups
from kvproof.reference.transfer.layouts import AmbiguousLayout, Hint
from kvproof.reference.transfer.staging import Staging
from kvproof.suites.reference.transfer import oracle
from kvproof.suites.reference.transfer import properties as seen
from kvproof.suites.reference.transfer.oracle import Cache, Slot
from kvproof.suites.reference.transfer.refusals import taken_layouts
from kvproof.suites.reference.transfer.state import TransferState
from kvproof.suites.reference.transfer.subject import ELEMENTS, hint_of, random_bytes, tensor_of


def _geometry(cache: Cache) -> tuple[object, ...]:
    heads = cache.heads if "heads" in oracle.NUMBERS[cache.layout] else 1
    return cache._replace(name="", layer="", heads=heads, buffer="", offset=0)


def grouped(machine: TransferState) -> dict[str, Slot]:
    """Check the groups; return where each cache lies in a chunk."""
    groups, saw = machine.subject.groups.groups, machine.coverage.event
    expected: dict[object, list[str]] = {}
    for cache in machine.caches:
        expected.setdefault(_geometry(cache), []).append(cache.name)
    found = [list(group.geometry.names) for group in groups]
    saw(seen.UNEQUAL, len(expected) > 1)
    saw(seen.PADDED, any(cache.pad for cache in machine.caches))
    saw(seen.PAIR, any(cache.name.endswith(".v") for cache in machine.caches))
    saw(seen.EXCLUDED, machine.subject.groups.excluded)
    names = list(expected.values())
    machine.coverage.equal("every_tensor_is_in_one_group", found, names, "the groups are")
    return {
        name: Slot(placed.offset, len(names), names.index(name))
        for names, placed in zip(found, machine.subject.layout.groups, strict=True)
        for name in names
    }


def described(machine: TransferState) -> object:
    """Check a layout against sizes counted from the configuration."""
    layout, tokens, end = machine.subject.layout, machine.config["chunk"], 0
    ok = layout.nbytes % 16 == 0 and ChunkLayout.from_json(layout.to_json()) == layout
    by_name = {cache.name: cache for cache in machine.caches}
    for group in layout.groups:
        cache = by_name[group.geometry.names[0]]
        count = oracle.kept(cache, tokens) * cache.block
        row, layers = cache.row, len(group.geometry.names)
        machine.coverage.event(seen.WINDOW, oracle.kept(cache, tokens) < tokens // cache.block)
        ok = ok and group.nbytes == cache.kv * layers * count * row
        ok = ok and group.offset % 16 == 0 and end <= group.offset < end + 16
        ok = ok and group.strides[:3] == (layers * count * row, count * row, row)
        ok = ok and group.strides[4] == cache.item
        end = group.offset + group.nbytes
    twin = ChunkLayout.of([group.geometry for group in layout.groups], tokens=tokens)
    twice = ChunkLayout.of([group.geometry for group in layout.groups], tokens=2 * tokens)
    ok = ok and twin.fingerprint == layout.fingerprint != twice.fingerprint
    machine.coverage.check(
        "a_chunk_is_described_to_the_byte",
        ok and end <= layout.nbytes < end + 16,
        lambda: f"groups end at byte {end} of {layout.nbytes}:\n{layout.describe()}",
    )
    taken = taken_layouts(layout)
    machine.coverage.check(
        "a_chunk_is_described_to_the_byte",
        not taken,
        lambda: f"not refused: {', '.join(taken)}",
    )
    return layout.nbytes


def views(machine: TransferState, *, slot: int, group: int, count: int) -> object:
    """Read views of a staging and an object; indices may be wrong."""
    layout = machine.subject.layout
    staging = machine.subject.staging or Staging(layout, slots=2)
    right = slot < staging.slots and group < len(layout.groups)
    try:
        found = staging.view(slot, group)
    except ValueError as error:
        text, wrong = str(error), (slot, staging.slots)
        wrong = wrong if slot >= staging.slots else (group, len(layout.groups))
        said = str(wrong[0]) in text and any(str(n) in text for n in (wrong[1] - 1, wrong[1]))
        ok = not right and said
        _views(machine, ok, f"a wrong index is answered by {text!r}")
        return "refused"
    placed, base = layout.groups[group], staging.buffer.data_ptr() + slot * layout.nbytes
    cache = next(each for each in machine.caches if each.name == placed.geometry.names[0])
    there = found.data_ptr() == base + placed.offset or not placed.nbytes  # no bytes, no place
    right = right and there and found.is_contiguous()
    right = right and tuple(found.shape) == placed.shape and found.dtype == ELEMENTS[cache.item]
    _views(machine, right, f"view {group} of slot {slot} is {found.dtype} {list(found.shape)}")
    return _batch(machine, staging, group, count)


def _batch(machine: TransferState, staging: Staging, group: int, count: int) -> object:
    """Read several slots at once."""
    placed = machine.subject.layout.groups[group]
    try:
        rows = staging.batch(group, count)
    except ValueError as error:
        said = str(count) in str(error) and str(staging.slots) in str(error)
        _views(
            machine, count > staging.slots and said, f"a batch of {count} is answered by {error}"
        )
        return "refused"
    whole = rows.shape[0] == count and rows.numel() == count * placed.nbytes
    _views(machine, count <= staging.slots and whole, f"a batch of {count} is {list(rows.shape)}")
    return count


def _views(machine: TransferState, ok: object, sentence: str) -> None:
    machine.coverage.event(seen.SEVERAL, len(machine.subject.layout.groups) > 1)
    machine.coverage.check("slots_have_views_of_every_group", ok, lambda: sentence)


def item(machine: TransferState, *, group: int, seed: int) -> object:
    """Write through the view of one group of a new object."""
    layout, made = machine.subject.layout, HostObject.allocate(machine.subject.layout)
    group %= len(layout.groups)
    placed, several = layout.groups[group], len(layout.groups) > 1
    machine.coverage.event(seen.SEVERAL if several else seen.ONE)
    data = random_bytes(seed, placed.nbytes)
    view = made.get_tensor(group)
    view.view(torch.uint8).view(-1).copy_(torch.from_numpy(data))
    raw = made.raw.numpy()
    same = (raw[placed.offset :][: placed.nbytes] == data).all()
    rest = raw.sum(dtype=int) == data.sum(dtype=int)
    try:
        alone = "" if made.tensor.shape == view.shape else "another tensor"
    except ValueError as error:
        alone = str(error)
    names = [name for each in layout.groups for name in each.geometry.names]
    fits = all(name in alone for name in names) if several else not alone
    machine.coverage.check(
        "objects_have_a_view_per_group",
        same and rest and tuple(view.shape) == placed.shape and fits,
        lambda: f"group {group} of {len(layout.groups)} is {list(view.shape)}; {alone!r}",
    )
    return list(view.shape)


def cut(machine: TransferState, *, start: int, size: int, origin: int, segment: int) -> object:
    """Copy some bytes of an object whose memory is pinned in segments, and the pieces alone."""
    layout = machine.subject.layout
    if not layout.nbytes:
        return 0
    start %= layout.nbytes
    size = min(size, layout.nbytes - start)
    raw = torch.zeros(layout.nbytes, dtype=torch.uint8)
    made = HostObject(layout, raw, origin=origin, segment=segment)
    data = torch.from_numpy(random_bytes(size, size))
    copy_bytes(made, start, data)
    back = torch.zeros(size, dtype=torch.uint8)
    copy_bytes(made, start, back, to_object=False)
    found = pieces(origin + start, size, segment=segment)
    covered = [byte for at, count in found for byte in range(at, at + count)]
    crossing = [
        each for each in found if segment and each.start // segment != (sum(each) - 1) // segment
    ]
    own = [(at + origin, count) for at, count in made.pieces(start, size)]
    ok = covered == list(range(origin + start, origin + start + size)) and own == found
    ok = ok and torch.equal(raw[start : start + size], data) and torch.equal(back, data)
    ok = ok and int(raw.count_nonzero()) == int(data.count_nonzero())
    machine.coverage.event(seen.CROSSED, len(found) > 1)
    machine.coverage.check(
        "copies_stay_inside_segments",
        ok and not crossing,
        lambda: f"bytes {start} to {start + size} at {origin} in segments of {segment}: {found}",
    )
    return len(found)


def need(machine: TransferState, *, length: int, chunks: int) -> object:
    """Compare the blocks that a hit needs."""
    tokens = machine.config["chunk"]
    length = min(length, tokens * chunks)
    refused = bool(length % tokens) and not machine.whole
    try:
        found = needed_blocks(machine.subject.layout, length=length, chunks=chunks)
    except LayoutError as error:
        _need(machine, refused, f"a hit of {length} tokens is answered by {error}")
        return "refused"
    _need(machine, not refused, f"a hit of {length} tokens inside of a chunk is not refused")
    for cache in machine.caches:
        group = next(
            index for index, each in enumerate(machine.subject.layout.groups)
            if cache.name in each.geometry.names
        )  # fmt: skip
        have = [list(each) for each in found[group]]
        want = [oracle.needed(cache, tokens, chunk, length) for chunk in range(chunks)]
        few = any(len(each) < oracle.ids_of_chunk(cache, tokens) for each in want)
        machine.coverage.event(seen.WINDOW, few and cache.kind == "window")
        machine.coverage.event(seen.STATE_LEFT, few and cache.kind == "state")
        said = f"a hit of {length} tokens needs of {cache.kind} {cache.size} blocks {want}"
        _need(machine, have == want, f"{said}, not {have}")
    return length


def _need(machine: TransferState, ok: object, sentence: str) -> None:
    machine.coverage.check("transferred_blocks_are_those_visible", ok, lambda: sentence)


def read(
    machine: TransferState, *, layout: str, sizes: dict[str, int], hint: dict[str, int], turned: str
) -> object:
    """Register a tensor with a perhaps insufficient hint, and with its dimensions permuted."""
    cache = Cache(
        "x", "x", layout, "full", 0, 0, sizes["pages"], 1, sizes["page"], sizes["heads"],
        sizes["bytes"], 1, 0,
    )  # fmt: skip
    flat = torch.from_numpy(random_bytes(sizes["pages"], cache.nbytes))
    tensor = tensor_of(cache, flat)
    possible = _readings(list(tensor.shape), hint)
    machine.coverage.event(seen.AMBIGUOUS, len(possible) > 1)
    machine.coverage.event(seen.SETTLED, hint and len(possible) == 1)
    answer = _answer(tensor, Hint(**hint))  # type: ignore[arg-type]  # names of its fields
    _reading(machine, answer == possible, f"{list(tensor.shape)} with {hint} is read as {answer}")
    reading = _answer(tensor, Hint(layout=layout))
    _reading(machine, reading == [layout], f"with the layout {layout}, it is read as {reading}")
    if "heads" in oracle.NUMBERS[turned] and set(oracle.NUMBERS[turned]) == set(
        oracle.NUMBERS[layout]
    ):
        _turned(machine, cache, tensor, turned)
    return answer


def _turned(machine: TransferState, cache: Cache, tensor: torch.Tensor, turned: str) -> None:
    """The same memory with permuted dimensions gives the same chunk."""
    mine, wanted = oracle.NUMBERS[cache.layout], oracle.NUMBERS[turned]
    view = tensor.permute([mine.index(axis) for axis in wanted])
    whole = layer_groups([tensor], hint=Hint(layout=cache.layout))
    other = layer_groups([view], hint=Hint(layout=turned))
    objects = []
    for groups in (whole, other):
        transfer = Transfer(groups, groups.layout(tokens=cache.page))
        objects.append(HostObject.allocate(transfer.layout))
        transfer.store([[cache.blocks - 1]], objects[-1:])
    same = torch.equal(objects[0].raw, objects[1].raw)
    machine.coverage.event(seen.TURNED, turned != cache.layout)
    _reading(machine, same, f"{cache.layout} seen as {turned} gives another chunk")


def _reading(machine: TransferState, ok: object, sentence: str) -> None:
    machine.coverage.check("ambiguous_layouts_are_refused", ok, lambda: sentence)


def _readings(shape: list[int], hint: dict[str, int]) -> list[str]:
    """Layouts that a dense tensor of single bytes may have."""
    found = []
    for name, axes in oracle.NUMBERS.items():
        if name == "state" or len(axes) != len(shape):
            continue
        sizes = dict(zip(axes, shape, strict=True))
        packed = name != "indexer" or sizes["bytes"] > 4
        if packed and all(sizes.get(axis, 1) == size for axis, size in hint.items()):
            found += [name] * (sizes.get("kv", 2) == 2)
    return found


def _answer(tensor: torch.Tensor, hint: Hint) -> list[str]:
    try:
        groups = layer_groups([tensor], hint=hint)
    except AmbiguousLayout as error:
        hinted = "settle it with Hint(" in str(error)
        return [reading.layout for reading in error.readings if hinted]
    except LayoutError:
        return []
    return [groups.groups[0].paged.layout]


def side(machine: TransferState, *, blocks: int, other: int) -> object:
    """Register a latent and an indexer of one table, perhaps with unequal blocks."""
    caches = [
        Cache(name, "x", layout, "full", 0, 0, count, 1, 4, 1, width, 1, 0, scales)
        for name, layout, count, width, scales in (
            ("x.latent", "latent", blocks, 24, 0),
            ("x.indexer", "indexer", other, 132, 4),
        )
    ]
    flat = [torch.zeros(cache.nbytes, dtype=torch.uint8) for cache in caches]
    named = dict(zip(("latent", "indexer"), map(tensor_of, caches, flat), strict=True))
    answer = ""
    try:
        layer_groups({"x": named}, hints={cache.name: hint_of(cache) for cache in caches})
    except LayoutError as error:
        answer = str(error)
    machine.coverage.event(seen.SIDE, blocks != other)
    said = f" {blocks} blocks" in answer and f" {other}" in answer
    machine.coverage.check(
        "side_caches_have_the_blocks_of_their_table",
        said if blocks != other else not answer,
        lambda: f"{blocks} and {other} blocks of one table are answered by {answer!r}",
    )
    return answer


VERBS: dict[str, Callable[..., Any]] = {
    "views": views,
    "item": item,
    "cut": cut,
    "need": need,
    "read": read,
    "side": side,
}
