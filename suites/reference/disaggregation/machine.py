"""Two engines, the prompts that are moved, and the content that each slot must have after it."""

from __future__ import annotations

from base64 import b64decode
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvproof.harness.contract.disaggregation import (
    WORDS,
    Moved,
    Prompt,
    Refused,
    Side,
    Words,
    words,
)
from kvproof.suites.framework.component_suite import IGNORED, Config, RemoteCalls
from kvproof.suites.framework.coverage import Coverage
from kvproof.suites.reference.disaggregation import properties as seen

Mask: TypeAlias = NDArray[np.bool_]


class Origin(NamedTuple):
    """Layer, head and token of a slot's content; token -1: of another prompt."""

    layer: int
    head: int
    position: int

    def __str__(self) -> str:
        return f"layer {self.layer}, head {self.head}, token {self.position}"


class Content:
    """What must be in the slots of one decoding worker: [layer, block, head, offset]."""

    def __init__(self, side: Side, rank: int) -> None:
        shape = side.layers, side.blocks, len(side.of_rank(rank)), side.block_size
        self.words = np.zeros((*shape, WORDS), np.int64)
        self.sure: Mask = np.zeros(shape, bool)
        """The others may hold anything."""

    def expect(self, side: Side, rank: int, prompt: Prompt) -> Mask:
        """Note a prompt; returns the slots that were moved."""
        own = np.zeros_like(self.sure)
        self.sure[:, prompt.decode] = False
        positions = side.held(rank, prompt.tokens)
        right = words(prompt.number, side.layers, side.of_rank(rank), positions)
        start = prompt.cached * side.block_size * side.context
        blocks, offsets = side.slots(prompt.decode, positions)
        moved = np.asarray(positions, np.int64) >= start
        self.words[:, blocks, :, offsets] = right.transpose(2, 0, 1, 3)
        self.sure[:, blocks, :, offsets] = True
        own[:, blocks, :, offsets] = moved[:, None, None]
        return own


