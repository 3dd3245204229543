"""The blocks of an engine after a retrieve, byte for byte."""

from __future__ import annotations

from collections.abc import Sequence

from kvproof.suites.framework.component_suite import RemoteCalls
from kvproof.suites.framework.coverage import Coverage
from kvproof.suites.reference.stored_prefixes.model import BLOCKS, CHUNK, EACH, Key, Model, Pending

ENGINE, OTHER = 1, 2
NULL = 0xEE
"""Every byte of the null block when a chunk is stored."""
UNTOUCHED = 0xCD
"""Every byte before a retrieve."""


class Pages:
    """Compares blocks of the engine with the model."""

    def __init__(self, ask: RemoteCalls, coverage: Coverage, model: Model) -> None:
        self._ask, self._coverage, self._model = ask, coverage, model

    def judge(self, pending: Pending, start: int, skip: int, ids: Sequence[Sequence[int]]) -> None:
        """Read all blocks after a retrieve into `ids`, and check every byte of them."""
        calls = [("read", {"instance": ENGINE, "table": g, "blocks": list(range(BLOCKS))})
                 for g in range(len(self._model.windows))]  # fmt: skip
        for group, pages in enumerate(self._ask(*calls)):
            got = {block: bytes.fromhex(data) for block, data in enumerate(pages)}
            part = next(p for p, tables in enumerate(self._model.parts) if group in tables)
            window = self._model.needed[part]
            earliest = 0 if window < 0 else (pending.hit - window) * EACH
            written = {
                start * EACH + at: got.pop(block)
                for at, block in enumerate(ids[group])
                if at >= skip and start * EACH + at >= earliest and block
            }
            null = {start * EACH + at for at, block in enumerate(ids[group]) if not block}
            self._judge_rest(pending, group, got, null)
            for position, data in written.items():
                self._judge_block(pending, part, group, position, data)

    def judge_other(
        self, tokens: Sequence[int], salt: str, ids: Sequence[int], numbers: str
    ) -> None:
        """Read blocks of the other engine: none has the stored bytes (H6)."""
        calls = [("read", {"instance": OTHER, "table": group, "blocks": [*ids]})
                 for group in range(len(self._model.windows))]  # fmt: skip
        found = {
            (group, block): bytes.fromhex(data)
            for group, pages in enumerate(self._ask(*calls))
            for block, data in enumerate(pages)
        }
        same = [
            (group, block)
            for (group, block), data in found.items()
            if data == self._model.content(group, salt, tokens, block)
        ]
        left = [data for place, data in found.items() if place not in same]
        self._coverage.check(
            "dtypes_are_part_of_the_key",
            not same,
            lambda: (
                f"{len(same)} blocks of an engine's {numbers} have the bytes that one with other "
                f"numbers has stored: group {same[0][0]}, block {same[0][1]}"
            ),
            facts={"rest": any({*data} - {NULL, UNTOUCHED} for data in left)},
        )

    def _judge_block(
        self, pending: Pending, part: int, group: int, block: int, data: bytes
    ) -> None:
        key = part, pending.salt, pending.tokens[: (block // EACH + 1) * CHUNK]
        right = data == self._model.content(group, pending.salt, pending.tokens, block)
        hole = (group, block) in self._model.there.get(key, ())
        if not hole or right:
            self._coverage.check(
                "prefix_bytes_are_those_computed",
                right,
                lambda: f"block {block} of group {group} reads {data[:8].hex()}, which is not its",
            )
        looks = self._model.sees(group, pending.hit * CHUNK, block)
        self._coverage.check(
            "what_a_window_left_is_not_served",
            right or not hole or not looks,
            lambda: (
                f"block {block} of group {group} was null when its chunk was stored, and a hit of "
                f"{pending.hit} chunks, whose window of {self._model.windows[group]} tokens looks "
                f"at it, reads {data[:4].hex()}"
            ),
            facts={"null": set(data) == {NULL}, "parts": len(self._model.parts),
                   "holes": self._holes(key, group, block)},
        )  # fmt: skip

    def _holes(self, key: Key, group: int, block: int) -> int:
        """How many blocks of a chunk were null in a group when it was stored."""
        first = block // EACH * EACH
        holes = self._model.there.get(key, ())
        return sum((group, each) in holes for each in range(first, first + EACH))

    def _judge_rest(
        self, pending: Pending, group: int, got: dict[int, bytes], positions: set[int]
    ) -> None:
        """`positions`: those of the retrieve whose block is null."""
        null = got.pop(0)
        theirs = [self._model.content(group, pending.salt, pending.tokens, at) for at in positions]
        self._coverage.check(
            "null_blocks_are_not_written",
            set(null) == {UNTOUCHED},
            lambda: f"the null block of group {group} reads {null[:8].hex()} after a retrieve",
            facts={"of_the_hit": bool(positions) and null in (*theirs, bytes([NULL]) * len(null))},
        )
        wrong = [block for block, data in got.items() if set(data) != {UNTOUCHED}]
        self._coverage.check(
            "prefix_bytes_are_those_computed",
            not wrong,
            lambda: f"blocks {wrong} of group {group} were written, which no call named",
        )
