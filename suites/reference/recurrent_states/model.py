"""The expected behaviour of a cache of recurrent states, with sets and without rows.

Written from the rules alone. A record is a checkpoint; a *stage* is its position in the life cycle,
and its pins are a set of names: "save", or the requests that restore from it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

RESERVED, HUNG, LOOSE, GONE = "reserved", "hung", "loose", "gone"

FORBIDDEN, REFUSED, DONE = "forbidden", "refused", "done"


@dataclass
class Record:
    """One checkpoint."""

    request: str
    tokens: int
    decode: bool
    stage: str = RESERVED
    pins: set[str] = field(default_factory=set)

    @property
    def status(self) -> str:
        hung = "pinned" if self.pins else "ready"
        return {RESERVED: "reserved", HUNG: hung, LOOSE: "detached", GONE: "absent"}[self.stage]


class Model:
    """Counts states, not rows: `capacity` of them fit."""

    def __init__(self, capacity: int, most_running: int) -> None:
        self.capacity = capacity
        self.most_running = most_running
        self.running: set[str] = set()
        self.drafts: dict[str, int] = {}
        self.records: list[Record] = []
        self.restoring: dict[str, int] = {}
        self.order: list[int] = []
        """Published records without pins, the next victim first."""
        self.evicted: list[int] = []
        """Evicted or replaced by the last operation."""

    @property
    def free(self) -> int:
        """States that fit without evicting anything."""
        stored = sum(record.stage != GONE for record in self.records)
        return self.capacity - len(self.running) - sum(self.drafts.values()) - stored

    def latest(self, request: str) -> int | None:
        """Return the published decode checkpoint that the next one of a request replaces."""
        found = [
            number
            for number, record in enumerate(self.records)
            if record.request == request and record.decode and record.stage == HUNG
        ]
        return found[-1] if found else None

    # --- requests ---

    def acquire(self, request: str) -> str:
        """Let a request run."""
        if request in self.running:
            return DONE
        if self.most_running and len(self.running) == self.most_running:
            return REFUSED
        if not self._make_room(1):
            return REFUSED
        self.running.add(request)
        return DONE

    def acquire_drafts(self, request: str, count: int) -> str:
        if request not in self.running or request in self.drafts:
            return FORBIDDEN
        if not self._make_room(count):
            return REFUSED
        self.drafts[request] = count
        return DONE

    def keep_draft(self, request: str, accepted: int) -> str:
        """Keep the state of one draft, or the running one."""
        if accepted not in range(self.drafts.get(request, -1) + 1):
            return FORBIDDEN
        del self.drafts[request]
        return DONE

    def release(self, request: str) -> str:
        """End everything that a request has."""
        self.running.discard(request)
        self.drafts.pop(request, None)
        if request in self.restoring:
            self._unpin(self.restoring.pop(request), request)
        for record in self.records:
            if record.request == request:
                record.decode = False
                if record.stage == RESERVED:
                    record.stage = GONE
        return DONE

    # --- checkpoints ---

    def reserve(self, request: str, tokens: int, *, decode: bool) -> str:
        if request not in self.running:
            return FORBIDDEN
        if not self._make_room(1, spare=self.latest(request)):
            return REFUSED
        self.records.append(Record(request, tokens, decode))
        return DONE

    def publish(self, number: int, *, saved: bool) -> str:
        record = self.records[number]
        if record.stage != RESERVED:
            return FORBIDDEN
        old = self.latest(record.request) if record.decode else None
        record.stage, record.pins = HUNG, {"save"}
        if saved:
            self._unpin(number, "save")
        if old is not None:
            self.records[old].decode = False
            if old in self.order:
                self._evict(old)
        return DONE

    def discard(self, number: int) -> str:
        """Give a reservation up."""
        if self.records[number].stage != RESERVED:
            return FORBIDDEN
        self.records[number].stage = GONE
        return DONE

    def saved(self, number: int) -> str:
        if "save" not in self.records[number].pins:
            return FORBIDDEN
        self._unpin(number, "save")
        return DONE

    def pin(self, number: int, request: str) -> str:
        if self.records[number].stage != HUNG or request in self.restoring:
            return FORBIDDEN
        self.records[number].pins.add(request)
        self.restoring[request] = number
        self._leave_order(number)
        return DONE

    def unpin(self, request: str) -> str:
        if request not in self.restoring:
            return FORBIDDEN
        self._unpin(self.restoring.pop(request), request)
        return DONE

    def touch(self, number: int) -> str:
        if number in self.order:
            self._leave_order(number)
            self.order.append(number)
        return DONE

    def drop(self, number: int) -> str:
        if number not in self.order:
            return FORBIDDEN
        self._leave_order(number)
        self.records[number].stage = GONE
        return DONE

    def detach(self, number: int) -> str:
        record = self.records[number]
        if record.stage != HUNG or not record.pins:
            return FORBIDDEN
        record.stage, record.decode = LOOSE, False
        return DONE

    def evict(self) -> str:
        return DONE if self._evict_first(None) else REFUSED

    def clear(self) -> str:
        for number, record in enumerate(self.records):
            if record.stage == HUNG:
                self.detach(number) if record.pins else self.drop(number)
        return DONE

    # --- helpers ---

    def _make_room(self, count: int, spare: int | None = None) -> bool:
        candidates = [number for number in self.order if number != spare]
        if self.free + len(candidates) < count:
            return False
        while self.free < count:
            self._evict_first(spare)
        return True

    def _evict_first(self, spare: int | None) -> bool:
        candidates = [number for number in self.order if number != spare]
        if candidates:
            self._evict(candidates[0])
        return bool(candidates)

    def _evict(self, number: int) -> None:
        self._leave_order(number)
        self.records[number].stage = GONE
        self.evicted.append(number)

    def _leave_order(self, number: int) -> None:
        self.order = [other for other in self.order if other != number]

    def _unpin(self, number: int, pin: str) -> None:
        record = self.records[number]
        record.pins.discard(pin)
        if record.pins:
            return
        if record.stage == HUNG:
            self.order.append(number)
        else:
            record.stage = GONE