class DisaggregationMachine:
    """Every move is compared slot by slot, on every decoding worker."""

    def __init__(self, ask: RemoteCalls, config: Config, coverage: Coverage) -> None:
        self._ask, self._coverage = ask, coverage
        self.prefill, self.decode = Side(**config["prefill"]), Side(**config["decode"])
        (refused,) = ask(("open", {"prefill": config["prefill"], "decode": config["decode"]}))
        self.refused = Refused(**refused) if refused else None
        self._content = [Content(self.decode, rank) for rank in range(self.decode.ranks)]
        self._moved = 0
        self._used: set[int] = set()
        """Blocks of the decoding side that a prompt has had."""
        self._connected()

    def _connected(self) -> None:
        refused, alike = self.refused, self.prefill == self.decode
        self._coverage.event(seen.ALIKE, alike and not refused)
        self._coverage.event(seen.REFUSED, refused)
        if alike and not (refused and refused.alone):
            self._coverage.check(seen.EQUAL, not refused, lambda: f"refused: {refused}")
        if refused is None:
            return
        kind, _, words_ = refused.why.partition(": ")
        said = words_ if kind.endswith("Error") else refused.why
        self._coverage.check(
            seen.REASON,
            " " in said,
            lambda: f"the pair is refused with {refused.why!r}",
            facts={"why": refused.why},
        )

    def apply(self, verb: str, **arguments: Any) -> object:
        """Move a prompt, and compare."""
        del verb
        if self.refused:
            return IGNORED
        self._moved += 1
        prompt = self._prompt(**arguments)
        (answer,) = self._ask(("move", vars(prompt)))
        moved = Moved(**answer)
        self._cover(prompt)
        fine = self._coverage.check(
            seen.WHOLE,
            not moved.error,
            lambda: f"{_of(prompt)}: {moved.error}",
            facts={"error": moved.error, "prompt": vars(prompt)},
        )
        if fine:
            self._compare(prompt, moved)
            self._leases(prompt, moved)
        self._used |= {*prompt.decode}
        return "" if fine else moved.error

    def _prompt(
        self, *, tokens: int, cached: int, prefill: list[int], decode: list[int], turn: int
    ) -> Prompt:
        """Make a prompt from draws; tables are as long as its tokens need."""
        ranks = [*range(self.decode.ranks)]
        turn %= len(ranks)
        length = self.decode.length(tokens)
        return Prompt(
            number=self._moved,
            tokens=tokens,
            cached=min(cached, length),
            prefill=prefill[: self.prefill.length(tokens)],
            decode=decode[:length],
            order=ranks[turn:] + ranks[:turn],
        )

    # --- content ---

    def _compare(self, prompt: Prompt, moved: Moved) -> None:
        for rank, text in enumerate(moved.content):
            known = self._content[rank]
            found = np.frombuffer(b64decode(text), np.int64).reshape(known.words.shape)
            own = known.expect(self.decode, rank, prompt)
            wrong = known.sure & (found != known.words).any(-1)
            self._judge(seen.CONTENT, prompt, rank, found, wrong & own)
            self._judge(seen.OTHERS, prompt, rank, found, wrong & ~own)
            known.sure &= ~wrong  # after a known failure

    def _judge(self, kind: str, prompt: Prompt, rank: int, found: Words, wrong: Mask) -> None:
        """Check that no slot is wrong; the sentence has the content of the first one that is."""
        places = [tuple(each) for each in np.argwhere(wrong).tolist()]
        layer, block, index, offset = places[0] if places else (0, 0, 0, 0)
        table_index = prompt.decode.index(block) if block in prompt.decode else -1
        slot = Origin(
            layer,
            self.decode.of_rank(rank)[index],
            self.decode.position(rank, table_index, offset),
        )
        origin = self._origin(prompt, found[places[0]]) if places else slot
        self._coverage.check(
            kind,
            not places,
            lambda: (
                f"{_of(prompt)}: {len(places)} slots of worker {rank} are wrong; the first one, "
                f"in block {block}, is that of {slot}, and has {origin or 'no content of it'}"
            ),
            facts={"prompt": vars(prompt), "rank": rank, "slot": slot, "origin": origin},
        )

    def _origin(self, prompt: Prompt, found: Words) -> Origin | None:
        """Return whose content a slot has; None: that of no token of the prompt."""
        heads = range(self.prefill.heads)
        every = words(prompt.number, self.prefill.layers, heads, range(prompt.tokens))
        places = np.argwhere((every == found).all(-1)).tolist()
        return Origin(*places[0]) if places else None

    def _leases(self, prompt: Prompt, moved: Moved) -> None:
        """Judge when each prefilling worker lets go."""
        for source in range(self.prefill.ranks):
            reads = [n for n, ranks in enumerate(moved.read) if source in ranks]
            freed = [n for n, ranks in enumerate(moved.freed) if source in ranks]
            self._lease(f"{_of(prompt)}: prefilling worker {source}", reads, freed)

    def _lease(self, what: str, reads: list[int], freed: list[int]) -> None:
        last = max(reads, default=-1)
        self._coverage.check(
            seen.HELD,
            all(n >= last for n in freed),
            lambda: f"{what} lets go in turn {freed}, the last one reads in turn {last}",
        )
        self._coverage.check(
            seen.FREED,
            len(freed) == 1,
            lambda: f"{what} lets go {len(freed)} times, expected once",
        )

    def _cover(self, prompt: Prompt) -> None:
        mine, theirs = self.decode, self.prefill
        event = self._coverage.event
        inside = prompt.tokens % (mine.block_size * mine.context) > 0
        moves = prompt.cached < len(prompt.decode)
        event(seen.TAIL, inside)
        event(seen.CACHED, prompt.cached)
        event(seen.CACHED_TAIL, prompt.cached and inside and moves)
        event(seen.ALL_CACHED, not moves)
        event(seen.REUSED, self._used & {*prompt.decode[prompt.cached :]})
        event(seen.UNEQUAL, mine.block_size != theirs.block_size)
        event(seen.LAYOUTS, mine.layout != theirs.layout)
        event(seen.KERNEL, mine.kernel or theirs.kernel)
        event(seen.LATENT, mine.latent)
        event(seen.GATHERED, theirs.context > mine.context)
        event(seen.SCATTERED, mine.context > theirs.context)
        whole = not mine.latent
        event(seen.SPLIT, whole and len(theirs.of_rank(0)) > len(mine.of_rank(0)))
        event(seen.MERGED, whole and len(theirs.of_rank(0)) < len(mine.of_rank(0)))
        event(seen.COPIES_SENT, whole and theirs.ranks > theirs.heads)
        event(seen.COPIES_TAKEN, whole and mine.ranks > mine.heads)


def _of(prompt: Prompt) -> str:
    cached = f", of which {prompt.cached} blocks are cached" if prompt.cached else ""
    return f"prompt {prompt.number} of {prompt.tokens} tokens{cached}"
