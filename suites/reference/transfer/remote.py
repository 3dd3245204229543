"""The suite `transfer` on a target with its own grouping and transfer.

Calls: `open(layers, groups, chunk, order, objects)`, then `about() -> {"groups", "parts",
"windows", "sizes", "slots"}`, `write(seed)`, `store(ids, objects) -> error`, `retrieve(ids,
objects, skip) -> error`, `digests() -> {"layers", "objects"}`, `layer(number)` and `part(number,
part)`, the last two in hexadecimal digits. `write` computes the bytes of
`random.Random(f"{seed}/{layer}")`, so that only digests travel.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np
from hypothesis import strategies as st

from kvproof.suites.framework.component_suite import (
    ComponentSuite,
    Config,
    Draw,
    RemoteCalls,
    TargetProvided,
)
from kvproof.suites.framework.coverage import Coverage
from kvproof.suites.reference.transfer import oracle
from kvproof.suites.reference.transfer import properties as seen
from kvproof.suites.reference.transfer.oracle import POISON, Bytes, Cache, Index, Slot
from kvproof.suites.reference.transfer.remote_draws import (
    LIMITS,
    OBJECTS,
    PACKED,
    draw_config,
    draw_operation,
)

_LAYOUTS = tuple(seen.IN_LAYOUT[name] for name in seen.LAYOUTS if name not in ("indexer", "state"))
_JUDGED: dict[str, tuple[str, ...]] = {
    "every_tensor_is_in_one_group": (seen.UNEQUAL,),
    "a_chunk_is_described_to_the_byte": (seen.UNEQUAL,),
    "stored_bytes_equal_the_pages": (*_LAYOUTS, seen.UNEQUAL),
    "retrieved_bytes_reach_their_blocks": (*_LAYOUTS, seen.UNEQUAL, seen.SMALLER, seen.TURNS),
    "skipped_tokens_stay_untouched": (seen.INSIDE,),
}
"""Property -> the situations that can occur."""
_WITHOUT = "only the reference's transfer offers it"
_DENSE = "the layers that a target is given are dense: LMCache maps no others on a CPU"


def offered(ask: RemoteCalls) -> TargetProvided:
    """Return the suite on a target; one history in four has a hard feature, but no indexer."""
    hard = [(limit,) for limit in LIMITS if limit != PACKED]
    kinds: list[tuple[str, ...]] = [*[()] * 3 * len(hard), *hard]

    def draw_any(draw: Draw) -> Config:
        return draw_config(draw, allowed=draw(st.sampled_from(kinds)))

    return TargetProvided(
        offered_part(ask)._replace(draw_config=draw_any),
        {
            prop.name: _DENSE if prop.name == "nothing_else_is_written" else _WITHOUT
            for prop in seen.PROPERTIES
            if prop.name not in _JUDGED
        },
    )


def offered_part(ask: RemoteCalls, *allowed: str) -> ComponentSuite:
    """Return the suite; `allowed` are among the limits."""
    return ComponentSuite(
        name="transfer",
        properties=tuple(
            prop._replace(situations=_JUDGED[prop.name])
            for prop in seen.PROPERTIES
            if prop.name in _JUDGED
        ),
        draw_config=partial(draw_config, allowed=allowed),
        machine=partial(TargetTransferMachine, ask),
        draw_operation=draw_operation,
    )


class TargetTransferMachine:
    """Expected pages and objects of the target."""

    def __init__(self, ask: RemoteCalls, config: Config, coverage: Coverage) -> None:
        self._ask = ask
        self.coverage = coverage
        self.chunk: int = config["chunk"]
        self.caches = [Cache(**cache) for cache in config["caches"]]
        self.odd_skips: bool = config["odd_skips"]
        self._places = [cache.places() for cache in self.caches]
        _, about = ask(("open", self._opening(config["order"])), ("about", {}))
        self._groups = self._judge_groups(about["groups"])
        self._parts: list[list[int]] = about["parts"]
        self._windows: list[int] = about["windows"]
        self._turn: int = about["slots"]
        self._slots = self._placed(about["sizes"])
        self._objects = [
            [np.full(size, POISON, np.uint8) for size in about["sizes"]] for _ in range(OBJECTS)
        ]
        self._pages: list[Bytes] = []
        self._write(seed=config["seed"])

    def apply(self, verb: str, **arguments: Any) -> None:
        """Run one operation and compare every byte."""
        getattr(self, f"_{verb}")(**arguments)

    def _write(self, *, seed: int) -> None:
        self._ask(("write", {"seed": seed}))
        dice = [random.Random(f"{seed}/{n}") for n in range(len(self.caches))]  # noqa: S311 - no secret
        self._pages = [
            np.frombuffer(bytearray(each.randbytes(cache.nbytes)), np.uint8)
            for each, cache in zip(dice, self.caches, strict=True)
        ]

    def _opening(self, order: str) -> Config:
        layers = [
            {
                "shape": cache.shape,
                "item": cache.item,
                "table": cache.table,
                "block": cache.block,
                "window": cache.size,
            }
            for cache in self.caches
        ]
        return {
            "layers": layers,
            "groups": self._equal(),
            "chunk": self.chunk,
            "order": order,
            "objects": OBJECTS,
        }

    def _equal(self) -> list[list[int]]:
        """Layers of equal geometry, in order of first appearance (G1)."""
        found: dict[object, list[int]] = {}
        for number, cache in enumerate(self.caches):
            found.setdefault(cache._replace(name="", layer=""), []).append(number)
        return list(found.values())

    def _judge_groups(self, groups: list[list[int]]) -> list[list[int]]:
        expected = self._equal()
        self.coverage.event(seen.UNEQUAL, len(expected) > 1)
        self.coverage.equal("every_tensor_is_in_one_group", groups, expected, "the groups are")
        return expected

    def _placed(self, sizes: list[int]) -> list[tuple[int, Slot]]:
        """Where each cache lies: in which part of an object, and in that part."""
        found: dict[int, tuple[int, Slot]] = {}
        for part, groups in enumerate(self._parts):
            offset = uncut = 0
            for group in groups:
                layers = self._groups[group]
                first = self.caches[layers[0]]
                for at, layer in enumerate(layers):
                    found[layer] = part, Slot(offset, len(layers), at)
                tokens = oracle.kept(first, self.chunk) * first.block
                offset += len(layers) * first.kv * tokens * first.row
                uncut += len(layers) * first.kv * self.chunk * first.row
            self._judge_size(part, sizes[part], offset, uncut)
        return [found[number] for number in range(len(self.caches))]

    def _judge_size(self, part: int, given: int, size: int, uncut: int) -> None:
        """`uncut`: the bytes of all tokens of the chunk, also of those that no window keeps."""
        self.coverage.check(
            "a_chunk_is_described_to_the_byte",
            given == size,
            lambda: f"part {part} of an object has {given} bytes, its blocks have {size}",
            facts={"given": given, "size": size, "uncut": uncut},
        )

    def _store(self, *, blocks: list[int], objects: list[int]) -> None:
        if not self._move("store", blocks, objects):
            self._adopt()
            return
        for number, chunk, item, move in self._moves(blocks, objects, 0):
            part = self._slots[number][0]
            self._objects[item][part][move.chunk] = self._pages[number][move.pages]
            self.coverage.event(seen.IN_LAYOUT[self.caches[number].layout], chunk == 0)
        self._judge("stored_bytes_equal_the_pages")

    def _retrieve(self, *, blocks: list[int], objects: list[int], skip: int) -> None:
        if not self._move("retrieve", blocks, objects, skip=skip):
            self._adopt()
            return
        rounded = [pages.copy() for pages in self._pages]
        skipped = self._retrieved(self._pages, blocks, objects, skip)
        self._retrieved(rounded, blocks, objects, skip, whole_blocks=True)
        self.coverage.event(seen.TURNS, len(objects) > self._turn)
        self.coverage.event(seen.SMALLER, len(objects) < self._turn)
        self.coverage.event(seen.INSIDE, any(skip % cache.block for cache in self.caches))
        self._judge_skipped(skip, skipped, rounded)
        self._judge("retrieved_bytes_reach_their_blocks")

    def _retrieved(
        self,
        pages: list[Bytes],
        blocks: list[int],
        objects: list[int],
        skip: int,
        *,
        whole_blocks: bool = False,
    ) -> list[Index]:
        """Write a retrieve into pages; returns the skipped bytes of each.

        `whole_blocks`: also the bytes that share a block with the first token after the skip.
        """
        skipped: list[list[Index]] = [[] for _ in self.caches]
        for number, chunk, item, move in self._moves(blocks, objects, skip, rounded=whole_blocks):
            part = self._slots[number][0]
            window = self._windows[part]
            if window < 0 or chunk >= len(objects) - window:
                pages[number][move.pages] = self._objects[item][part][move.chunk]
                skipped[number].append(move.skipped_pages)
        return [np.concatenate([*each, np.zeros(0, np.intp)]) for each in skipped]

    def _judge_skipped(self, skip: int, skipped: list[Index], rounded: list[Bytes]) -> None:
        """Tokens before a skip keep their bytes; other wrong bytes are another property's."""
        if not skip:
            return
        for number, wrong in enumerate(self._wrong_pages()):
            if wrong is None:
                continue
            places = skipped[number]
            touched = not np.array_equal(wrong[places], self._pages[number][places])
            held = self.coverage.check(
                "skipped_tokens_stay_untouched",
                not touched,
                lambda: f"tokens before {skip} were written in pages of {self.caches[number].name}",  # noqa: B023 - called at once
                facts={"inside": skip % self.caches[number].block,
                       "rounded": np.array_equal(wrong, rounded[number])},
            )  # fmt: skip
            if not held:  # it is known
                self._pages[number] = wrong
        self.coverage.checks["skipped_tokens_stay_untouched"] += 1

    def _adopt(self) -> None:
        """Take over all bytes after a known failure: a part of the call may have happened."""
        for number, wrong in enumerate(self._wrong_pages()):
            if wrong is not None:
                self._pages[number] = wrong
        (reported,) = self._ask(("digests", {}))
        for item, parts in enumerate(self._objects):
            for number, part in enumerate(parts):
                if _digest(part) != reported["objects"][item][number]:
                    (text,) = self._ask(("part", {"number": item, "part": number}))
                    parts[number] = np.frombuffer(bytearray.fromhex(text), np.uint8)

    def _wrong_pages(self) -> list[Bytes | None]:
        """Return the bytes of each layer that are not those expected."""
        (reported,) = self._ask(("digests", {}))
        found: list[Bytes | None] = [None] * len(self.caches)
        for number, pages in enumerate(self._pages):
            if _digest(pages) != reported["layers"][number]:
                (text,) = self._ask(("layer", {"number": number}))
                found[number] = np.frombuffer(bytearray.fromhex(text), np.uint8)
        return found

    def _move(self, verb: str, blocks: list[int], objects: list[int], **skip: int) -> bool:
        """Whether the call was carried out."""
        firsts = [self.caches[of[0]] for of in self._groups]
        ids = [self._ids(cache, blocks, len(objects)) for cache in firsts]
        (wrong,) = self._ask((verb, {"ids": ids, "objects": objects, **skip}))
        return self.coverage.check(
            "stored_bytes_equal_the_pages",
            not wrong,
            lambda: f"a {verb} was refused: {wrong}",
            facts={"error": wrong, "parts": self._parts},
        )

    def _ids(self, cache: Cache, blocks: list[int], chunks: int) -> list[int]:
        """The first blocks for every table: ids of different tables are different blocks."""
        return blocks[: chunks * self.chunk // cache.block]

    def _moves(
        self, blocks: list[int], objects: list[int], skip: int, *, rounded: bool = False
    ) -> Iterable[Any]:
        for number, cache in enumerate(self.caches):
            ids = self._ids(cache, blocks, len(objects))
            each = self.chunk // cache.block
            for chunk, item in enumerate(objects):
                move = oracle.move(
                    cache,
                    self._places[number],
                    self._slots[number][1],
                    ids[chunk * each : (chunk + 1) * each],
                    tokens=self.chunk,
                    chunk=chunk,
                    skip=skip // cache.block * cache.block if rounded else skip,
                    valid=None,
                )
                yield number, chunk, item, move

    def _judge(self, prop: str) -> None:
        (reported,) = self._ask(("digests", {}))
        wrong = [
            f"pages of {cache.name}"
            for cache, pages, digest in zip(
                self.caches, self._pages, reported["layers"], strict=True
            )
            if _digest(pages) != digest
        ]
        wrong += [
            f"part {number} of object {item}"
            for item, parts in enumerate(self._objects)
            for number, part in enumerate(parts)
            if _digest(part) != reported["objects"][item][number]
        ]
        self.coverage.check(prop, not wrong, lambda: f"bytes are wrong in {', '.join(wrong)}")


def _digest(data: Bytes) -> str:
    return hashlib.sha256(data.tobytes()).hexdigest()
