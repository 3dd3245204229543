"""What the pages about campaigns tell users to type exists: every command, every file."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from kvproof.harness.cli.app import app

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGES = ("guides/fuzz.md", "guides/compare.md", "test/ci.md")

_FENCED = re.compile(r"```(\w*)\n(.*?)```", re.DOTALL)
_ENDS = {";", "&&", "|", "&", ")", "done", ">"}


def blocks(page: str, *kinds: str) -> list[str]:
    text = (DOCS / page).read_text(encoding="utf-8")
    return [body for kind, body in _FENCED.findall(text) if kind in kinds]


def commands(page: str) -> list[list[str]]:
    """Words after each `kvproof` of the page's commands."""
    found = []
    for body in blocks(page, "", "bash", "yaml"):
        reported = re.sub(r"\s+#.*", "", body.replace("\\\n", " "))
        reported = re.sub(r"^name:.*", "", reported, flags=re.MULTILINE)
        reported = re.sub(r'"[^"]*"', lambda quoted: quoted[0].replace("\n", " "), reported)
        reported = re.sub(r"\$\{\{.*?\}\}|\$\(\([^)]*\)\)|\$\([^)]*\)|\$\w+", "1", reported)
        for line in reported.splitlines():
            found += _in_line(line)
    return found


def _in_line(line: str) -> list[list[str]]:
    pieces = re.split(r"(?:^|[\s(\"/])kvproof (?=[a-z])", line)
    return [_words(piece) for piece in pieces[1:]]


def _words(piece: str) -> list[str]:
    quotes = piece.count('"')
    words = shlex.split(piece if quotes % 2 == 0 else piece.rpartition('"')[0])
    kept = []
    for word in words:
        if word in _ENDS:
            break
        kept.append(word.removesuffix(")").removesuffix(";"))
    return kept


@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_a_page_is_understood(page):
    found = commands(page)
    assert found, "the page shows no command"
    for words in found:
        app.parse_args(words, exit_on_error=False, print_error=False)


def test_a_command_that_is_not_understood_would_be_seen():
    with pytest.raises(Exception, match="--max-tme"):
        app.parse_args(["fuzz", "--max-tme", "2h"], exit_on_error=False, print_error=False)


def test_workflows_and_the_cluster_file_are_yaml_with_the_parts_that_they_need():
    yaml = pytest.importorskip("yaml", reason="pip install pyyaml")
    judge, gate, steps, night, gitlab, hooks = map(yaml.safe_load, blocks("test/ci.md", "yaml"))
    action = yaml.safe_load((DOCS.parent / "action.yml").read_text(encoding="utf-8"))
    assert set(judge["jobs"]["kvproof"]["steps"][-1]["with"]) <= set(action["inputs"])
    assert [set(step) for step in (*gate, *steps)] == [{"run"}] * 2
    assert set(night["jobs"]) == {"fuzz", "report"}
    assert gitlab["kvproof"]["artifacts"]["reports"] == {"junit": "runs/kvproof/junit.xml"}
    assert [each["id"] for each in hooks[0]["hooks"]] == ["kvproof"]
    (cluster,) = map(yaml.safe_load, blocks("guides/fuzz.md", "yaml"))
    assert cluster["provider"]["type"] == "local"
