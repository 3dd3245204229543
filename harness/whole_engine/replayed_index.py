"""The prefix index as a router rebuilds it from events, counted per key and group (W8)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from kvproof.harness.model.records import CacheEvent
from kvproof.harness.whole_engine.findings import Findings

REPLAY = "events_replay_to_the_index"


class ReplayedIndex:
    """Counts copies of each key; one removal takes one copy."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._copies: Counter[tuple[str, int]] = Counter()
        self._own: Counter[tuple[str, int]] = Counter()
        """The same without what other tiers clear: their events name no tier."""
        self._early: list[tuple[str, int]] = []
        """Removals that came before their stores."""
        self._resets = 0
        """Resets of this tier's pool whose events have not come yet."""

    def reset(self) -> None:
        """Expect the event of a reset that was done."""
        self._resets += 1

    def adopt(self) -> None:
        """Go on without what other tiers have cleared."""
        self._copies = Counter(self._own)
        self._early.clear()

    def apply(self, events: Iterable[CacheEvent]) -> None:
        """Take events in the order of their publication."""
        for event in events:
            _replay(self._copies, event)
            if self._copies[event.key, event.group] < 0:
                self._early.append((event.key, event.group))
            if event.kind != "cleared" or self._is_own():
                _replay(self._own, event)
            if not event.tier:
                self._findings.saw("the index is cleared", event.kind == "cleared")
                self._findings.saw(f"blocks are {event.kind} in the index", event.key)

    def _is_own(self) -> bool:
        own, self._resets = self._resets > 0, max(0, self._resets - 1)
        return own

    def compare(
        self, index: Collection[tuple[str, int]], *, unpublished: Iterable[CacheEvent]
    ) -> None:
        """Check that the replayed and the unpublished events together give the engine's index."""
        copies, own, to_come = Counter(self._copies), Counter(self._own), list(unpublished)
        for event in to_come:
            _replay(copies, event)
            if event.kind != "cleared" or self._resets:
                _replay(own, event)
        found = {key for key, count in copies.items() if count > 0}
        negative = [*self._early, *(key for key, count in copies.items() if count < 0)]
        missing, extra = set(index) - found, found - set(index)
        self._findings.check(
            REPLAY,
            not (missing or extra or negative),
            lambda: (
                f"the index has {len(index)} entries, the events give {len(found)}: "
                f"{sorted(missing)[:2]} were never stored, {sorted(extra)[:2]} were never removed, "
                f"{negative[:2]} were removed more often than stored"
            ),
            facts={"without_other_clears": {k for k, n in own.items() if n > 0} == set(index)},
        )


def _replay(copies: Counter[tuple[str, int]], event: CacheEvent) -> None:
    if event.tier:
        return
    if event.kind == "cleared":
        copies.clear()
    if event.key:
        copies[event.key, event.group] += 1 if event.kind == "stored" else -1
