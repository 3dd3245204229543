"""What must hold after every attack."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from kvproof.harness.errors import Exit, UsageError
from kvproof.harness.records.run_directory import read_run
from kvproof.suites.tests.attack.processes import Command, Outcome
from kvproof.suites.tests.attack.values import SECRET

DECIDED = frozenset({Exit.PASS, Exit.USAGE, Exit.INCONCLUSIVE})
"""Codes of most commands on a reference that is right."""
CODES: Mapping[str, frozenset[Exit]] = {
    "compare": DECIDED | {Exit.FAILURE, Exit.REGRESSION},
    "eval compare": DECIDED | {Exit.FAILURE, Exit.REGRESSION},
    "merge": DECIDED | {Exit.FAILURE, Exit.REGRESSION},
    "gate": DECIDED | {Exit.REGRESSION},
    "sweep": DECIDED | {Exit.REGRESSION},
}
"""Verb -> its codes, where a record or a limit that came from outside may call for others."""
_SPOKEN = frozenset({Exit.USAGE, Exit.HARNESS, Exit.INTERRUPTED, -signal.SIGTERM})
"""Codes with a message on standard error; `kvproof record -- COMMAND` announces its folder."""
MOST_MESSAGE = 4000
"""Characters of standard error."""
MOST_OUTPUT = 300_000
"""Characters of standard output, whatever a target or a file holds."""
_NOISE = re.compile(
    r"Exception ignored in|Fatal Python error|\w*Warning: |Segmentation fault|core dumped",
    re.MULTILINE,
)
_TRACEBACK = re.compile(
    r"Traceback \(most recent call last\)|^  File \".*\", line \d+, in ", re.MULTILINE
)
_QUOTED = re.compile(r"^ +\| .*$", re.MULTILINE)
"""The end of a target's own log."""
_NOTICE = re.compile(r"^kvproof: .* is called .* now; the old name ends with ", re.MULTILINE)
CACHES = frozenset({"kvproof", ".triton", ".cache"})
"""Folders of the home folder that a command may fill: environments, compiled kernels."""
KNOWN = frozenset({".kvproof", "runs"})
"""Folders that commands without --output make, as documented."""


class Broken(NamedTuple):
    """A rule that does not hold."""

    rule: str
    detail: str


def judge(
    command: Command,
    outcome: Outcome,
    *,
    verb: str,
    inputs: Mapping[str, int],
    codes: frozenset[int],
) -> Iterator[Broken]:
    """Return the broken rules; `inputs`: files of before with their hash."""
    yield from _code(outcome, codes)
    yield from _texts(command, outcome)
    yield from _secret(command, outcome, inputs)
    damaged = "cwd/record/run.json" in inputs
    writes = "record" in command.words[1:] and verb != "new-target"  # its output is a target
    if writes and not (outcome.code == Exit.USAGE and damaged):
        yield from _records(command, outcome, damaged=damaged)
    yield from _places(command, outcome, verb, inputs)
    if outcome.code == Exit.USAGE and not outcome.stopped:
        yield from _refused(command, inputs)
    if outcome.left:
        yield Broken("orphan", "; ".join(outcome.left)[:300])


def allowed(verb: str) -> frozenset[int]:
    """Return the exit codes that input of this kind may have."""
    return frozenset(CODES.get(verb, DECIDED))


def _code(outcome: Outcome, codes: frozenset[int]) -> Iterator[Broken]:
    if outcome.hung:
        yield Broken("hang", "SIGTERM did not end it")
        return
    if outcome.stopped:  # or killed by it while the interpreter ends, when nothing is left to do
        codes = codes | {Exit.INTERRUPTED, Exit.PASS, -signal.SIGTERM}
    if outcome.code not in codes:
        yield Broken("exit code", f"{outcome.code}, expected one of {sorted(map(int, codes))}")


def _texts(command: Command, outcome: Outcome) -> Iterator[Broken]:
    for name, text in (("standard output", outcome.out), ("standard error", outcome.err)):
        text = _QUOTED.sub("", text)
        if found := _TRACEBACK.search(text):
            yield Broken("traceback", f"{name}: {text[found.start() :].strip()[-200:]}")
        elif found := _NOISE.search(text):
            yield Broken("noise", f"{name}: {text[found.start() :][:200]}")
    if len(outcome.out) > MOST_OUTPUT:
        yield Broken("flood", f"{len(outcome.out)} characters on standard output")
    if len(outcome.err) > MOST_MESSAGE:
        yield Broken("long message", f"{len(outcome.err)} characters: {outcome.err[:80]}")
    messages = [
        line
        for line in outcome.err.splitlines()
        if line.startswith("kvproof: ") and not _NOTICE.match(line)
    ]
    most = 1 if outcome.code in _SPOKEN or "--" in command.words else 0
    tells = "doctor" not in command.words  # its table tells
    least = 1 if outcome.code == Exit.USAGE and tells else 0
    if not least <= len(messages) <= most:
        yield Broken(
            "one message", f"{len(messages)} with code {outcome.code}: {outcome.err[-200:]}"
        )


