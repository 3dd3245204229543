"""Wrong bytes and the properties that they break."""

from __future__ import annotations

import numpy as np

from kvproof.suites.reference.transfer import oracle
from kvproof.suites.reference.transfer import properties as seen
from kvproof.suites.reference.transfer.oracle import Bytes, Move
from kvproof.suites.reference.transfer.state import TransferState

ELSEWHERE, MOVED, SKIPPED, LEFT = range(4)
"""The last call's effect on a byte of the side that it writes."""


class Marks:
    def __init__(self, machine: TransferState, *, stored: bool) -> None:
        self.stored = stored
        memory = {each.memory: _blank(machine.pages[each.name]) for each in machine.caches}
        self.of_pages = {each.name: memory[each.memory] for each in machine.caches}
        self.of_objects = [_blank(each) for each in machine.objects]
        self.skipped = self.left = False

    def object(self, at: int, move: Move) -> None:
        """Mark the written bytes of an object."""
        marks = self.of_objects[at]
        marks[move.left_chunk], marks[move.chunk] = LEFT, MOVED
        marks[move.skipped_chunk] = SKIPPED
        self._note(move)

    def pages(self, name: str, move: Move) -> None:
        marks = self.of_pages[name]
        marks[move.left_pages], marks[move.pages] = LEFT, MOVED
        marks[move.skipped_pages] = SKIPPED
        self._note(move)

    def _note(self, move: Move) -> None:
        self.skipped |= len(move.skipped_chunk) > 0
        self.left |= len(move.left_chunk) > 0

    def property_of(self, mark: int, *, null_page: bool) -> str:
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


def judge(machine: TransferState, marks: Marks | None) -> None:
    """Compare all bytes of the subject with the model; the first wrong one names the property."""
    for name, expected in machine.pages.items():
        wrong = np.flatnonzero(machine.subject.pages[name].read() != expected)
        if len(wrong):
            _broken(machine, marks, int(wrong[0]), cache=_owner(machine, name, int(wrong[0])))
    for at, expected in enumerate(machine.objects):
        wrong = np.flatnonzero(machine.subject.bytes_of(at) != expected)
        if len(wrong):
            _broken(machine, marks, int(wrong[0]), item=at)
    for name in _evaluated(marks):
        machine.coverage.check(name, ok=True, sentence=str)


def _evaluated(marks: Marks | None) -> list[str]:
    if marks is None:
        return ["every_byte_read_was_written"]
    names = [marks.property_of(MOVED, null_page=False), "nothing_else_is_written"]
    names += ["skipped_tokens_stay_untouched"] * marks.skipped
    return names + ["only_valid_blocks_move"] * marks.left


def _broken(
    machine: TransferState, marks: Marks | None, byte: int, *, cache: str = "", item: int = 0
) -> None:
    if marks is None:
        name = "every_byte_read_was_written"
    elif cache:
        ratio = next(each.ratio for each in machine.caches if each.name == cache)
        null = byte in machine.places[cache][:, :ratio]
        name = marks.property_of(int(marks.of_pages[cache][byte]), null_page=null)
    else:
        name = marks.property_of(int(marks.of_objects[item][byte]), null_page=False)
    have = machine.subject.pages[cache].read() if cache else machine.subject.bytes_of(item)
    want = machine.pages[cache] if cache else machine.objects[item]
    where = _in_pages(machine, cache, byte) if cache else _in_object(machine, item, byte)
    machine.coverage.check(
        name, ok=False, sentence=lambda: f"{where} is {have[byte]:#04x}, expected {want[byte]:#04x}"
    )


def _owner(machine: TransferState, name: str, byte: int) -> str:
    """Return which of the layers in the memory of `name` has a byte; `name` if none has."""
    memory = {cache.name: cache.memory for cache in machine.caches}
    sharing = (each for each in memory if memory[each] == memory[name])
    return next((each for each in sharing if byte in machine.places[each]), name)


def _in_pages(machine: TransferState, name: str, byte: int) -> str:
    found = np.argwhere(machine.places[name] == byte)
    if not len(found):
        return f"byte {byte} of {name}, which lies in no page,"
    plane, page, line, at = map(int, found[0])
    return f"byte {at} of line {line} in page {page} of {name}, plane {plane},"


def _in_object(machine: TransferState, item: int, byte: int) -> str:
    for cache in machine.caches:
        count = oracle.kept(cache, machine.config["chunk"]) * cache.block
        found = np.argwhere(oracle.object_places(cache, machine.slots[cache.name], count) == byte)
        if len(found):
            plane, token, at = map(int, found[0])
            return f"byte {at} of token {token} of {cache.name}, plane {plane}, in object {item}"
    return f"byte {byte} of object {item}, which lies in no group,"


def saw_geometry(machine: TransferState, objects: list[int], skip: int, marks: Marks) -> None:
    """Count the situations of a store or a retrieve."""
    saw, caches = machine.coverage.event, machine.caches
    for cache in caches:
        saw(seen.IN_LAYOUT[cache.layout])
        saw(seen.PADDED, cache.pad and not cache.buffer)
        saw(seen.IN_TURN, cache.buffer)
        saw(seen.ODD, cache.head % 2)
        saw(seen.RATIO, cache.ratio > 1)
        saw(seen.INSIDE, marks.skipped and skip % cache.block)
        whole = oracle.ids_of_chunk(cache, machine.config["chunk"])
        saw(seen.WINDOW, 0 < oracle.kept(cache, machine.config["chunk"]) < whole)
    saw(seen.UNEQUAL, len(machine.subject.groups.groups) > 1)
    saw(seen.NULL, marks.left)
    slots = machine.config["slots"]
    saw(seen.SMALLER, slots > len(objects))
    saw(seen.TURNS, 0 < slots < len(objects))
    large = [
        machine.subject.transfer.moved_by_engine(each) for each in machine.subject.groups.groups
    ]
    saw(seen.LARGE, slots and any(large))
