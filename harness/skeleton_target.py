"""A target to start from: the verbs that kvproof calls, around your cache manager.

It allocates blocks and reuses none, so `cached_blocks_are_those_stored` fails until `admit` finds
cached blocks and `complete` registers full ones. Replace each part marked ENGINE by calls into your
engine. Then

kvproof run --target kvproof_target:make_target --budget debug

The page "Write a target" in kvproof's documentation explains the records.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kvproof.harness.api import (
    Completed,
    Evicted,
    Inspection,
    PolicyProfile,
    Profile,
    Refused,
    Released,
    Request,
    Scheduled,
    TargetConfig,
    Usage,
)

PROFILE = Profile(
    engine="my-engine",
    version="0.1",
    block_sizes=(1, 4, 16),
    policy=PolicyProfile(duplicates="shared"),
    unsupported={"spans": "text only"},
)
"""Claims of the engine. Properties about anything else are skipped with these reasons."""


@dataclass
class Live:
    """A request that holds blocks."""

    tokens: tuple[int, ...]
    computed: int = 0
    """Positions [0, computed) are in the cache, or in a step under way."""
    blocks: list[int] = field(default_factory=list)


class MyTarget:
    """The worker's view of one engine: tables, computed ranges, counts; no hashes."""

    profile = PROFILE

    def __init__(self, config: TargetConfig) -> None:
        """Make an engine with `config.num_blocks` blocks, the null block 0 among them."""
        self.size = config.block_size  # ENGINE: make it here; config.prefix_caching may be False
        self.total = config.num_blocks - 1
        self.free = list(range(1, config.num_blocks))
        self.live: dict[str, Live] = {}
        self.steps: dict[int, str] = {}
        self.step = 0

    def admit(self, request: Request, compute: int | None = None) -> Scheduled | Refused:
        """Start a request: match its prompt, allocate, schedule `compute` tokens (all: None)."""
        live = Live(request.tokens)  # ENGINE: blocks of the longest cached prefix, and their tokens
        if refused := self._room(live):
            return refused
        self.live[request.id] = live
        return self._schedule(request.id, hit=live.computed, compute=compute)

    def extend(
        self, request_id: str, tokens: tuple[int, ...] = (), compute: int | None = None
    ) -> Scheduled | Refused:
        """Append `tokens` (an answer, or none for the next chunk), and schedule the rest."""
        live = self.live[request_id]
        longer = Live(live.tokens + tokens, live.computed, live.blocks)
        if refused := self._room(longer):
            return refused
        self.live[request_id] = longer
        return self._schedule(request_id, hit=0, compute=compute)

    def complete(self, step: int) -> Completed:
        """End a step: its blocks are written now."""
        live = self.live.get(self.steps.pop(step))  # ENGINE: full blocks become reusable here
        if live is None:  # the request ended before its step
            return Completed(step)
        return Completed(step, (tuple(live.blocks),), (tuple(live.blocks),))

    def finish(self, request_id: str) -> Released:
        """Release all blocks of a request. An unknown id releases nothing."""
        live = self.live.pop(request_id, None)
        if live is None:
            return Released()
        self.free += live.blocks  # ENGINE: blocks that are cached stay so
        return Released((tuple(live.blocks),))

    cancel = preempt = finish

    def inspect(self) -> Inspection:
        """Return the engine's own counts; free + held + cached = total."""
        held = {block for live in self.live.values() for block in live.blocks}
        return Inspection(Usage(self.total, free=len(self.free), held=len(held), cached=0))

    def evict(self, count: int) -> Evicted:
        """Evict up to `count` cached blocks that no request holds."""
        return Evicted()  # ENGINE

    def reset(self) -> Released:
        """Forget everything cached; running requests keep their blocks."""
        return Released()  # ENGINE

    def close(self) -> None:
        """Release what lies outside of the process's memory."""

    def _room(self, live: Live) -> Refused | None:
        """Refuse what does not fit, and change nothing then."""
        whole = -(-len(live.tokens) // self.size)
        needed = whole - len(live.blocks)
        if needed <= len(self.free):
            return None
        reason = "never_fits" if whole > self.total else "no_space"
        return Refused(reason, needed=needed, available=len(self.free))

    def _schedule(self, request_id: str, *, hit: int, compute: int | None) -> Scheduled:
        live = self.live[request_id]
        while len(live.blocks) * self.size < len(live.tokens):
            live.blocks.append(self.free.pop(0))
        start, end = live.computed, len(live.tokens)
        live.computed = end if compute is None else min(start + compute, end)
        self.step += 1
        self.steps[self.step] = request_id
        blocks = (tuple(live.blocks),)  # one tuple for each group of layers
        return Scheduled(self.step, hit, start, live.computed, blocks, tables=blocks)


def make_target(config: TargetConfig) -> MyTarget:
    """Return a new engine; kvproof calls this for every history."""
    return MyTarget(config)
