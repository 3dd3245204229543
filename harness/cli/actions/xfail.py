"""`kvproof xfail`: the failures of a run, as known failures in the repository of the subject."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from kvproof.harness.cli.output import print_text
from kvproof.harness.errors import UsageError
from kvproof.harness.records.events import Failure
from kvproof.harness.records.run_directory import read_run, store
from kvproof.harness.reproduce import oplog
from kvproof.suites.framework import subject_failures

_HEADER = """\
# Known failures, for `kvproof run --known-failures`: each has to fail as its history does.
# `reason` is the sentence of the verdict; `issue` and `mechanism` are optional.
"""


def xfail(run: Path, output: Path) -> None:
    """Add the failures of a run to a file, with their histories. Raises UsageError."""
    failures = _failures(run)
    known = {each.history for each in subject_failures.read(output)} if output.exists() else set()
    added = [each for each in failures if _history(output, each) not in known]
    if not added:
        raise UsageError(f"{str(output)!r} has all failures of {str(run)!r}", "it needs no change")
    for each in added:
        log = oplog.load(_inside(run, each.op_log))
        place = output.parent / _history(output, each)
        place.parent.mkdir(parents=True, exist_ok=True)
        store(place, oplog.dump(log), hint="name another file with --output")
    text = output.read_text(encoding="utf-8") if output.exists() else _HEADER
    text += "".join(_entry(output, each) for each in added)
    store(output, text.encode(), hint="name another file with --output")
    print_text(_next(output, added))


def _failures(run: Path) -> list[Failure]:
    failures = [each for each in read_run(run).events if isinstance(each, Failure)]
    if not failures:
        raise UsageError(f"{str(run)!r} has no failures", "name the directory of a run with some")
    return failures


def _inside(run: Path, name: str) -> Path:
    """Return the path of a file of a run. Raises UsageError for one that lies elsewhere."""
    path = run / name
    if not path.resolve().is_relative_to(run.resolve()):
        raise UsageError(f"{str(run)!r} names an op log elsewhere: {name!r}", "do not trust it")
    return path


def _history(output: Path, failure: Failure) -> str:
    return f"{output.stem}/{Path(failure.op_log).name}"


def _entry(output: Path, failure: Failure) -> str:
    return subject_failures.entry_text(
        failure.target,
        failure.property,
        history=_history(output, failure),
        sentence=failure.sentence,
    )


def _next(output: Path, added: Sequence[Failure]) -> str:
    target = shlex.quote(added[0].target)
    lines = [f"{output}: {len(added)} known failures more, with their histories"]
    lines += [f"  {each.property}: {each.sentence}" for each in added]
    return "\n".join(
        [
            *lines,
            "Write the reason and the issue of each, commit both, then:",
            f"  kvproof run --target {target} --known-failures {shlex.quote(str(output))}",
        ]
    )
