"""The text of an upstream issue about a finding, from its page, record, script, patch and proof.

`python -m kvproof.suites.tests.documents.upstream ENGINE/FINDING` prints it; it is sent nowhere.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from kvproof.suites.framework.bugs import Bug
from kvproof.suites.framework.rooms import Room
from kvproof.suites.runner.levels import properties
from kvproof.suites.tests.documents import findings
from kvproof.suites.tests.documents.newest import showing
from kvproof.suites.tests.known_failures.proof import PATCH, PROOF, SHOWN, Proof

_IMPORTED = re.compile(r"^from (\w+_plain(?:_\w+)?) import", re.MULTILINE)
"""Import of a module that the scripts of a room share; it lies one folder above them."""
_REMARKS = ("No patch", "No small patch", "The patch")
"""Begins of paragraphs about the fix."""
_LINK = re.compile(r"\(\.\./(\w+)/README\.md\)")
"""A link to another finding of the engine."""


def pages() -> dict[str, str]:
    """Return path below the site -> the page of each finding, with its patch and its proof."""
    return {
        f"engines/findings/{room.package}/{bug.finding}.md": _page(room, bug)
        for room, bug in findings.found()
    }


def _page(room: Room, bug: Bug) -> str:
    text = _LINK.sub(r"(\1.md)", findings.text(room, bug)).rstrip()
    return "\n".join([text, "", *fix(room, bug)])


def issue(room: Room, bug: Bug) -> str:
    """Return the text: title, version, symptom, script, expected, suspected cause, patch, proof."""
    page, engine = findings.text(room, bug), showing(room, bug)
    title = page.partition("# ")[2].splitlines()[0]
    parts = (
        [f"# [Bug] {title}", "", f"**Version.** {findings.cell(page, 'engine')}. Seen with"],
        [f"{engine.package}, no accelerator.", "", "## What happens", "", _story(page), ""],
        ["## Minimal script", "", f"`pip install {engine.package}`, then `python script.py`.", ""],
        *(_file(path) for path in _scripts(room.finding(bug))),
        ["## Expected", "", *_expected(bug), ""],
        [
            "## Suspected cause",
            "",
            f"{_suspect(bug)}. On the page: {findings.cell(page, 'where')}",
            "",
            *(line for each in _paragraphs(page, *_REMARKS) for line in (each, "")),
        ],
        fix(room, bug),
    )
    return "\n".join(line for part in parts for line in part).rstrip() + "\n"


def fix(room: Room, bug: Bug) -> Iterator[str]:
    """Yield the patch of a finding with its proof, as Markdown; nothing without one."""
    folder = room.finding(bug)
    if not (folder / PATCH).exists():
        return
    engine = showing(room, bug)
    yield from (
        "## Patch",
        "",
        f"Against the files of {engine.package}; suspected: {_suspect(bug)}.",
    )
    yield from ("", "```diff", (folder / PATCH).read_text(encoding="utf-8").rstrip(), "```", "")
    if (folder / PROOF).exists():
        yield from _proof(msgspec.json.decode((folder / PROOF).read_bytes(), type=Proof))
    command = f"python -m kvproof.suites.tests.known_failures.patches {room.package}/{bug.finding}"
    yield from (f"Proved by `{command}`, on a private copy.", "")


def _proof(proof: Proof) -> Iterator[str]:
    yield from ("| | released | patched |", "| --- | --- | --- |")
    if proof.history:
        yield f"| recorded history | {proof.history.released} | {proof.history.patched} |"
    own = " (it makes calls that the patch changes)" if proof.script.patched == SHOWN else ""
    yield f"| script | {proof.script.released} | {proof.script.patched}{own} |"
    new = "; ".join(f"`{name}`: {reason}" for name, reason in proof.red.items())
    yield f"| properties, budget {proof.budget} | | {proof.held} hold; newly red: {new or 'none'} |"
    green = ", ".join(f"`{name}`" for name in proof.green)
    yield from (f"| turned green | | {green or 'none: others of its properties are known'} |", "")


def _story(page: str) -> str:
    """Return the paragraphs of a page, without its table, its proposal and its remarks."""
    others = _paragraphs(page, "Possible fix", *_REMARKS)
    return "\n\n".join(each for each in _paragraphs(page, "") if each not in others)


def _paragraphs(page: str, *begins: str) -> list[str]:
    """Return the paragraphs below the table that begin so."""
    blocks = page.partition("| --- | --- |")[2].split("\n\n")[1:]
    return [each.strip() for each in blocks if each.startswith(begins)]


def _expected(bug: Bug) -> list[str]:
    texts = {prop.name: prop.sentence for prop in properties("full")}
    shown = [f"- {texts[each.property]} (`{each.property}`)" for each in bug.shows]
    return shown or ["The opposite of what the script asserts in its last line."]


def _suspect(bug: Bug) -> str:
    return f"`{bug.where}{f':{bug.line}' if bug.line else ''}`"


def _scripts(folder: Path) -> list[Path]:
    script = folder / "script.py"
    shared = _IMPORTED.findall(script.read_text(encoding="utf-8"))
    return [script, *(folder.parent / f"{name}.py" for name in shared)]


def _file(path: Path) -> Iterator[str]:
    place = "" if path.name == "script.py" else ", one folder above"
    lines = path.read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if not line.startswith(("# ruff:", "# mypy:", "# - "))]
    yield from (f"`{path.name}`{place}:", "", "```python", *kept, "```", "")


def main(arguments: list[str]) -> None:
    """Print the text of one finding."""
    rows = {f"{room.package}/{bug.finding}": (room, bug) for room, bug in findings.found()}
    (name,) = arguments or [""]
    if name not in rows:
        sys.exit(f"there is no finding {name!r}\n  one of: {', '.join(rows)}")
    sys.stdout.write(issue(*rows[name]))


if __name__ == "__main__":
    main(sys.argv[1:])
