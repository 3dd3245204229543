"""Two engines, the prompts that are moved, and the content that each slot must have after it."""

from __future__ import annotations

from base64 import b64decode
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvproof.harness.contract.disaggregation import Moved, Prompt, Refused
from kvproof.harness.contract.disaggregation_sides import PARTS, Side, Words, words
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
    """The due content of one decoding worker: for each layer [block, unit, offset]."""

    def __init__(self, side: Side, worker: int) -> None:
        self._side, self._worker = side, worker
        self.layers = side.layers_of(worker)
        shapes = [side.shape(worker, layer) for layer in self.layers]
        self.words = [np.zeros(shape, np.int64) for shape in shapes]
        self.sure: list[Mask] = [np.zeros(shape[:3], bool) for shape in shapes]
        """The others may hold anything."""

    def expect(self, prompt: Prompt) -> list[Mask]:
        """Note a prompt; returns the slots that were moved."""
        return [self._layer(layer, at, prompt) for at, layer in enumerate(self.layers)]

    def _layer(self, layer: int, at: int, prompt: Prompt) -> Mask:
        side, sure = self._side, self.sure[at]
        whose = prompt.number, prompt.tokens
        blocks, offsets, positions, right = side.filled(
            self._worker, layer, prompt.receiver, whose, prompt.tokens
        )
        own = np.zeros_like(sure)
        sure[self._held(layer, prompt)] = False
        moved = np.asarray(positions, np.int64) >= side.start(prompt.cached, prompt.tokens)
        self.words[at][blocks, :, offsets] = right.swapaxes(0, 1)
        sure[blocks, :, offsets] = True
        own[blocks, :, offsets] = (moved | (side.kind(layer) == "s"))[:, None]
        return own

    def _held(self, layer: int, prompt: Prompt) -> list[int]:
        """Return the blocks of a layer that the prompt has."""
        blocks, window, row = prompt.receiver
        return {"f": blocks, "w": window, "s": [row]}[self._side.kind(layer)]

    def split(self, text: str) -> list[Words]:
        """Return the layers of a worker's packed content."""
        found, start = np.frombuffer(b64decode(text), np.int64), 0
        layers = []
        for each in self.words:
            layers.append(found[start : start + each.size].reshape(each.shape))
            start += each.size
        return layers


