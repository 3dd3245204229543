"""`.ci/run` executes the blocks of the README itself, in a fresh clone."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from kvproof.suites.tests.project.test_layout import ROOT
from kvproof.suites.tests.project.test_readme import PAGES, README

CI = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
SCRIPT = ROOT / ".ci" / "readme"
MADE = """# Title

```
never
```

## Try it

Words, and a block:

```
ls; command -v pip
echo kept >> kept
```

More words.

```bash

echo last >> last
false
echo after >> last
```

## Later

```
never
```
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "checkout"
    folder.mkdir()
    git(folder, "init", "--quiet")
    return folder


def git(folder: Path, *words: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    subprocess.run(["git", *who, *words], cwd=folder, check=True)


def started(checkout: Path, *kept: str) -> subprocess.CompletedProcess[str]:
    (checkout / "README.md").write_text(MADE)
    git(checkout, "add", "README.md")
    git(checkout, "commit", "--quiet", "-m", "one")
    return subprocess.run(
        [sys.executable, SCRIPT, checkout.parent / "made", *kept],
        cwd=checkout, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_the_commands_are_those_of_the_first_section_up_to_one_that_fails(checkout: Path) -> None:
    (checkout / "not-committed").write_text("")
    done = started(checkout, "echo kept >> kept")
    assert done.returncode == 1, done.stderr
    assert "--- false: ended with 1" in done.stdout
    assert "not-committed" not in done.stdout
    assert f"{checkout.parent / 'made' / 'venv' / 'bin' / 'pip'}" in done.stdout
    assert "never" not in done.stdout
    assert (checkout / "kept").read_text() == "kept\n"
    assert not (checkout / "last").exists()
    assert (checkout.parent / "made" / "clone" / "last").read_text() == "last\n"


def test_a_command_that_the_readme_no_longer_has_is_no_exception(checkout: Path) -> None:
    done = started(checkout, "make test")
    assert done.returncode == 1
    assert "make test" in done.stdout


def test_ci_reads_the_commands_from_the_readme() -> None:
    assert re.search(r'^ .*\.ci/readme "\$scratch/readme" "make test"$', CI, re.MULTILINE)
    assert re.search(r'^section "[^"]*README[^"]*" readme_works$', CI, re.MULTILINE)
    first = README.split("\n## ")[1].split("```")[1::2]
    shown = [line for block in first for line in block.splitlines()[1:]]
    copies = [line for line in shown if re.search(rf"{re.escape(line)}( &&)?$", CI, re.MULTILINE)]
    assert copies == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_page_installs_from_an_index(page: Path) -> None:
    """The package is on none; the extra of an installed one is added by its name."""
    text = page.read_text(encoding="utf-8")
    assert re.findall(r"pip install [^\n#`]*?(?<![\w/.-])kvproof(?![\w\[/.-])", text) == []
