"""Which property a wrong byte breaks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvproof.suites.reference.transfer import oracle
from kvproof.suites.reference.transfer import properties as seen
from kvproof.suites.reference.transfer.oracle import Bytes, Cache, Move

if TYPE_CHECKING:
    from kvproof.suites.reference.transfer.machine import World

ELSEWHERE, MOVED, SKIPPED, LEFT = range(4)
"""What the last call did with a byte of the side that it writes."""


class Marks:
    """What one call does with each byte of pages and objects."""

    def __init__(self, world: World, *, stored: bool) -> None:
        self.stored = stored
        self.of_pages = {name: _blank(each) for name, each in world.pages.items()}
        self.of_objects = [_blank(each) for each in world.objects]
        self.skipped = self.left = False

    def object(self, at: int, move: Move) -> None:
        """Mark bytes of an object that a store writes or not."""
        marks = self.of_objects[at]
        marks[move.left_chunk], marks[move.chunk] = LEFT, MOVED
        marks[move.skipped_chunk] = SKIPPED
        self._note(move)

    def pages(self, name: str, move: Move) -> None:
        """Mark bytes of pages that a retrieve writes or not."""
        marks = self.of_pages[name]
        marks[move.left_pages], marks[move.pages] = LEFT, MOVED
        marks[move.skipped_pages] = SKIPPED
        self._note(move)

    def _note(self, move: Move) -> None:
        self.skipped |= len(move.skipped_chunk) > 0
        self.left |= len(move.left_chunk) > 0

    def property_of(self, mark: int, *, null_page: bool) -> str:
        """Return what is broken if a byte with this mark is wrong."""
        moved = (
            "stored_bytes_equal_the_pages" if self.stored else "retrieved_bytes_reach_their_blocks"
        )
        if mark == ELSEWHERE and null_page:
            return "only_valid_blocks_move"
        return {
            MOVED: moved,
            SKIPPED: "skipped_tokens_stay_untouched",
            LEFT: "only_valid_blocks_move",
        }.get(mark, "nothing_else_is_written")


def _blank(data: Bytes) -> Bytes:
    return np.full(len(data), ELSEWHERE, np.uint8)


def judge(world: World, marks: Marks | None) -> None:
    """Compare all bytes of the subject with the model; the first wrong one says what is broken."""
    for name, expected in world.pages.items():
        wrong = np.flatnonzero(world.subject.pages[name].read() != expected)
        if len(wrong):
            _broken(world, marks, int(wrong[0]), cache=name)
    for at, expected in enumerate(world.objects):
        wrong = np.flatnonzero(world.subject.bytes_of(at) != expected)
        if len(wrong):
            _broken(world, marks, int(wrong[0]), item=at)
    for name in _evaluated(marks):
        world.recorder.check(name, ok=True, sentence=str)


def _evaluated(marks: Marks | None) -> list[str]:
    if marks is None:
        return ["every_byte_read_was_written"]
    names = [marks.property_of(MOVED, null_page=False), "nothing_else_is_written"]
    names += ["skipped_tokens_stay_untouched"] * marks.skipped
    return names + ["only_valid_blocks_move"] * marks.left


def _broken(
    world: World, marks: Marks | None, byte: int, *, cache: str = "", item: int = 0
) -> None:
    if marks is None:
        name = "every_byte_read_was_written"
    elif cache:
        null = byte in world.places[cache][:, : _ratio(world, cache)]
        name = marks.property_of(int(marks.of_pages[cache][byte]), null_page=null)
    else:
        name = marks.property_of(int(marks.of_objects[item][byte]), null_page=False)
    have = world.subject.pages[cache].read() if cache else world.subject.bytes_of(item)
    want = world.pages[cache] if cache else world.objects[item]
    where = _in_pages(world, cache, byte) if cache else _in_object(world, item, byte)
    world.recorder.check(
        name, ok=False, sentence=lambda: f"{where} is {have[byte]:#04x}, expected {want[byte]:#04x}"
    )


def _ratio(world: World, name: str) -> int:
    return next(cache.ratio for cache in world.caches if cache.name == name)


def _in_pages(world: World, name: str, byte: int) -> str:
    found = np.argwhere(world.places[name] == byte)
    if not len(found):
        return f"byte {byte} of {name}, which lies in no page,"
    plane, page, line, at = map(int, found[0])
    return f"byte {at} of line {line} in page {page} of {name}, plane {plane},"


def _in_object(world: World, item: int, byte: int) -> str:
    for cache in world.caches:
        count = oracle.kept(cache, world.config["chunk"]) * cache.block
        found = np.argwhere(oracle.object_places(cache, world.slots[cache.name], count) == byte)
        if len(found):
            plane, token, at = map(int, found[0])
            return f"byte {at} of token {token} of {cache.name}, plane {plane}, in object {item}"
    return f"byte {byte} of object {item}, which lies in no group,"


def saw_geometry(world: World, objects: list[int], skip: int, marks: Marks) -> None:
    """Count the situations of a store or a retrieve."""
    saw, caches = world.recorder.saw, world.caches
    for cache in caches:
        saw(seen.IN_LAYOUT[cache.layout])
        saw(seen.PADDED, cache.pad)
        saw(seen.ODD, cache.head % 2)
        saw(seen.RATIO, cache.ratio > 1)
        saw(seen.INSIDE, marks.skipped and skip % cache.block)
        saw(seen.WINDOW, 0 < oracle.kept(cache, world.config["chunk"]) < _whole(world, cache))
    saw(seen.UNEQUAL, len(world.subject.groups.groups) > 1)
    saw(seen.NULL, marks.left)
    slots = world.config["slots"]
    saw(seen.SMALLER, slots > len(objects))
    saw(seen.TURNS, 0 < slots < len(objects))
    large = [world.subject.transfer.moved_by_engine(each) for each in world.subject.groups.groups]
    saw(seen.LARGE, slots and any(large))


def _whole(world: World, cache: Cache) -> int:
    return oracle.ids_of_chunk(cache, world.config["chunk"])
