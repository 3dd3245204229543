"""Run the suites against one target and write verdicts to a run record."""

from __future__ import annotations

import math
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from hypothesis import settings

from kvproof.harness import operations as ops
from kvproof.harness import oplog, script, wording
from kvproof.harness.errors import TargetDied, UsageError
from kvproof.harness.handles import Handle
from kvproof.harness.records import (
    AnyEvent,
    BlockView,
    Exercised,
    Failure,
    HarnessFault,
    PropertyVerdict,
    Replayed,
    Skipped,
    Step,
    TargetFailed,
    TargetStarted,
    Verdict,
)
from kvproof.harness.session import Session
from kvproof.harness.violation import Violation, describe_writer
from kvproof.suites import expected_failures
from kvproof.suites.cache.explore import Exploration, explore
from kvproof.suites.cache.properties import (
    BY_NAME,
    PROPERTIES,
    Property,
    supported,
    why_unsupported,
)
from kvproof.suites.expected_failures import Expected

CORPUS = Path(__file__).parent / "corpus"
"""Op logs of bugs that were found once; replayed before anything is generated."""


MOST_FAILURES = 3
"""Different properties that one run reports; after each the rest is explored anew."""


@dataclass
class Tally:
    """What one or more explorations of a target came to; tallies of workers can be merged."""

    test_cases: int = 0
    operations: Counter[str] = field(default_factory=Counter)
    situations: Counter[str] = field(default_factory=Counter)
    checks: Counter[str] = field(default_factory=Counter)
    hits: Counter[str] = field(default_factory=Counter)
    tolerated: Counter[str] = field(default_factory=Counter)
    failures: dict[str, Failure] = field(default_factory=dict)
    died: TargetFailed | None = None
    interrupted: bool = False
    seconds: float = 0.0

    def merge(self, other: Tally | Exploration) -> None:
        """Add the counts of `other`."""
        self.test_cases += other.test_cases
        for mine, theirs in zip(self._counters(), _counters(other), strict=True):
            mine.update(theirs)
        if isinstance(other, Tally):
            self.failures = other.failures | self.failures
            self.died = self.died or other.died
            self.seconds += other.seconds

    def _counters(self) -> list[Counter[str]]:
        return _counters(self)


def _counters(tally: Tally | Exploration) -> list[Counter[str]]:
    names = ("operations", "situations", "checks", "hits", "tolerated")
    return [getattr(tally, name) for name in names]


class Files(Protocol):
    """Where op logs and scripts of failures go."""

    def write_file(self, name: str, data: bytes) -> Path:
        """Store a file below the run's directory; returns its path."""


