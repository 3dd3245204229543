"""Run the suites against one target and write verdicts to a run record."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from hypothesis import settings
from kvproof.harness import operations as ops
from kvproof.harness import oplog, script
from kvproof.harness.errors import Exit, TargetDied
from kvproof.harness.handles import Handle
from kvproof.harness.records import (
    AnyEvent,
    BlockView,
    Exercised,
    Failure,
    HarnessFault,
    PropertyVerdict,
    Replayed,
    RunWriter,
    Step,
    TargetFailed,
    TargetStarted,
    Verdict,
)
from kvproof.harness.session import Session
from kvproof.harness.violation import Violation, describe_writer
from kvproof.suites import expected_failures
from kvproof.suites.cache.explore import Exploration, explore
from kvproof.suites.cache.properties import PROPERTIES, Property, supported, why_unsupported
from kvproof.suites.expected_failures import Expected

CORPUS = Path(__file__).parent / "corpus"
"""Op logs of bugs that were found once; replayed before anything is generated."""


class Outcome(NamedTuple):
    """What a target's suites came to."""

    code: Exit
    sentence: str


class SuiteRun:
    """The core level on one target: corpus, exploration, verdicts.

    `write` gets every event; files of failures go beside them through `writer`.
    """

    def __init__(
        self, handle: Handle, writer: RunWriter, *, write: Callable[[AnyEvent], None] | None = None
    ) -> None:
        self._handle = handle
        self._writer = writer
        self._write = write or writer.write
        self._codes: list[Exit] = []

    def run(
        self,
        budget: settings,
        *,
        seed: int | None = None,
        progress: Callable[[int], None] = lambda _: None,
    ) -> list[Exit]:
        """Run everything; returns the exit codes it calls for. Never raises for the target."""
        try:
            self._started()
            self._expected = expected_failures.load(
                self._handle.profile.engine, self._handle.profile.version
            )
            self._replay_corpus()
            seen = explore(
                self._handle,
                budget,
                seed=seed,
                progress=progress,
                expected=frozenset(self._expected),
            )
            self._report(seen, seed)
        except TargetDied as died:
            self._died(died)
        except Exception as error:  # noqa: BLE001 - a fault of the harness is its own verdict
            self._fault(error)
        return self._codes

    def _started(self) -> None:
        handle, profile = self._handle, self._handle.profile
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
        for path in sorted(CORPUS.glob("*.json")):
            event = replay(self._handle, path)
            self._write(event)
            if event.outcome == "FAILED":
                self._codes.append(Exit.FAILURE)
            if event.outcome == "ERROR":
                self._codes.append(Exit.HARNESS)

    def _report(self, seen: Exploration, seed: int | None) -> None:
        self._write(
            Exercised(
                target=self._handle.name,
                suite="cache",
                test_cases=seen.test_cases,
                operations=dict(seen.operations),
                situations=dict(seen.situations),
                hit_tokens=dict(seen.hits),
                seconds=seen.seconds,
                missing=self._missing(seen),
            )
        )
        if seen.died:
            self._died(seen.died)
        if seen.violation:
            self._write(self.failure(seen.violation, seed))
        for prop in PROPERTIES:
            self._judge(prop, seen)

    def _missing(self, seen: Exploration) -> list[str]:
        needed = {
            situation
            for prop in PROPERTIES
            if supported(prop, self._handle.profile)
            for situation in prop.situations
        }
        return sorted(needed - set(seen.situations))

    def _judge(self, prop: Property, seen: Exploration) -> None:
        verdict, reason = self._verdict(prop, seen)
        if verdict == "fail":
            self._codes.append(Exit.FAILURE)
        if verdict == "inconclusive":
            self._codes.append(Exit.INCONCLUSIVE)
        failed = seen.violation is not None and seen.violation.property == prop.name
        self._write(
            PropertyVerdict(
                target=self._handle.name,
                property=prop.name,
                section=prop.section,
                rules=list(prop.rules),
                sentence=prop.sentence,
                verdict=verdict,
                reason=reason,
                oracle=seen.violation.oracle if failed and seen.violation else "",
                checks=seen.checks[prop.name],
                situations={name: seen.situations[name] for name in prop.situations},
                fingerprint=self._fingerprint(seen.violation) if failed and seen.violation else "",
            )
        )

    def _verdict(self, prop: Property, seen: Exploration) -> tuple[Verdict, str]:
        known = self._expected.get(prop.name)
        if not supported(prop, self._handle.profile):
            return "unsupported", why_unsupported(prop, self._handle.profile)
        if known:
            return self._expected_verdict(known, seen)
        if seen.violation and seen.violation.property == prop.name:
            return "fail", seen.violation.sentence
        missing = [name for name in prop.situations if not seen.situations[name]]
        if missing:
            return "inconclusive", "never happened: " + "; ".join(missing)
        if not seen.checks[prop.name]:
            return "inconclusive", "it was never evaluated"
        if seen.died:
            return "inconclusive", f"the target died ({seen.died.kind}) before the budget was spent"
        return "pass", ""

    def _expected_verdict(self, known: Expected, seen: Exploration) -> tuple[Verdict, str]:
        if seen.expected[known.property]:
            return "expected_failure", f"{known.reason} ({known.upstream})"
        return "fail", "it was expected to fail and did not: remove the entry, or find out why"

    def _fingerprint(self, violation: Violation) -> str:
        assert violation.session is not None
        return oplog.fingerprint(self._handle.name, violation.property, violation.session)

    def failure(self, violation: Violation, seed: int | None) -> Failure:
        """Store the op log and the script of a violation; returns its event."""
        session = violation.session
        assert session is not None
        log = oplog.record(self._handle.name, violation)
        stem = f"failures/{log.property}_{log.fingerprint}"
        source = script.render(self._handle.name, violation)
        self._writer.write_file(f"{stem}.json", oplog.dump(log))
        self._writer.write_file(f"{stem}.py", source.encode())
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

    def _died(self, died: TargetDied) -> None:
        session = died.session if isinstance(died.session, Session) else None
        self._codes.append(Exit.FAILURE)
        self._write(
            TargetFailed(
                target=self._handle.name,
                kind=died.kind,
                message=str(died),
                log=died.log,
                history=history(session, str(died)) if session else [],
            )
        )

    def _fault(self, error: Exception) -> None:
        self._codes.append(Exit.HARNESS)
        self._write(
            HarnessFault(
                where=f"suites on {self._handle.name}",
                message=f"{type(error).__name__}: {error}",
                traceback="".join(traceback.format_exception(error)),
            )
        )


def replay(handle: Handle, path: Path) -> Replayed:
    """Run an op log again on a target: FIXED, FAILED or ERROR."""
    log = oplog.load(path)
    session: Session | None = None
    try:
        session = Session(handle.create(log.config), log.config)
        oplog.play(session, oplog.decode(log.operations))
        outcome, message = "FIXED", f"{log.property} holds"
    except Violation as violation:
        outcome, message = "FAILED", str(violation)
    except TargetDied as died:
        outcome, message = "FAILED", f"the target died ({died.kind}): {died}"
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
            arguments=script.arguments(operation),
            answer=script.answer(answer),
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
    state = "cached" if block in session.ledger.cached else "free"
    return BlockView(
        block=block,
        owners=owners,
        writer=words,
        state="null" if block == 0 else "held" if owners else state,
        suspect=suspect and block != 0,
    )
