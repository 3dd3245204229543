"""The suite `prefixes` on servers with a window: a chunk with null blocks is kept or not (G10)."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from hypothesis import settings

from kvproof.suites.framework.component_suite import ComponentSuite
from kvproof.suites.framework.state_machine import explore
from kvproof.suites.reference.stored_prefixes.model import BLOCK, CHUNK, EACH
from kvproof.suites.reference.stored_prefixes.plain_server import Ids, Key, Plain
from kvproof.suites.reference.stored_prefixes.strategies import draw_config, offered
from kvproof.suites.tests.framework.suite_faults import UNSHRUNK

WINDOW, NEEDED = 40, 3
"""Tokens of the window, and the chunks that it needs of a hit."""


class Whole(Plain):
    """Right, for one table with a window: no chunk with a null block is kept."""

    def __init__(self) -> None:
        super().__init__()
        self._holes: dict[Key, list[int]] = {}
        """Places of null blocks in a chunk."""

    def traits(self) -> dict[str, object]:
        return {}

    def engine(self, **named: Any) -> dict[str, object]:
        return {**super().engine(**named), "windows": [NEEDED]}

    def store(self, *, ids: Ids, **named: Any) -> list[object]:
        before, keys = {*self._chunks}, self._keys(**named)
        well, _ = super().store(ids=ids, **named)
        new = [key for key in keys if key in self._chunks and key not in before]
        self._holes |= {
            key: [n for n in range(EACH) if not ids[0][at * EACH + n]]
            for at, key in enumerate(keys)
            if key in new
        }
        for key in new:
            if not self.keeps(len(self._holes[key])):
                del self._chunks[key]
        return [well, [self.told(key, new=key in new) for key in keys]]

    def keeps(self, holes: int) -> bool:
        return not holes

    def told(self, key: Key, *, new: bool) -> bool:
        return new and key in self._chunks

    def ask(self, *, tokens: list[int], end: int, **named: Any) -> int:
        keys = self._keys(tokens=tokens, **{**named, "end": end})
        found = max(n for n in range(len(keys) + 1) if self.serves(keys, n))
        window = {"start": max(0, found - NEEDED) * CHUNK, "end": found * CHUNK}
        super().ask(tokens=tokens, **{**named, **window})
        return found

    def serves(self, keys: list[Key], length: int) -> bool:
        return all(key in self._chunks for key in keys[max(0, length - NEEDED) : length])

    def take(self, *, instance: int, request: str, ids: Ids, skip: int = 0, **named: Any) -> bool:
        keys = self._keys(instance=instance, **named)
        window = keys[-NEEDED:]
        if len(ids[0]) < len(keys) * EACH or not self._has(request, window):
            return False
        first = len(keys) * EACH - len(window) * EACH
        blocks = [block for key in window for block in self._chunks[key]]
        for place, block in enumerate(blocks, first):
            if place >= skip // BLOCK and ids[0][place]:
                self._pages[instance][0][ids[0][place]] = block
        self._unlock(request, keys)
        return True


class InPart(Whole):
    """Right: keeps what is left of a chunk, for windows that do not see its null blocks."""

    def keeps(self, holes: int) -> bool:
        return holes < EACH

    def serves(self, keys: list[Key], length: int) -> bool:
        first = max(0, length - NEEDED)
        seen = (length * CHUNK - WINDOW + 1) // BLOCK
        return super().serves(keys, length) and all(
            at * EACH + hole < seen for at in range(first, length) for hole in self._holes[keys[at]]
        )


class Careless(InPart):
    """Wrong: null blocks are served."""

    def serves(self, keys: list[Key], length: int) -> bool:
        return Whole.serves(self, keys, length)


class Hollow(Whole):
    """Wrong: a chunk of null blocks alone is kept."""

    def keeps(self, holes: int) -> bool:
        return holes in (0, EACH)


class Boastful(Whole):
    """Wrong: what is left out is reported as kept."""

    def told(self, key: Key, *, new: bool) -> bool:
        return new


class Modest(InPart):
    """Wrong: what is kept in part is reported as left out."""

    def told(self, key: Key, *, new: bool) -> bool:
        return super().told(key, new=new) and not self._holes[key]


class Timid(InPart):
    """Wrong: no hit of two chunks or more is served."""

    def serves(self, keys: list[Key], length: int) -> bool:
        return length < 2 and super().serves(keys, length)


def suite_on(kind: type[Plain]) -> ComponentSuite:
    running: list[Plain] = []

    def ask(*calls: tuple[str, dict[str, Any]]) -> list[Any]:
        answers = []
        for verb, keywords in calls:
            if verb == "open":
                running[:] = [kind()]
            answers.append(None if verb == "open" else getattr(running[0], verb)(**keywords))
        return answers

    draw = partial(draw_config, windows=((WINDOW,),))
    return offered(ask).suite._replace(profiles=(draw, partial(draw, trouble=True)))


@pytest.mark.parametrize("kind", [Whole, InPart])
def test_a_chunk_with_null_blocks_is_kept_or_left_out(kind):
    seen = explore(suite_on(kind), settings(UNSHRUNK, max_examples=40))
    assert (seen.violation, seen.died) == (None, None)
    assert seen.situations["a window has left a part of a chunk that is stored"]


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (Careless, "what_a_window_left_is_not_served"),
        (Hollow, "what_a_window_left_is_not_served"),
        (Boastful, "a_store_tells_what_it_kept"),
        (Modest, "a_store_tells_what_it_kept"),
        (Timid, "prefix_hits_are_the_longest"),
    ],
)
def test_what_is_kept_is_right_and_what_is_left_out_is_reported(kind, name):
    seen = explore(suite_on(kind), settings(UNSHRUNK, max_examples=40))
    assert seen.violation is not None
    assert seen.violation.property == name