class SuiteRun:
    """The core level on one target: corpus, exploration, verdicts."""

    def __init__(self, handle: Handle, files: Files, *, write: Callable[[AnyEvent], None]) -> None:
        self._handle = handle
        self._files = files
        self._write = write
        self._expected: dict[str, Expected] = {}

    def run(
        self,
        budget: settings,
        *,
        seed: int | None = None,
        progress: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Run everything. Never raises for the target; Ctrl-C after what was found is written."""
        with self.guarded():
            self.start()
            self._replay_corpus()
            tally = self.explore(budget, seed=seed, progress=progress)
            if tally.interrupted:
                self._record(tally)
                raise KeyboardInterrupt
            self.conclude(tally)

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Turn a death of the target, or a fault of the harness, into an event."""
        try:
            yield
        except TargetDied as died:
            self._write(_target_failed(self._handle.name, died))
        except UsageError:
            raise
        except Exception as error:  # noqa: BLE001 - a fault of the harness is its own verdict
            self._fault(error)

    def start(self) -> None:
        """Start the target, say so, and read what is expected to fail."""
        handle, profile = self._handle, self._handle.profile
        self._expected = expected_failures.load(profile.engine, profile.version)
        self._write(
            TargetStarted(
                target=handle.name,
                engine=profile.engine,
                version=profile.version,
                profile=asdict(profile),
                isolation=handle.isolation,
                python=handle.python,
            )
        )

    def _replay_corpus(self) -> None:
        deaths: dict[str, TargetFailed] = {}
        for path in sorted(CORPUS.glob("*.json")):
            event = replay(self._handle, path, died=lambda e: deaths.setdefault(e.message, e))
            self._write(self._excused(event) or event)
        for death in deaths.values():
            self._write(death)

    def _excused(self, event: Replayed) -> Skipped | None:
        """A log shows nothing about its bug where that cannot be seen, or something else fails."""
        prop, known = BY_NAME.get(event.expected), self._expected.get(_property_of(event))
        if event.outcome == "FAILED" and known:
            reason = f"{known.property} is expected to fail: {known.reason}"
        elif prop and event.message == _unseen(prop.name) and not self._claims(prop):
            reason = why_unsupported(prop, self._handle.profile)
        else:
            return None
        return Skipped(part=f"{Path(event.path).name} on {event.target}", reason=reason)

    def _claims(self, prop: Property) -> bool:
        return supported(prop, self._handle.profile)

    def explore(
        self,
        budget: settings,
        *,
        seed: int | None = None,
        progress: Callable[[int], None] = lambda _: None,
        deadline: float = math.inf,
        most: int = MOST_FAILURES,
    ) -> Tally:
        """Explore until nothing new fails, or until `most` properties have."""
        tally, start = Tally(), time.monotonic()
        while len(tally.failures) < most and not (tally.died or tally.interrupted):
            seen = explore(
                self._handle,
                budget,
                seed=seed,
                progress=progress,
                tolerate={*self._expected, *tally.failures},
                deadline=deadline,
            )
            tally.merge(seen)
            tally.interrupted = seen.interrupted
            if seen.violation:
                failure = self.failure(seen.violation, seed)
                tally.failures[failure.property] = failure
            elif seen.died:
                tally.died = _target_failed(self._handle.name, seen.died)
            else:
                break
        tally.seconds = time.monotonic() - start
        return tally

    def conclude(self, tally: Tally) -> None:
        """Write what was exercised, the failures, and a verdict for every property."""
        self._record(tally)
        for prop in PROPERTIES:
            self._judge(prop, tally)

    def _record(self, tally: Tally) -> None:
        self._write(
            Exercised(
                target=self._handle.name,
                suite="cache",
                test_cases=tally.test_cases,
                operations=dict(tally.operations),
                situations=dict(tally.situations),
                hit_blocks=dict(tally.hits),
                seconds=tally.seconds,
                missing=[] if tally.interrupted else self._missing(tally),
            )
        )
        for failure in tally.failures.values():
            self._write(failure)
        if tally.died:
            self._write(tally.died)

    def _missing(self, tally: Tally) -> list[str]:
        needed = {
            situation for prop in PROPERTIES if self._claims(prop) for situation in prop.situations
        }
        return sorted(needed - set(tally.situations))

    def _judge(self, prop: Property, tally: Tally) -> None:
        verdict, reason = self._verdict(prop, tally)
        failure = tally.failures.get(prop.name)
        self._write(
            PropertyVerdict(
                target=self._handle.name,
                property=prop.name,
                section=prop.section,
                rules=list(prop.rules),
                sentence=prop.sentence,
                verdict=verdict,
                reason=reason,
                oracle=failure.oracle if failure else prop.oracle,
                checks=tally.checks[prop.name],
                situations={name: tally.situations[name] for name in prop.situations},
                fingerprint=failure.fingerprint if failure else "",
            )
        )

    def _verdict(self, prop: Property, tally: Tally) -> tuple[Verdict, str]:
        if prop.name in self._expected:
            return self._expected_verdict(self._expected[prop.name], tally)
        if prop.name in tally.failures:
            return "fail", tally.failures[prop.name].sentence
        if not self._claims(prop):
            return "unsupported", why_unsupported(prop, self._handle.profile)
        missing = [name for name in prop.situations if not tally.situations[name]]
        if missing:
            return "inconclusive", "never happened: " + "; ".join(missing)
        if not tally.checks[prop.name]:
            return "inconclusive", "it was never evaluated"
        if tally.died:
            return (
                "inconclusive",
                f"the target died ({tally.died.kind}) before the budget was spent",
            )
        return "pass", ""

    def _expected_verdict(self, known: Expected, tally: Tally) -> tuple[Verdict, str]:
        if tally.tolerated[known.property]:
            return "expected_failure", f"{known.reason} ({known.upstream})"
        return "fail", "it was expected to fail and did not: remove the entry, or find out why"

    def failure(self, violation: Violation, seed: int | None) -> Failure:
        """Store the op log and the script of a violation; returns its event."""
        session = violation.session
        assert session is not None
        log = oplog.record(self._handle.name, violation)
        stem = f"failures/{log.property}_{log.fingerprint}"
        source = script.render(self._handle.name, violation)
        self._files.write_file(f"{stem}.json", oplog.dump(log))
        self._files.write_file(f"{stem}.py", source.encode())
        prop = next(prop for prop in PROPERTIES if prop.name == violation.property)
        return Failure(
            target=self._handle.name,
            property=violation.property,
            rules=list(prop.rules),
            oracle=violation.oracle,
            sentence=violation.sentence,
            detail=violation.detail,
            fingerprint=log.fingerprint,
            op_log=f"{stem}.json",
            script=source,
            script_path=f"{stem}.py",
            history=history(session, violation.sentence),
            blocks=blocks(session, violation.suspects),
            tables={name: list(live.blocks) for name, live in session.live.items()},
            seed=seed,
        )

    def _fault(self, error: Exception) -> None:
        self._write(
            HarnessFault(
                where=f"suites on {self._handle.name}",
                message=f"{type(error).__name__}: {error}",
                traceback="".join(traceback.format_exception(error)),
            )
        )


def _target_failed(name: str, died: TargetDied) -> TargetFailed:
    session = died.session if isinstance(died.session, Session) else None
    return TargetFailed(
        target=name,
        kind=died.kind,
        message=str(died),
        log=died.log,
        history=history(session, str(died)) if session else [],
    )


def _unseen(prop: str) -> str:
    return f"{prop} was never evaluated on this target"


def _property_of(event: Replayed) -> str:
    """Return the property that a replay broke, which begins its message."""
    return event.message.partition(":")[0]


def replay(
    handle: Handle, path: Path, *, died: Callable[[TargetFailed], object] = lambda _: None
) -> Replayed:
    """Run an op log again on a target: FIXED, FAILED or ERROR.

    `died` hears of the death of the target, with its log.
    """
    log = oplog.load(path)
    session: Session | None = None
    outcome: Literal["FIXED", "FAILED", "ERROR"]
    try:
        session = Session(handle.create(log.config), log.config)
        oplog.play(session, oplog.decode(log.operations))
        outcome, message = "FIXED", f"{log.property} holds"
        if not session.checks[log.property]:
            outcome, message = "ERROR", _unseen(log.property)
    except Violation as violation:
        outcome, message = "FAILED", str(violation)
    except TargetDied as death:
        died(_target_failed(handle.name, death))
        outcome, message = "FAILED", f"the target died ({death.kind}): {death}"
    except Exception as error:  # noqa: BLE001 - a fault of the harness, not of the target
        outcome, message = "ERROR", f"{type(error).__name__}: {error}"
    finally:
        if session is not None:
            session.target.close()
    return Replayed(
        target=handle.name,
        path=str(path),
        outcome=outcome,
        message=message,
        expected=log.property,
    )


def history(session: Session, note: str) -> list[Step]:
    """Spell out a history, with what went wrong on its last step."""
    last = len(session.history) - 1
    return [
        Step(
            op=ops.name(operation),
            arguments=wording.arguments(operation),
            answer=wording.answer(answer),
            note=note if index == last else "",
        )
        for index, (operation, answer) in enumerate(session.history)
    ]


def blocks(session: Session, suspects: tuple[int, ...]) -> list[BlockView]:
    """Show every block of a small pool as it stands, of a large one only the suspects."""
    holders: dict[int, list[str]] = {}
    for live in (*session.live.values(), *session.fenced):
        for block in live.blocks:
            holders.setdefault(block, []).append(live.request.id)
    for pin, table in session.pins.items():
        for block in table:
            holders.setdefault(block, []).append(f"pin {pin}")
    small = session.config.num_blocks <= 32
    shown = range(session.config.num_blocks) if small else sorted(set(suspects))
    return [_view(session, block, holders.get(block, []), block in suspects) for block in shown]


def _view(session: Session, block: int, owners: list[str], suspect: bool) -> BlockView:  # noqa: FBT001 - private
    written = session.shadow.writer_of_block(block)
    words = ""
    if written:
        writer, first, last = written
        words = f"positions {first}..{last}: {describe_writer(writer, last)}"
    return BlockView(
        block=block,
        owners=owners,
        writer=words,
        state=_state(session, block, owners),
        suspect=suspect and block != 0,
    )


def _state(
    session: Session, block: int, owners: list[str]
) -> Literal["null", "free", "cached", "held"]:
    if block == 0:
        return "null"
    if owners:
        return "held"
    return "cached" if block in session.ledger.cached else "free"
