"""Patches of findings: each applies, has its suspected line, and its proof."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from kvproof.harness.isolation import environments, patched
from kvproof.suites.tests.documents import upstream
from kvproof.suites.tests.documents.findings import found
from kvproof.suites.tests.documents.newest import showing
from kvproof.suites.tests.known_failures.patches import patches
from kvproof.suites.tests.known_failures.proof import PATCH, PROOF, Proof

PATCHES = patches()
FINDINGS = {f"{room.package}/{bug.finding}": (room, bug) for room, bug in found()}
_FILE = re.compile(r"^--- a/(.*)$")
_HUNK = re.compile(r"^@@ -(\d+)(?:,(\d+))? ")


def test_there_are_patches() -> None:
    assert "lmdeploy/hit_inside_a_block_ends_caching" in PATCHES


def hunks(patch: Path) -> Iterator[tuple[str, range]]:
    """Yield file and lines of the release that each part of a diff shows."""
    file = ""
    for line in patch.read_text().splitlines():
        if named := _FILE.match(line):
            file = named[1]
        elif part := _HUNK.match(line):
            yield file, range(int(part[1]), int(part[1]) + int(part[2] or 1))


@pytest.mark.parametrize("name", PATCHES)
def test_the_suspected_line_is_in_the_patch(name: str) -> None:
    room, bug = PATCHES[name]
    parts = list(hunks(room.finding(bug) / PATCH))
    assert any(file == bug.where and bug.line in lines for file, lines in parts), parts


@pytest.mark.parametrize("name", PATCHES)
def test_the_proof_is_of_the_patch_and_whole_unless_the_page_tells(name: str) -> None:
    room, bug = PATCHES[name]
    proof = msgspec.json.decode((room.finding(bug) / PROOF).read_bytes(), type=Proof)
    assert proof.patch == hashlib.sha256((room.finding(bug) / PATCH).read_bytes()).hexdigest()
    assert proof.target == str(showing(room, bug))
    assert proof.mended
    page = (room.finding(bug) / "README.md").read_text()
    replayed = [proof.history.patched] if proof.history else []
    words = [*proof.red, *(each for each in replayed if each != "FIXED")]
    costs = [each.rpartition(" ")[2] for each in words]
    assert proof.whole or costs, "it mends nothing"
    assert [each for each in costs if f"`{each}`" not in page] == []


@pytest.mark.parametrize("name", PATCHES)
def test_it_applies_to_the_release(name: str) -> None:
    room, bug = PATCHES[name]
    released = showing(room, bug)
    if environments.state(released) != "installed":
        pytest.skip(f"{released} is not installed: kvproof targets install {released}")
    packages = environments.site_packages(released.directory)
    lines = (packages / bug.where).read_text().splitlines()
    assert len(lines) >= bug.line
    patched.git(packages, "apply", "--check", str(room.finding(bug) / PATCH))


SOUNDNESS = re.compile(r"^\| judged as \| (?:soundness|wrong events)", re.MULTILINE)
WITHOUT = re.compile(r"^No (?:small )?patch", re.MULTILINE)


@pytest.mark.parametrize("name", FINDINGS)
def test_what_is_wrong_content_has_a_patch_or_the_reason_for_none(name: str) -> None:
    room, bug = FINDINGS[name]
    page = (room.finding(bug) / "README.md").read_text()
    if not SOUNDNESS.search(page):
        pytest.skip("it costs hits, room or time")
    assert (name in PATCHES) != bool(WITHOUT.search(page))
    assert bug.line


@pytest.mark.parametrize("name", FINDINGS)
def test_every_finding_is_an_issue(name: str) -> None:
    room, bug = FINDINGS[name]
    text = upstream.issue(room, bug)
    lines = text.splitlines()
    wanted = ["## What happens", "## Minimal script", "## Expected", "## Suspected cause"]
    assert lines[0].startswith("# [Bug] ")
    assert [line for line in lines if line in wanted] == wanted
    assert ("```diff" in lines) == (name in PATCHES)
    remarks = [line for line in lines if line.startswith(upstream._REMARKS)]
    assert all(lines.index("## Suspected cause") < lines.index(each) for each in remarks)