def _secret(command: Command, outcome: Outcome, inputs: Mapping[str, int]) -> Iterator[Broken]:
    for name, text in (("standard output", outcome.out), ("standard error", outcome.err)):
        if SECRET in text:
            at = text.index(SECRET)
            yield Broken("secret", f"{name}: ...{text[max(0, at - 60) : at + 40]}")
            return
    for path in _files(command.folder):
        if str(path.relative_to(command.folder)) not in inputs:
            data = path.read_bytes()
            if SECRET.encode() in data:
                at = data.index(SECRET.encode())
                around = data[max(0, at - 60) : at + 40].decode(errors="replace")
                yield Broken("secret", f"{path.relative_to(command.folder)}: ...{around}")
                return


def _records(command: Command, outcome: Outcome, *, damaged: bool) -> Iterator[Broken]:
    """The record of the command is readable; at most the event being written is lost."""
    record = command.folder / "cwd" / "record"
    if not (record / "run.json").exists():
        return
    try:
        run = read_run(record)
    except UsageError as error:
        yield Broken("record", f"not readable: {error}"[:300])
        return
    if run.torn > 1 and not damaged:
        yield Broken("lost events", f"{run.torn} lines cannot be read")
    if len(run.events) + run.torn < outcome.lines_before:
        yield Broken("lost events", f"{len(run.events)} of {outcome.lines_before}")
    ended = run.ended.exit_code if run.ended else None
    if outcome.stopped and outcome.code < 0 and ended is None and run.events:
        yield Broken("record", f"not closed by SIGTERM, {len(run.events)} events")
    if outcome.code == Exit.INTERRUPTED and ended is not None:
        return  # the signal may come when the record is closed, and the report is not written
    if outcome.code >= 0 and ended != outcome.code and run.events and command.closes:
        yield Broken("record", f"ends with {ended}, the command with {outcome.code}")


def torn(command: Command) -> int:
    """Return the number of events in the command's record that cannot be read."""
    try:
        return read_run(command.folder / "cwd" / "record").torn
    except UsageError:
        return 0


def _places(
    command: Command, outcome: Outcome, verb: str, inputs: Mapping[str, int]
) -> Iterator[Broken]:
    """Nothing is written beside the output, and no temporary file stays; a socket's lock does."""
    home = command.environment.get("KVPROOF_HOME", "")
    outputs = named_outputs((*command.words, home))
    yield from _changed(command, outputs, inputs)
    for path in _files(command.folder):
        name = str(path.relative_to(command.folder))
        first = path.relative_to(command.folder).parts
        if name in inputs:
            continue
        if first[0] == "tmp" and outcome.code >= 0 and path.suffix != ".lock":
            yield Broken("left behind", name)
        elif first[0] == "cwd" and "." in outputs:
            continue
        elif (first[0] == "home" and first[1] not in CACHES) or (
            first[0] == "cwd" and first[1] not in KNOWN | outputs
        ):
            yield Broken("outside", name)
        elif re.match(r"\..*\.\d+$", path.name) and outcome.code >= 0:
            yield Broken("left behind", name)


def _refused(command: Command, inputs: Mapping[str, int]) -> Iterator[Broken]:
    """A refused command leaves no new folder without files."""
    for place, folders, files in os.walk(command.folder):
        name = str(Path(place).relative_to(command.folder))
        if not folders and not files and name not in inputs and name.startswith("cwd"):
            yield Broken("left behind", f"the folder {name}, which is empty")


def _changed(
    command: Command, outputs: frozenset[str], inputs: Mapping[str, int]
) -> Iterator[Broken]:
    now = contents(command.folder)
    for name, before in inputs.items():
        parts = Path(name).parts
        is_output = parts[0] == "cwd" and not {".", parts[1]}.isdisjoint(outputs)
        if now.get(name) != before and not is_output:
            yield Broken("outside", f"{name} was {'changed' if name in now else 'removed'}")


def contents(folder: Path) -> dict[str, int]:
    """Return all files of a folder with a hash of their content, links with that of their goal,
    and folders.

    A device or a file elsewhere may stand in the place of a record, behind a link.
    """
    found = {path: path.read_bytes() for path in _files(folder)}
    found |= {path: os.fsencode(path.readlink()) for path in folder.rglob("*") if path.is_symlink()}
    found |= {path: b"no file" for path in folder.rglob("*") if path.is_fifo() or path.is_socket()}
    found |= {
        path: b"" for path in folder.glob("*/**/*") if path.is_dir() and not path.is_symlink()
    }
    return {str(path.relative_to(folder)): hash(data) for path, data in found.items()}


def named_outputs(words: tuple[str, ...]) -> frozenset[str]:
    """Return the first folders of paths that a command or its home names: each may be written."""
    found = set[str]()
    for word in words:
        for each in (word, word.partition("=")[2]):
            if Path(each or "x") in (Path(), Path("..")):
                found.add(".")
            parts = [part for part in each.split("/") if part not in ("", ".")]
            found.update(parts[:1])
    return frozenset(found | {"record", "examples", "baselines", "history.html", "recordings"})


def _files(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            yield path
