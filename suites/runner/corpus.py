"""Replay the op logs of earlier bugs on a target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec.structs import replace

from kvproof.harness.isolation.handles import Handle
from kvproof.harness.records.events import AnyEvent, Replayed, Skipped, TargetFailed
from kvproof.harness.reproduce import oplog
from kvproof.harness.reproduce.session_play import IMPOSSIBLE
from kvproof.suites.framework.expected_failures import Expected
from kvproof.suites.framework.suite import Suite
from kvproof.suites.runner.replay import property_of, replay, unseen

CORPUS = Path(__file__).parents[1] / "corpus"
"""Op logs of earlier bugs, replayed before anything is generated."""


class Corpus:
    """The logs that concern one target, and why the others do not."""

    def __init__(
        self,
        handle: Handle,
        suites: Sequence[Suite],
        expected: Sequence[Expected],
        write: Callable[[AnyEvent], None],
    ) -> None:
        """`suites`: those of the run's level. `expected`: the target's known failures."""
        self._handle, self._suites, self._expected = handle, suites, expected
        self._write = write

    def replay(self, progress: Callable[[int, int], None]) -> None:
        """Replay each log that applies; calls `progress` with the logs done and their total."""
        deaths: dict[str, TargetFailed] = {}
        concerned = list(filter(self._concerns, sorted(CORPUS.glob("*.json"))))
        found = [path for path in concerned if self._claimed(oplog.load(path))]
        if left_out := [oplog.load(path) for path in concerned if path not in found]:
            self._write(self._unclaimed(left_out))
        logs = iter(found)
        for number, path in enumerate(logs):
            progress(number, len(found))
            event = replay(self._handle, path, died=lambda e: deaths.setdefault(e.message, e))
            if event.outcome == "FIXED":  # its bug was a planted one
                event = replace(event, outcome="PASS")
            self._write(self._excused(event) or event)
            if any(death.kind == "hang" for death in deaths.values()):
                break  # each log would take the limit of an operation
        for path in logs:
            where = f"{path.name} on {self._handle.name}"
            self._write(Skipped(part=where, reason="the target hung in an earlier log"))
        for death in deaths.values():
            self._write(death)

    def _concerns(self, path: Path) -> bool:
        """A log applies to a target judged by its suite if it is portable or was recorded there."""
        log = oplog.load(path)
        judging = [suite for suite in self._suites if suite.name == log.suite and suite.judged]
        return any(suite.component.portable or suite.target == log.target for suite in judging)

    def _claimed(self, log: oplog.OpLog) -> bool:
        """Whether the profile claims a log's block size."""
        return log.config.get("block_size") in (None, *self._handle.profile.block_sizes)

    def _unclaimed(self, logs: Sequence[oplog.OpLog]) -> Skipped:
        sizes = ", ".join(sorted({str(log.config["block_size"]) for log in logs}))
        claimed = ", ".join(map(str, self._handle.profile.block_sizes))
        return Skipped(
            part=f"{len(logs)} logs of the corpus on {self._handle.name}",
            reason=f"their blocks have {sizes} tokens, those of the profile {claimed}",
        )

    def _excused(self, event: Replayed) -> Skipped | None:
        """A log proves nothing where its bug cannot be seen, or something else fails."""
        known = next((each for each in self._expected if self._is(each, event)), None)
        if event.outcome == "FAILED" and known:
            reason = f"{known.property} is expected to fail: {known.reason}"
        elif event.message == IMPOSSIBLE:
            reason = event.message
        elif event.message == unseen(event.expected):
            reason = self._why_not(event.expected)
        else:
            reason = ""
        where = f"{Path(event.path).name} on {event.target}"
        return Skipped(part=where, reason=reason) if reason else None

    @staticmethod
    def _is(entry: Expected, event: Replayed) -> bool:
        if entry.verbs:
            return entry.property == property_of(event)
        return entry.mechanism == event.known

    def _why_not(self, name: str) -> str:
        found = [
            suite.why_not(prop)
            for suite in self._suites
            for prop in suite.properties
            if prop.name == name
        ]
        return found[0] if found else "no suite of this level judges it"
