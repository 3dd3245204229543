"""The blocks of an engine after a retrieve, byte for byte."""

from __future__ import annotations

from collections.abc import Sequence

from kvproof.suites.framework.component_suite import RemoteCalls
from kvproof.suites.framework.coverage import Coverage
from kvproof.suites.reference.stored_prefixes.model import BLOCKS, CHUNK, EACH, Model, Pending

ENGINE, OTHER = 1, 2
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
            self._judge_rest(group, got)
            for position, data in written.items():
                self._judge_block(pending, part, group, position, data)

    def judge_other(
        self, tokens: Sequence[int], salt: str, ids: Sequence[int], numbers: str
    ) -> None:
        """Read blocks of the other engine: none has the stored bytes (H6)."""
        calls = [("read", {"instance": OTHER, "table": group, "blocks": [*ids]})
                 for group in range(len(self._model.windows))]  # fmt: skip
        same = [
            (group, block)
            for group, pages in enumerate(self._ask(*calls))
            for block, data in enumerate(pages)
            if data == self._model.content(group, salt, tokens, block).hex()
        ]
        self._coverage.check(
            "dtypes_are_part_of_the_key",
            not same,
            lambda: (
                f"{len(same)} blocks of an engine's {numbers} have the bytes that one with other "
                f"numbers has stored: group {same[0][0]}, block {same[0][1]}"
            ),
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
        )

    def _judge_rest(self, group: int, got: dict[int, bytes]) -> None:
        null = got.pop(0)
        self._coverage.check(
            "null_blocks_are_not_written",
            set(null) == {UNTOUCHED},
            lambda: f"the null block of group {group} reads {null[:8].hex()} after a retrieve",
        )
        wrong = [block for block, data in got.items() if set(data) != {UNTOUCHED}]
        self._coverage.check(
            "prefix_bytes_are_those_computed",
            not wrong,
            lambda: f"blocks {wrong} of group {group} were written, which no call named",
        )
