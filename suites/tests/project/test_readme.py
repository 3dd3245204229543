"""The README: short, its table of commands is that of `--help`, its links and commands work."""

from __future__ import annotations

import re
import signal
import sys
from functools import cache
from pathlib import Path

import pytest

from kvproof.harness.cli.app import VERBS
from kvproof.suites.tests.documents import site, write

ROOT = Path(__file__).parents[3]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def words(text: str) -> int:
    return sum(1 for word in text.split() if re.search(r"\w", word))


def test_it_has_at_most_600_words_besides_the_commands():
    assert words("a | `b`, --- c-d.") == 3
    head, _, tail = README.partition(write.MARKS[0])
    assert words(head + tail.partition(write.MARKS[1])[2]) <= 600


def test_the_documents_have_at_most_35_000_words():
    assert sum(len(page.read_text(encoding="utf-8").split()) for page in PAGES[2:]) <= 35_000


def test_the_table_of_commands_is_the_help():
    assert write.readme() == README, "write it again: make docs"


def test_every_command_is_in_the_table_once():
    assert sorted(re.findall(r"^\| \[?`([a-z-]+)`", README, re.MULTILINE)) == sorted(VERBS)


def test_the_first_commands_start_from_a_checkout():
    """The package is on no index; `.ci/run` executes these lines in a fresh clone."""
    first, second = README.split("```")[1:4:2]
    assert first.split() == ["make", "gate", "make", "test"]
    assert second.split("\n")[1] == "pip install ."


def test_the_commands_of_a_checkout_come_with_the_first_ones():
    first = README.split("\n## ")[1]
    assert first.startswith("Try it\n")
    assert all(f"`make {word}`" in first for word in ("gate", "test"))


def commands(text: str) -> list[tuple[str, str]]:
    """(verb, its arguments) of each command in back quotes or in a code block."""
    blocks = "\n".join(text.split("```")[1::2]).replace("\\\n", " ")
    lines = re.findall(r"^kvproof ([a-z-]+)(.*)$", blocks, re.MULTILINE)
    return [*lines, *re.findall(r"`kvproof ([a-z-]+)(?=[ `])([^`]*)`", text)]


def exists(path: Path) -> bool:
    """It is a file, or a page of the site that is generated."""
    within = path.resolve().is_relative_to(site.DOCS)
    page = str(path.resolve().relative_to(site.DOCS)) if within else ""
    return path.exists() or page in site.pages()


@cache
def help_of_all() -> list[str]:
    return site.TABLES["command line"]().split("\n## ")


def help_of(verb: str) -> str:
    return "".join(each for each in help_of_all() if re.match(rf"kvproof {verb}\b", each))


def test_commands_are_found_in_text_and_in_blocks():
    text = "Run `kvproof run --seed 1`.\n```\nkvproof fuzz \\\n  --units 2\n```\n"
    assert commands(text) == [("fuzz", "    --units 2"), ("run", " --seed 1")]


def test_the_help_takes_nothing_from_tests_before_and_leaves_nothing_to_those_after(monkeypatch):
    """Run as a command it hid `--repeat` here, and pytest had the handlers of a command."""
    monkeypatch.setenv("OWN_TOKEN", "--repeat")
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)
    before = [signal.getsignal(each) for each in signals], sys.unraisablehook
    assert "--repeat" in site.TABLES["command line"]()
    assert ([signal.getsignal(each) for each in signals], sys.unraisablehook) == before


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_commands_of_the_documents_work(page):
    text = page.read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)
    assert [link for link in links if not exists(page.parent / link)] == []
    assert set(site.marks(text)) <= set(site.TABLES)
    for verb, arguments in commands(text):
        assert verb in VERBS
        own, _, _ = arguments.partition(" -- ")
        known = f"{help_of(verb)} --help".upper()
        wrong = [o for o in re.findall(r"--[a-z][a-z-]*", own) if o.upper() not in known]
        assert not wrong, f"kvproof {verb}{arguments}"
