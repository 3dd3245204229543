"""Where things live, who may import whom, and what may stand in no tracked file."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import tomllib

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

LAYERS = ("kernels", "reference", "harness", "suites", "reports", "eval")
PRODUCT = [
    path
    for layer in LAYERS
    for path in sorted((ROOT / layer).rglob("*.py"))
    if "tests" not in path.parts
]

FORBIDDEN = {
    "kernels": ("reference", "harness", "suites", "reports", "eval"),
    "reference": ("harness", "suites", "reports", "eval"),
    "harness": ("suites", "reports", "eval"),
    "suites": ("reports", "harness.cli"),
    "reports": ("kernels", "reference", "suites", "eval", "harness.cli"),
    "eval": ("kernels", "reference", "suites", "harness.cli"),
}
"""Layer -> what it may not import; what users start is above all of them."""
ABOVE = ("harness/cli/", "harness/pytest_plugin.py", "eval/faults.py")

STARTED_IN_ENGINES = (
    "harness/isolation/worker_main.py",
    "harness/bench/job.py",
    "harness/bench/checked_job.py",
    "harness/adapters/vllm/target.py",
)
"""Run in the environment of an engine, with all they import, beside nothing but numpy."""

MOST_LINES = 450
"""Of a control-plane file: one concept, read in one sitting."""

DATA_PLANE = (
    "reference/model_runner/",
    "reference/server/language/hugging_face",
    "reference/transfer/",
)
"""Moves or computes bytes of tensors, so it may need torch."""


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imports(path: Path) -> Iterator[str]:
    """Dotted names that a file imports when it is loaded or run, `kvproof.x.y.name` for names.

    Imports for type checkers do not count.
    """
    tree = ast.parse(path.read_text())
    ignored = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if node in ignored:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{named(path)}:{node.lineno} imports relatively"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def modules(names: Iterable[str]) -> set[str]:
    """Files of kvproof among dotted names, each a module or something in one."""
    paths = {name.removeprefix("kvproof.").replace(".", "/") for name in names}
    stems = paths | {path.rpartition("/")[0] for path in paths}
    return {f"{stem}.py" for stem in stems if stem and (ROOT / f"{stem}.py").exists()}


def in_engines() -> list[str]:
    """Every file that is loaded in an engine's environment."""
    found: set[str] = set()
    waiting = set(STARTED_IN_ENGINES)
    while waiting:
        found |= waiting
        waiting = {each for name in waiting for each in modules(imports(ROOT / name))} - found
    return sorted(found)


IN_ENGINES = in_engines()


def test_there_is_something_to_check() -> None:
    assert {named(path).split("/")[0] for path in PRODUCT} == set(LAYERS)
    assert {
        "harness/model/fingerprints.py",
        "harness/session.py",
        "harness/oracle/shadow_memory.py",
        "harness/contract/target.py",
    } <= set(IN_ENGINES)
    assert "kvproof.harness.errors.UsageError" in set(
        imports(ROOT / "harness" / "records" / "run_directory.py")
    )


@pytest.mark.parametrize("path", PRODUCT, ids=named)
def test_imports_point_down(path: Path) -> None:
    if named(path).startswith(ABOVE):
        return
    layer = named(path).split("/")[0]
    wrong = [
        name
        for name in imports(path)
        for below in FORBIDDEN[layer]
        if f"{name}.".startswith(f"kvproof.{below}.")
    ]
    assert wrong == [], f"{named(path)} must not import {wrong}"


def test_only_its_adapter_and_the_component_suites_know_the_reference() -> None:
    users = [
        named(path)
        for path in PRODUCT
        if not named(path).startswith(("reference/", "suites/reference/"))
        and any(name.startswith("kvproof.reference.") for name in imports(path))
    ]
    assert sorted(users) == [
        "harness/adapters/reference/cycle.py",
        "harness/adapters/reference/loop.py",
        "harness/adapters/reference/target.py",
        "harness/adapters/reference/tier.py",
        "harness/adapters/reference/tier_redis.py",
        "harness/adapters/reference/token_forms.py",
        "harness/adapters/reference/view.py",
        "harness/bench/explain_job.py",
        "harness/cli/actions/cache_server.py",
        "harness/cli/actions/plan.py",
        "harness/cli/actions/serving/models.py",
        "harness/cli/actions/serving/serve.py",
        "suites/faults/eval_server.py",
    ]