class DisaggregationMachine:
    """Every move is compared slot by slot, on every decoding worker."""

    def __init__(self, ask: RemoteCalls, config: Config, coverage: Coverage) -> None:
        self._ask, self._coverage = ask, coverage
        self.prefill, self.decode = Side(**config["prefill"]), Side(**config["decode"])
        sides = {side: config[side] for side in ("prefill", "decode")}
        (refused,) = ask(("open", {"planner": config.get("planner", ""), **sides}))
        self.refused = Refused(**refused) if refused else None
        self._pushes = bool(config.get("pushes"))
        self._moves_last = bool(config.get("recomputes"))
        self._content = [Content(self.decode, each) for each in range(self.decode.workers)]
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
        self,
        *,
        tokens: int,
        cached: int,
        prefill: list[int],
        decode: list[int],
        turn: int,
        windows: list[list[int]] | None = None,
        rows: list[int] | None = None,
    ) -> Prompt:
        """Make a prompt from draws; tables are as long as its tokens need."""
        sides = self.prefill, self.decode
        order = [*range(sides[not self._pushes].workers)]
        turn %= len(order)
        length = self.decode.length(tokens)
        tables = zip(sides, windows or [], strict=False)
        return Prompt(
            number=self._moved,
            tokens=tokens,
            cached=min(cached, length - self._moves_last),
            prefill=prefill[: self.prefill.length(tokens)],
            decode=decode[:length],
            order=order[turn:] + order[:turn],
            windows=[side.windowed(table, tokens) for side, table in tables] or [[], []],
            rows=rows or [1, 1],
        )

    # --- content ---

    def _compare(self, prompt: Prompt, moved: Moved) -> None:
        for worker, text in enumerate(moved.content):
            known = self._content[worker]
            own, found = known.expect(prompt), known.split(text)
            for at, each in enumerate(found):
                wrong = known.sure[at] & (each != known.words[at]).any(-1)
                self._judge(seen.CONTENT, prompt, (worker, at), each, wrong & own[at])
                self._judge(seen.OTHERS, prompt, (worker, at), each, wrong & ~own[at])
                known.sure[at] &= ~wrong  # after a known failure

    def _judge(
        self, kind: str, prompt: Prompt, at: tuple[int, int], found: Words, wrong: Mask
    ) -> None:
        """Check that no slot is wrong; the sentence has the content of the first one that is."""
        places = [tuple(each) for each in np.argwhere(wrong).tolist()]
        block, unit, offset = places[0] if places else (0, 0, 0)
        slot = self._slot(prompt, at, block, unit, offset)
        origin = self._origin(prompt, found[places[0]]) if places else slot
        worker = at[0]
        self._coverage.check(
            kind,
            not places,
            lambda: (
                f"{_of(prompt)}: {len(places)} slots of worker {worker} are wrong; the first one, "
                f"in block {block}, is that of {slot}, and has {origin or 'no content of it'}"
            ),
            facts={
                "prompt": vars(prompt),
                "rank": worker,
                "place": (block, unit, offset),
                "slot": slot,
                "origin": origin,
            },
        )

    def _slot(
        self, prompt: Prompt, at: tuple[int, int], block: int, unit: int, offset: int
    ) -> Origin:
        worker, side = at[0], self.decode
        layer = side.layers_of(worker)[at[1]]
        head = side.units(worker, layer)[unit]
        if side.kind(layer) == "s":
            return Origin(layer, head, prompt.tokens if block == prompt.receiver.row else -1)
        table = prompt.receiver.window if side.kind(layer) == "w" else prompt.decode
        index = table.index(block) if block in table else -1
        return Origin(layer, head, side.position(worker, index, offset))

    def _origin(self, prompt: Prompt, found: Words) -> Origin | None:
        """Return whose content a slot has; None: that of no token of the prompt."""
        units = range(max(self.prefill.heads, sum(PARTS)))
        layers = range(self.prefill.layers)
        every = words(prompt.number, layers, units, range(prompt.tokens + 1))
        places = np.argwhere((every == found).all(-1)).tolist()
        return Origin(*places[0]) if places else None

    def _leases(self, prompt: Prompt, moved: Moved) -> None:
        """Judge when each prefilling worker lets go."""
        for source in range(self.prefill.workers):
            self._lease(
                f"{_of(prompt)}: prefilling worker {source}",
                _turns(source, moved.read),
                _turns(source, moved.freed),
            )
        for target in range(self.decode.workers):
            self._arrival(
                f"{_of(prompt)}: decoding worker {target}",
                _turns(target, moved.written),
                _turns(target, moved.arrived),
                waits=prompt.cached < len(prompt.decode),
            )

    def _arrival(self, what: str, written: list[int], arrived: list[int], *, waits: bool) -> None:
        last = max(written, default=-1)
        self._coverage.check(
            seen.ARRIVED,
            waits <= len(arrived) <= 1 and all(turn >= last for turn in arrived),
            lambda: f"{what} has all in turn {arrived}, its last bytes come in turn {last}",
        )

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
        event(seen.STAGES, mine.stages > 1 and theirs.stages == mine.stages)
        event(seen.UNLIKE_STAGES, mine.stages != theirs.stages)
        self._cover_kinds(prompt)

    def _cover_kinds(self, prompt: Prompt) -> None:
        mine, theirs = self.decode, self.prefill
        event, kinds = self._coverage.event, {mine.kind(each) for each in range(mine.layers)}
        unlike = mine.ranks != theirs.ranks
        event(seen.WINDOW, "w" in kinds)
        event(seen.LEFT, "w" in kinds and 0 in prompt.windows[1])
        event(seen.SPLIT_WINDOW, "w" in kinds and unlike)
        event(seen.STAGED_WINDOW, "w" in kinds and mine.stages != theirs.stages)
        event(seen.STATE, "s" in kinds)
        event(seen.SPLIT_STATE, "s" in kinds and theirs.ranks < mine.ranks)
        event(seen.MERGED_STATE, "s" in kinds and theirs.ranks > mine.ranks)


def _turns(worker: int, workers: list[list[int]]) -> list[int]:
    return [turn for turn, each in enumerate(workers) if worker in each]


def _of(prompt: Prompt) -> str:
    cached = f", of which {prompt.cached} blocks are cached" if prompt.cached else ""
    return f"prompt {prompt.number} of {prompt.tokens} tokens{cached}"
