"""One-line bugs in an engine's own files: the property that finds each, and its cost.

The catalogue (`planted/*.toml`) names a line of the engine and its replacement. A bug is put into
the running engine, searched for with the histories of a budget, and taken back.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

import msgspec
import tomllib

from kvproof.harness.errors import ANSWERS, TargetDied, UsageError
from kvproof.harness.isolation.handles import Handle
from kvproof.suites.framework import expected_failures
from kvproof.suites.framework.component_suite import Config, Counterexample
from kvproof.suites.framework.known import Known
from kvproof.suites.framework.suite import on_target
from kvproof.suites.whole_engine.choices import Choices
from kvproof.suites.whole_engine.search import cut_down, search
from kvproof.suites.whole_engine.strategies import SUITE

FOLDER = Path(__file__).parent / "planted"
HISTORIES, OPERATIONS = 200, 50
"""Of budget `pr`."""
CALL_TIMEOUT_S = 120.0
RELEASE = "vllm-engine==0.33.0"
"""The release whose lines the catalogue names."""


class Bug(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Replace `old`, which occurs once in a module of the engine, by `new`."""

    name: str
    story: str
    old: str
    new: str
    module: str = ""
    """Empty: the file's."""
    mechanism: str = ""
    property: str = ""
    unseen: str = ""
    """Why no history can distinguish it from the engine: it is planted, and must not be found."""
    survives: str = ""
    """Why the histories of the budget do not find it."""

    def __post_init__(self) -> None:
        """Raise ValueError for a bug without exactly one expected result."""
        if sum(map(bool, (self.property, self.unseen, self.survives))) != 1:
            raise ValueError(f"{self.name}: say `property`, `unseen` or `survives`, one of them")


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    mechanism: str
    module: str
    bug: tuple[Bug, ...]


@dataclass(frozen=True)
class Kill:
    """Result for one bug."""

    bug: Bug
    failure: Counterexample | None = None
    """Shrunk."""
    died: TargetDied | None = None
    """Only a hang is the bug's: what the engine raises is a failure, not a death."""
    seconds: float = 0.0
    histories: int = 0

    @property
    def found_by(self) -> str:
        """The property that found it; empty: none did."""
        if self.died:
            return ANSWERS
        return self.failure.violation.property if self.failure else ""

    @property
    def sentence(self) -> str:
        """What was wrong."""
        if self.died:
            return str(self.died)
        return self.failure.violation.sentence if self.failure else ""

    @property
    def length(self) -> int:
        """Operations of the failing history."""
        return len(self.failure.history.operations) if self.failure else 0


def chosen(pattern: str) -> list[Bug]:
    """Return bugs whose name or mechanism matches one of the globs. Raises UsageError."""
    globs = re.split(r"\s*[,|]\s*", pattern.strip()) if pattern.strip() else ["*"]
    found = [
        bug
        for bug in catalogue()
        if any(fnmatchcase(bug.name, g) or fnmatchcase(bug.mechanism, g) for g in globs)
    ]
    if not found:
        raise UsageError(
            f"no planted bug matches --only {pattern!r}",
            "name bugs or mechanisms, for example --only 'window_*,connectors'",
        )
    return found


def catalogue() -> list[Bug]:
    """Return all bugs. Raises msgspec.ValidationError for a malformed file."""
    return [bug for path in sorted(FOLDER.glob("*.toml")) for bug in _read(path)]


def _read(path: Path) -> list[Bug]:
    file = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), _File)
    return [
        msgspec.structs.replace(bug, mechanism=file.mechanism, module=bug.module or file.module)
        for bug in file.bug
    ]


def hunt(
    handle: Handle,
    bugs: Sequence[Bug],
    *,
    seed: int = 1,
    histories: int = HISTORIES,
    operations: int = OPERATIONS,
    seconds: float = 60.0,
    profiles: Sequence[Callable[[Choices], Config]] = (),
    cut: float = 8.0,
) -> Iterator[Kill]:
    """Plant each bug, search for it, take it back. Raises TargetDied, also for harness faults.

    A hang is a find; the engine is started again after it.
    """
    ask = partial(_ask, handle, handle.profile.component_suites[SUITE.name])
    suite = on_target(SUITE, handle)._replace(known=known_failures(handle))
    for bug in bugs:
        ask(("plant", {"module": bug.module, "old": bug.old, "new": bug.new}))
        found = search(
            suite,
            seed=seed,
            histories=histories,
            operations=operations,
            seconds=seconds,
            profiles=profiles,
        )
        if found.died and found.died.kind != "hang":
            raise found.died
        failure = found.failure and cut_down(suite, found.failure, seconds=cut)
        ask(("clear", {}))
        yield Kill(bug, failure, found.died, found.seconds, found.histories)


def known_failures(handle: Handle, *, version: str = "") -> tuple[Known, ...]:
    """Return the known failures of the engine, or of another release of it."""
    profile, names = handle.profile, [prop.name for prop in SUITE.properties]
    entries = expected_failures.load(
        profile.engine,
        version or profile.version,
        names=names,
        unsupported=profile.unsupported,
    )
    return expected_failures.known(profile.engine, entries)


def _ask(handle: Handle, job: str, *calls: object) -> object:
    return handle.run_job(job, {"calls": calls}, timeout=CALL_TIMEOUT_S)["answers"]


def table(kills: Sequence[Kill]) -> list[str]:
    """Return a kill table, lines of Markdown."""
    lines = [
        "| bug | mechanism | found by | seconds | histories | operations, cut down |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for each in kills:
        found = f"`{each.found_by}`" if each.found_by else f"not found: {_fate(each.bug)}"
        lines.append(
            f"| {each.bug.name}: {each.bug.story} | {each.bug.mechanism} | {found} | "
            f"{each.seconds:.1f} | {each.histories} | {each.length or ''} |"
        )
    return lines


def _fate(bug: Bug) -> str:
    return bug.unseen or bug.survives or "it was found before"
