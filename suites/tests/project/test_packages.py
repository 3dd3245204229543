"""Rooms: few files in a folder, arrows one way between packages, no circle between modules."""

from __future__ import annotations

import ast
import re
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
LAYERS = ("kernels", "reference", "harness", "suites", "reports", "eval")
MOST_FILES = 25
"""Python files directly in one folder."""
SHIPPED = [
    path.relative_to(ROOT)
    for layer in LAYERS
    for path in sorted((ROOT / layer).rglob("*.py"))
    if "tests" not in path.parts and "findings" not in path.parts
]
ALIASES = {
    path
    for path in SHIPPED
    if "sys.modules[__name__]" in (ROOT / path).read_text() and len(path.parts) == 2
}
"""Old names of public modules; they point up on purpose."""


def dotted(path: Path) -> str:
    return ".".join(("kvproof", *path.with_suffix("").parts)).removesuffix(".__init__")


MODULES = {dotted(path): path for path in SHIPPED}


def imported(path: Path) -> Iterator[str]:
    """Modules of kvproof named in any import: at load time, in functions, for type checkers."""
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kvproof"):
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in MODULES else str(node.module)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)


def room(path: Path) -> str:
    """The package of a module; a module directly in one of the six folders is its own room."""
    return path.as_posix() if len(path.parts) == 2 else path.parent.as_posix()


def arrows(*, rooms: bool) -> Mapping[str, set[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for module, path in MODULES.items():
        if path in ALIASES:
            continue
        for other in imported(path):
            target = MODULES.get(other)
            if target is None or target in ALIASES or target == path:
                continue
            ends = (room(path), room(target)) if rooms else (module, other)
            if ends[0] != ends[1]:
                found[ends[0]].add(ends[1])
    return found


@pytest.mark.parametrize("rooms", [False, True], ids=["modules", "packages"])
def test_no_circle_in_imports_of_any_kind(*, rooms: bool) -> None:
    try:
        TopologicalSorter(arrows(rooms=rooms)).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(reversed(error.args[1])))


def test_no_folder_of_code_is_a_corridor() -> None:
    listing = subprocess.run(
        ["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.split()
    if not listing:
        pytest.skip("not a git checkout: there is no list of files")
    count = Counter(Path(name).parent for name in listing)
    assert {str(folder): n for folder, n in count.items() if n > MOST_FILES} == {}


def test_every_package_says_what_enters_what_leaves_and_its_imports() -> None:
    for path in SHIPPED:
        if path.name == "__init__.py" and path.parts[1] != "findings":
            words = (ast.get_docstring(ast.parse((ROOT / path).read_text())) or "").lower()
            missing = [word for word in ("in: ", "out: ", "import") if word not in words]
            assert missing == [], f"{path}: its docstring has no {missing}"


def test_nothing_shipped_imports_the_tests() -> None:
    wrong = [
        f"{path}: {name}"
        for path in SHIPPED
        for name in re.findall(
            r"^\s*(?:from|import) (kvproof\.suites\.tests\S*)", _text(path), re.M
        )
    ]
    assert wrong == []


def _text(path: Path) -> str:
    return (ROOT / path).read_text()
