"""Recurrent states under the shadow memory: what a step reads, writes, restores and saves.

Everything is applied when a step is scheduled, in the order in which the device runs it: copies
in, the forward pass, copies out (S4).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvproof.harness.contract.target import Scheduled, StateUse, Table
from kvproof.harness.oracle.request_state import NULL_BLOCK, Live
from kvproof.harness.oracle.shadow_memory import ShadowMemory, Writer
from kvproof.harness.oracle.violation import INVARIANT, SHADOW, Violation, describe_writer

if TYPE_CHECKING:
    from kvproof.harness.oracle.session import Session

_READ = "states_are_of_exactly_the_tokens_read"
_COPIES = "state_copies_are_disjoint"
_OWNER = "state_blocks_have_one_owner"

Copies = Sequence[tuple[int, int, int]]


class States:
    """Judges what the steps of one session do to states."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._check = session.check
        self._layout = layout = session.layout
        self._place = {group: index for index, group in enumerate(layout.states)}
        self.memory = session.shadow
        if layout.separate:
            self.memory = ShadowMemory(
                num_blocks=session.config.state_rows,
                block_size=len(layout.states),
                host_blocks=session.config.host_rows,
            )

    def keys(self, group: int, ids: Table) -> tuple[int, ...]:
        """Return what identifies blocks of a state: themselves, or their slot in a row."""
        if not self._layout.separate:
            return ids
        return tuple(row * len(self._layout.states) + self._place[group] for row in ids)

    def slots(self, group: int, block: int) -> slice:
        """Return where a block of a state, or the slot of its row, lies in `memory`."""
        if not self._layout.separate:
            return self.memory.block(block)
        slot = self.keys(group, (block,))[0]
        return slice(slot, slot + 1)

    def saved(self, live: Live, answer: Scheduled) -> tuple[tuple[int, int, Table], ...]:
        """Return (tokens, group, blocks) of the checkpoints that every group saves."""
        found: dict[int, dict[int, list[int]]] = {}
        for group, _, destination in self._of_states(answer.saves):
            found.setdefault(answer.stop, {}).setdefault(group, []).append(destination)
        running = self._session.profile.checkpoints == "running"
        for use in answer.states:
            for tokens, ids in use.writes:
                ends = running and not live.drafts and tokens % self._layout.unit == 0
                if ends or tokens < answer.stop - live.drafts:
                    found.setdefault(tokens, {}).setdefault(use.group, []).extend(ids)
        whole = {group: self._layout.parts(group) for group in self._layout.states}
        return tuple(
            (tokens, group, tuple(ids))
            for tokens, groups in found.items()
            if {group: len(ids) for group, ids in groups.items()} == whole
            for group, ids in groups.items()
        )

    def used(self, answer: Scheduled) -> set[int]:
        """Return the keys of all states that a step writes, reads and copies."""
        moved = self._of_states((*answer.saves, *answer.copies))
        keys = self.written(answer)
        keys.update(key for g, source, _ in moved for key in self.keys(g, (source,)))
        keys.update(key for use in answer.states for key in self.keys(use.group, use.read))
        return keys

    def written(self, answer: Scheduled) -> set[int]:
        """Return the keys of all states that a step writes or copies to."""
        moved = self._of_states((*answer.saves, *answer.copies))
        keys = {key for g, _, target in moved for key in self.keys(g, (target,))}
        for use in answer.states:
            for _, ids in use.writes:
                keys.update(self.keys(use.group, ids))
        return keys

    def restore(self, live: Live, answer: Scheduled) -> None:
        """Apply the copies before the step and judge what it reads."""
        self._copy(live, self._of_states(answer.copies))
        for use in answer.states:
            self._read(live, use, answer.start)

    def compute(self, live: Live, answer: Scheduled) -> None:
        """Apply the step's writes, then its saves."""
        for use in answer.states:
            self._write(live, use, answer)
        self._copy(live, self._of_states(answer.saves))

    def _of_states(self, copies: Copies) -> Copies:
        return [copy for copy in copies if copy[0] in self._place]

    def _copy(self, live: Live, copies: Copies) -> None:
        if not copies:
            return
        sources = {key for g, source, _ in copies for key in self.keys(g, (source,))}
        targets = [key for g, _, target in copies for key in self.keys(g, (target,))]
        named = [block for _, source, target in copies for block in (source, target)]
        self._check(
            _COPIES,
            INVARIANT,
            len(set(targets)) == len(targets)
            and not sources & set(targets)
            and all(NULL_BLOCK < block < self.memory.num_blocks for block in named),
            lambda: (
                f"a step of request {live.request.id} copies states {list(copies)}: destinations "
                "must be different, no source, and in range"
            ),
        )
        for group, source, target in copies:
            self.memory.copy_slots(self.slots(group, source), self.slots(group, target))

    def _read(self, live: Live, use: StateUse, start: int) -> None:
        """The state that a step begins with has read exactly the tokens before it (S1)."""
        layout, name = self._layout, live.request.id
        self._known(live, use.group, use.read)
        parts = layout.parts(use.group) if start else 0
        self._check(
            _READ,
            SHADOW,
            len(use.read) == parts,
            lambda: (
                f"request {name} goes on from token {start} and reads {len(use.read)} blocks of "
                f"state in group {use.group}, not {parts}"
            ),
        )
        for part, block in enumerate(use.read):
            self._part(live, use.group, part, block, start)

    def _part(self, live: Live, group: int, part: int, block: int, tokens: int) -> None:
        self._session.checks[_READ] += 1
        slots = self.slots(group, block)
        expected = live.prints[tokens - 1] ^ self._layout.state_salts[group, part]
        if self.memory.holds(slots, expected):
            return
        found = self.memory.describe(slots.start, tokens)
        read = f"; it has read {found.written_as + 1} tokens" if found.writer else ""
        raise Violation(
            _READ,
            SHADOW,
            f"request {live.request.id} goes on from token {tokens} with part {part} of the state "
            f"of group {group} in {self._called(block)}, which holds another state",
            detail=f"found {describe_writer(found.writer, found.written_as)}{read}",
            suspects=() if self._layout.separate else (block,),
        )

    def _called(self, block: int) -> str:
        return f"row {block}" if self._layout.separate else f"block {block}"

    def _known(self, live: Live, group: int, ids: Table) -> None:
        """Ids of states are in range, and never the null block or row 0."""
        self._check(
            _OWNER,
            INVARIANT,
            all(NULL_BLOCK < block < self.memory.num_blocks for block in ids),
            lambda: f"request {live.request.id} uses {ids} as a state of group {group}",
        )

    def _write(self, live: Live, use: StateUse, answer: Scheduled) -> None:
        name, group = live.request.id, use.group
        lengths = [tokens for tokens, _ in use.writes]
        kept = range(answer.stop - live.drafts, answer.stop + 1)
        self._check(
            _READ,
            SHADOW,
            set(kept) <= set(lengths)
            and all(answer.start < tokens <= answer.stop for tokens in lengths),
            lambda: (
                f"a step of request {name} computes [{answer.start}, {answer.stop}) with "
                f"{live.drafts} drafts and keeps states of group {group} after {lengths} tokens"
            ),
        )
        writer = Writer(live.request, live.epoch, answer.step, group)
        for tokens, ids in use.writes:
            self._known(live, group, ids)
            for part, block in enumerate(ids):
                content = live.prints[tokens - 1] ^ self._layout.state_salts[group, part]
                self.memory.fill(self.slots(group, block), tokens - 1, content, writer)

    def blocks(self) -> set[int]:
        """Return the blocks of the shared pool in which states lie."""
        session, layout = self._session, self._layout
        if layout.separate:
            return set()
        found = {b for step in session.steps.values() for b in (*step.held, *step.sources)}
        for live in session.live.values():
            found.update(block for g in layout.states for block in live.groups[g])
        cached = session.ledger.cached.items()
        return found | {block for block, entry in cached if entry.group in layout.states}

    def rows_in_use(self, but: Live | None = None) -> set[int]:
        """Return the rows of running states and of steps in flight, except those of `but`."""
        session, place = self._session, max(1, len(self._place))
        used = {slot // place for step in session.steps.values() for slot in step.slots}
        used.update(slot // place for slots in session.pinned_slots.values() for slot in slots)
        for live in session.live.values():
            if live is not but:
                used.update(row for g in self._layout.states for row in live.groups[g])
        return used

    def free_rows(self) -> int:
        """Return the rows of the separate pool that are free for sure."""
        place = len(self._place)
        used = self.rows_in_use() | {slot // place for slot in self._session.ledger.rows}
        return self._session.config.state_rows - 1 - len(used)

    def owned(self, live: Live, answer: Scheduled) -> None:
        """What a step writes a state to belongs to nobody else (S3, B1)."""
        mine = self.written(answer)
        others = {key: name for name, keys in self._others(live) for key in keys}
        stolen = next((key for key in sorted(mine) if key in others), None)
        self._check(
            _OWNER,
            INVARIANT,
            stolen is None,
            lambda: (
                f"a step of request {live.request.id} writes a state to "
                f"{self._called(stolen or 0)}, which {others[stolen or 0]} still uses"
            ),
        )

    def _others(self, live: Live) -> list[tuple[str, set[int]]]:
        """Return (who, keys) of states in use: running ones, and those of steps in flight."""
        session, found = self._session, []
        for other in session.live.values():
            if other is not live and other.groups:
                keys = {k for g in self._layout.states for k in self.keys(g, other.groups[g])}
                found.append((f"request {other.request.id}", keys))
        for number, step in session.steps.items():
            if step.live is not live:
                keys = set(step.slots) if self._layout.separate else set(step.blocks)
                found.append((f"step {number} of request {step.live.request.id}", keys))
        return found