def test_brute_force_and_the_reference_do_not_ask_the_model_of_content() -> None:
    """A fault of the model would else be on both sides of the comparison."""
    users = {
        named(path)
        for path in PRODUCT
        if any(f"{name}.".startswith("kvproof.harness.model.") for name in imports(path))
    }
    assert {"harness/oracle/group_layout.py", "harness/whole_engine/attention.py"} <= users
    independent = ("reference/", "suites/reference/", "harness/oracle/longest_hit.py")
    assert [name for name in sorted(users) if name.startswith(independent)] == []


def test_the_model_of_content_stands_alone() -> None:
    found = {
        name
        for path in PRODUCT
        if named(path).startswith("harness/model/")
        for name in imports(path)
        if name.startswith("kvproof.")
        and not name.startswith(("kvproof.harness.model.", "kvproof.harness.checked."))
    }
    assert found == set()


@pytest.mark.parametrize("name", IN_ENGINES)
def test_files_in_engines_need_only_numpy(name: str) -> None:
    """An adapter may also import its engine, which it does only when a target is made."""
    allowed = {"kvproof", "numpy", *sys.stdlib_module_names}
    engine = {"vllm", "torch"} if "/vllm" in name else set()
    assert {imported.split(".")[0] for imported in imports(ROOT / name)} <= allowed | engine
    assert name.startswith("harness/")


@pytest.mark.parametrize("name", IN_ENGINES)
def test_files_in_engines_parse_on_python_3_10(name: str) -> None:
    ast.parse((ROOT / name).read_text(), feature_version=(3, 10))


@pytest.mark.parametrize(
    "path", [path for path in PRODUCT if named(path).startswith("reference/")], ids=named
)
def test_the_control_plane_is_read_in_one_sitting(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MOST_LINES
    heavy = set() if named(path).startswith(DATA_PLANE) else {"torch", "triton", "transformers"}
    assert not heavy & {name.split(".")[0] for name in imports(path)}


GENERIC = ("harness/contract", "harness/whole_engine", "suites/framework", "suites/whole_engine")
"""Know no engine: another one is added without a change of them."""
ENGINES = re.compile(r"(?<![a-z])(vllm|sglang|lmdeploy|lmcache|nixl)", re.IGNORECASE)


def test_generic_files_name_no_engine() -> None:
    files = [path for folder in GENERIC for path in (ROOT / folder).rglob("*.*")]
    texts = {named(path): path.read_text() for path in files if path.suffix in (".py", ".toml")}
    found = {name for name, text in texts.items() if ENGINES.search(name + text)}
    assert len(texts) > 60
    assert found == set()


def test_every_package_is_installed() -> None:
    folders = {
        f"kvproof.{init.parent.relative_to(ROOT).as_posix().replace('/', '.')}"
        for layer in LAYERS
        for init in (ROOT / layer).rglob("__init__.py")
    }
    listed = PROJECT["tool"]["setuptools"]
    shipped = {name for name in folders if not name.startswith("kvproof.suites.tests")}
    assert set(listed["packages"]) == shipped
    assert listed["package-dir"] == {"kvproof": "."}


def test_the_changelog_begins_with_this_version() -> None:
    versions = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert versions[0] == PROJECT["project"]["version"]


def pins(name: str) -> dict[str, str]:
    lines = (ROOT / "requirements" / name).read_text().splitlines()
    entries = [line.split("#")[0].strip() for line in lines]
    return dict(entry.lower().split("==") for entry in entries if entry)


def test_every_requirement_is_pinned() -> None:
    core, dev = pins("core.txt"), pins("dev.txt")
    assert not core.keys() & dev.keys()
    for requirement in PROJECT["project"]["dependencies"]:
        assert re.split(r"[^\w-]", requirement)[0].lower() in core
    for requirement in PROJECT["project"]["optional-dependencies"]["dev"]:
        assert re.split(r"[^\w-]", requirement)[0].lower() in dev


def tracked() -> list[Path]:
    """Files of the repository, also those not yet committed; none outside of a checkout."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return [ROOT / line for line in listing.stdout.splitlines() if (ROOT / line).is_file()]


def test_no_file_names_one_machine() -> None:
    files = tracked()
    if not files:
        pytest.skip("not a git checkout: there is no list of files")
    machine = re.compile(rb"(?<![\w.])/(work|opt|root|home)/[a-z]|\.\./" + b"shared")
    allowed = {".ci/run"}
    found = [
        f"{named(path)}: {match[0].decode()}"
        for path in files
        if named(path) not in allowed
        for match in machine.finditer(path.read_bytes())
    ]
    assert found == []
