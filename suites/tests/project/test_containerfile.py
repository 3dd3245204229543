"""The Containerfile installs the newest release of every engine, and its lines run."""

from __future__ import annotations

from pathlib import Path

from kvproof.harness.isolation.environments import package_of
from kvproof.suites.tests.documents.newest import NEWEST
from kvproof.suites.tests.lab.containerfile import FILE, INSTALL, Line, carry_out, lines

FOUND = list(lines(FILE.read_text()))


def test_it_installs_the_newest_release_of_every_engine() -> None:
    installed = {
        found["engine"]: found["version"]
        for verb, rest in FOUND
        if verb == "RUN" and (found := INSTALL.search(rest))
    }
    newest = {name: each.version for name, each in NEWEST.items() if package_of(name) == name}
    assert installed == newest


def test_every_instruction_is_known_and_on_one_line() -> None:
    verbs = [line.verb for line in FOUND]
    assert set(verbs) == {"FROM", "ARG", "ENV", "WORKDIR", "COPY", "RUN", "ENTRYPOINT"}
    assert not any(line.rest.endswith("\\") for line in FOUND)


def test_a_line_that_fails_ends_it_with_its_code(tmp_path: Path) -> None:
    found = [
        Line("ARG", "NUMBER=1"),
        Line("ENV", "HOME_OF=/kvproof/home"),
        Line("WORKDIR", "/kvproof"),
        Line("RUN", "echo $NUMBER $HOME_OF > first"),
        Line("RUN", "touch targets install other==1.0"),
        Line("RUN", "exit 7"),
        Line("RUN", "touch last"),
    ]
    assert carry_out(found, tmp_path, ["NUMBER=5"], ["vllm"]) == 7
    place = tmp_path / "kvproof"
    assert (place / "first").read_text() == f"5 {place}/home\n"
    assert [path.name for path in place.iterdir()] == ["first"]
