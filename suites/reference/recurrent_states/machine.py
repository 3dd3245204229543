"""The cache of states, its model, and a memory with the content of each row.

A state is the text that it has read. Copies into a checkpoint land as late as they may, when the
producer's pin goes; copies out of it when the restore's pin goes. So a row that is reused too early
ends up with the wrong text.
"""

from __future__ import annotations

from array import array
from typing import Any

from kvproof.reference.core.checkpoint import Checkpoint
from kvproof.reference.states.batch_copies import step_copies
from kvproof.suites.reference.recurrent_states import batches, plans
from kvproof.suites.reference.recurrent_states.agreement import (
    check_evictions,
    check_outcome,
    check_records,
    check_replaced,
    check_rows,
)
from kvproof.suites.reference.recurrent_states.model import DONE, HUNG, REFUSED, RESERVED
from kvproof.suites.reference.recurrent_states.pair import Pair


class RecurrentStatesMachine(Pair):
    """Verbs are the methods that do not begin with an underscore."""

    def apply(self, verb: str, /, **arguments: Any) -> object:
        """Run one operation and compare everything (see `Machine`)."""
        if verb == "runs":
            return batches.check_runs(self.coverage, **arguments)
        if verb == "chain":
            return plans.check_chain(self.coverage, **arguments)
        if arguments.get("number", -1) >= len(self.checkpoints):
            return None
        self.model.evicted, self.evictions = [], []
        answer = getattr(self, verb)(**arguments)
        if answer is not None:
            check_evictions(self, verb)
            check_records(self, verb)
            check_rows(self)
            self.note()
        return answer

    # --- requests ---

    def resume(self, request: str, text: str) -> object:
        outcome = None if request in self.model.running else self.arrive(request, text)
        return self.reserve(request, decode=False) if outcome == DONE else outcome

    def arrive(self, request: str, text: str) -> object:
        """Begin a request from its best checkpoint; a running one asks for its row again."""
        if request in self.model.running:
            self.coverage.event("a running request begins again")
            return self._acquire(request)
        if request in self.model.restoring:
            return None
        found = [
            number
            for number, record in enumerate(self.model.records)
            if record.stage == HUNG and text.startswith(self.contents[number])
        ]
        best = max(found, key=lambda number: (len(self.contents[number]), number), default=None)
        if best is not None:
            self.do("pin", best, request)
        outcome = self._acquire(request)
        if outcome == DONE:
            self.texts[request] = text
            self.read[request] = 0 if best is None else len(self.contents[best])
            self.memory.write(self.row(request), "" if best is None else "unknown")
        elif best is not None:
            self.do("unpin", request)
        return outcome

    def _acquire(self, request: str) -> str:
        before, reported = self.cache.running.get(request), len(self.evictions)
        outcome = self.model.acquire(request)
        ids = self.cache.acquire(request)
        self.coverage.event("a running request evicts a checkpoint", len(self.evictions) > reported)
        found = REFUSED if ids is None else DONE
        check_outcome(self, "acquire", outcome, found)
        self.coverage.check(
            "a_running_request_gets_its_row_back",
            before is None or ids == before,
            lambda: f"running request {request} had {_list(before)} and got {_list(ids)}",
        )
        return found

    def step(self, request: str, count: int) -> object:
        """Read `count` more tokens."""
        if not self.settled(request) or self.read[request] + count > len(self.texts[request]):
            return None
        self.check_own(request)
        self.read[request] += count
        self.memory.write(self.row(request), self.state(request))
        return DONE

    def drafts_of(self, request: str, count: int) -> object:
        """Verify `count` drafts: the state after each lies in a row of its own."""
        running = request in self.model.running
        if running and request not in self.model.drafts:
            tail = len(self.texts[request]) - self.read[request]
            if not self.settled(request) or count > tail:
                return None
        outcome = self.model.acquire_drafts(request, count)
        rows = self.attempt(lambda: self.cache.acquire_drafts(request, count))
        check_outcome(self, "acquire_drafts", outcome, rows if isinstance(rows, str) else DONE)
        self.coverage.event("draft rows are refused", outcome == REFUSED)
        if outcome == DONE and isinstance(rows, list):
            self.drafts[request] = [list(ids) for ids in rows]
            for number, ids in enumerate(self.drafts[request], 1):
                self.memory.write(ids, self.texts[request][: self.read[request] + number])
        return outcome

    def keep(self, request: str, accepted: int) -> object:
        """End the verification: so many drafts are accepted."""
        outcome = self.model.keep_draft(request, accepted)
        kept = self.attempt(lambda: self.cache.keep_draft(request, accepted))
        check_outcome(self, "keep", outcome, kept if isinstance(kept, str) else DONE)
        if outcome == DONE:
            drafts = len(self.drafts.pop(request))
            self.coverage.event("a draft is rejected", accepted < drafts)
            self.coverage.event("all drafts are accepted", drafts and accepted == drafts)
            self.read[request] += accepted
            self.check_own(request, "rejected_drafts_leave_no_rows")
        return outcome

    def verify(self, request: str, count: int, accepted: int) -> object:
        """Verify drafts and end that at once."""
        outcome = self.drafts_of(request, count)
        return self.keep(request, min(accepted, count)) if outcome == DONE else outcome

    def release(self, request: str) -> object:
        """End a request, running or not."""
        mine = [record for record in self.model.records if record.request == request]
        self.coverage.event("a release ends a reservation", any(r.stage == RESERVED for r in mine))
        self.coverage.event("a release unpins a restore", request in self.model.restoring)
        self.cache.release(request)
        self.texts.pop(request, None)
        self.read.pop(request, None)
        self.drafts.pop(request, None)
        return self.model.release(request)

    def remember(self, request: str, text: str, count: int, *, decode: bool, land: bool) -> object:
        if request not in self.model.running:
            self.arrive(request, text)
        if request in self.model.restoring:
            self.unpin(request)
        self.step(request, count)
        before = len(self.checkpoints)
        self.reserve(request, decode=decode)
        for number in range(before, len(self.checkpoints)):
            self.publish(number, saved=land and decode)
            if land and not decode:
                self.saved(number)
        return len(self.checkpoints) - before

    # --- checkpoints ---

    def reserve(self, request: str, *, decode: bool) -> object:
        """Reserve a checkpoint of the present state, or of the one that a restore brings."""
        running = request in self.model.running
        if request in self.model.drafts:
            return None
        latest = self.model.latest(request)
        only_own = self.model.free == 0 and self.model.order == [latest]
        tokens = self.read.get(request, 0)
        outcome = self.model.reserve(request, tokens, decode=decode)
        made = self.attempt(lambda: self.cache.reserve(request, tokens, replaceable=decode))
        self.coverage.event("only its own decode checkpoint could go", running and only_own)
        self.coverage.check(
            "decode_checkpoints_go_when_their_successor_is_certain",
            latest is None or self.checkpoints[latest].status != "absent",
            lambda: f"decode checkpoint {latest} went for one that is only reserved",
        )
        check_outcome(self, "reserve", outcome, made if isinstance(made, str) else DONE)
        if isinstance(made, Checkpoint):
            self.memory.write(list(made.ids), "reserved")
        if isinstance(made, Checkpoint) and outcome == DONE:
            self.checkpoints.append(made)
            self.contents.append(self.state(request))
            idle = not self.shared and not self.config["budget"]
            self.coverage.event("a checkpoint without budget borrows a row", idle)
        return outcome

    def publish(self, number: int, *, saved: bool) -> object:
        """Queue the copy into a reserved checkpoint, and publish it; it may be `saved` at once."""
        record = self.model.records[number]
        if record.stage == RESERVED:
            request = record.request
            if not self.settled(request) or self.state(request) != self.contents[number]:
                return None
            self.check_own(request)
            self.in_flight[number] = list(self.checkpoints[number].ids)
            old = self.model.latest(request) if record.decode else None
            pinned = old is not None and self.model.records[old].pins
            self.coverage.event("a pinned decode checkpoint is not replaced", pinned)
        reported, expected = len(self.evictions), len(self.model.evicted)
        outcome = self.do("publish", number, saved=saved)
        if saved:
            self.land(number)
            self.coverage.event("a checkpoint is published after its copy")
        check_replaced(self, self.evictions[reported:], self.model.evicted[expected:])
        return outcome

    def saved(self, number: int) -> object:
        """Let the copy land, and drop the producer's pin."""
        if number in self.in_flight:
            producer = self.model.records[number].request
            self.coverage.event(
                "a copy lands after its producer is gone", producer not in self.model.running
            )
            self.land(number)
        return self.do("saved", number)

    def pin(self, number: int, request: str) -> object:
        """Pin for a request that does not run, or try a forbidden pin."""
        legal = self.model.records[number].stage == HUNG and request not in self.model.restoring
        if legal and request in self.model.running:
            return None
        return self.do("pin", number, request)

    def unpin(self, request: str) -> object:
        """Let the copy of a restore land, and drop its pin."""
        number = self.model.restoring.get(request)
        if number is not None and request in self.model.running:
            self.land(number)
            source, row = list(self.checkpoints[number].ids), self.row(request)
            self.memory.copy(step_copies([(source, row)], [], rows=self.rows).restores)
            prop = "checkpoints_hold_exactly_their_tokens"
            self.memory.check(prop, row, self.contents[number], f"{request}, restored,")
            self.coverage.event("a restore lands")
        return self.do("unpin", request)

    def discard(self, number: int) -> object:
        """Give a reservation up."""
        return self.do("discard", number)

    def drop(self, number: int) -> object:
        return self.do("drop", number)

    def detach(self, number: int) -> object:
        return self.do("detach", number)

    def touch(self, number: int) -> object:
        """Use a checkpoint."""
        return self.do("touch", number)

    def evict(self) -> object:
        outcome = self.model.evict()
        victim = self.cache.evict_one()
        check_outcome(self, "evict_one", outcome, REFUSED if victim is None else DONE)
        return outcome

    def clear(self) -> object:
        self.cache.clear()
        return self.model.clear()

    # --- the rest of the machine ---

    def hold(self, count: int) -> object:
        if not self.shared:
            return None
        self.pool.hold(count)
        left = self.config["blocks"] - len(self.pool.held)
        self.model.capacity = left // self.width
        return DONE

    def batch(self, order: list[int], cut: int) -> object:
        """Build batches of the running requests, and re-order, shrink and merge them."""
        lines = [self._line(request) for request in sorted(self.model.running)]
        return batches.check_batch(self.coverage, lines, order, cut, self.rows)

    def _line(self, request: str) -> batches.Line:
        restore = self.cache.restores.get(request)
        mine = [
            checkpoint.ids
            for record, checkpoint in zip(self.model.records, self.checkpoints, strict=True)
            if record.request == request and record.stage == RESERVED
        ]
        ids = None if restore is None else restore.ids
        return array("i", self.row(request)), ids, mine[0] if mine else None


def _list(ids: object) -> object:
    return None if ids is None else list(ids)  # type: ignore[call-overload] # ids or None
