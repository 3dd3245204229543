"""Mutation testing of the control plane: `make mutants FILES=core/block_pool`.

mutmut changes one operator or constant at a time in a copy of the package. The tests of the control
plane and short explorations of six suites judge each change: those that reach the changed function,
the quickest first, up to the first failure.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kvproof.suites.tests.mutation import scores as mutant_scores
from kvproof.suites.tests.mutation.limit import EXPLORATION

FOLDERS = ("eval", "harness", "kernels", "reference", "reports", "suites")
TESTS = "src/kvproof/suites/tests"
MODULES = (
    *("core/block_pool", "core/block_table", "cache/request_state"),
    *("prefix/trie", "prefix/window_blocks", "prefix/partial_blocks"),
    *("states/state_cache", "cache/routed_experts", "cache/allocator", "cache/eviction"),
    *("cache/cache_manager", "cache/hit_length", "engine/scheduler"),
)
"""Blocks, the index, hit lengths with their limits (states, windows, partial blocks, experts), and
ownership: judged at night."""
GOAL = 0.9
MEMORY = 2 << 30
"""Bytes; some mutants allocate without end."""
COST = "test_reference_cost.py"
"""Counts calls, of which mutmut makes more."""
_CONFIG = """\
[tool.mutmut]
source_paths = ["src/kvproof/reference"]
only_mutate = [{mutated}]
also_copy = ["src"]
pytest_add_cli_args = [
  "-x", "-q", "-p", "no:cacheprovider", "-p", "kvproof.suites.tests.mutation.limit",
  "-k", "not process",
]
pytest_add_cli_args_test_selection = [{tests}]
use_git_change_detection = false
timeout_multiplier = 30.0  # of the clock; mutant_limit has the limits of processor time

[tool.pytest.ini_options]
addopts = ["--import-mode=importlib"]
"""
_EXPLORATION = '''\
"""What the suites say of the reference as it is here."""

import pytest
from hypothesis import Phase, settings

from kvproof.harness.adapters.reference.target import make_target
from kvproof.harness.isolation.handles import InProcessHandle
from kvproof.suites.framework.state_machine import explore
from kvproof.suites.runner import registry
from kvproof.suites.framework.budgets import BUDGETS
from kvproof.suites.conformance.suite import conformance

BUDGET = settings(
    BUDGETS["pr"], max_examples=36, stateful_step_count=40, phases=(Phase.generate,)
)
NAMES = ("hits", "states", "experts", "explain", "system")
SUITES = [part for part in registry.SUITES if part.name in NAMES]


@pytest.mark.parametrize("part", SUITES, ids=lambda part: part.name)
def test_a_part_passes(part):
    seen = explore(part, BUDGET)
    assert (seen.violation, seen.died) == (None, None)


def test_the_suite_cache_passes():
    seen = explore(conformance(InProcessHandle("reference", make_target)), BUDGET)
    assert (seen.violation, seen.died) == (None, None)
'''
_NAMES = """\
import sys
from pathlib import Path
from mutmut.mutation.file_mutation import mutate_file_contents
from mutmut.utils.format_utils import get_mutant_name

path = Path(sys.argv[1])
for name in mutate_file_contents(str(path), path.read_text()).mutant_names:
    print(get_mutant_name(path, name))
"""


def prepare(folder: Path, modules: Sequence[str]) -> None:
    """Write a copy of the package and mutmut's settings. Raises SystemExit.

    Earlier verdicts stay if the reference is unchanged; survivors are judged again if the tests
    changed.
    """
    if find_spec("kvproof.suites.tests") is None:
        sys.exit("mutation testing needs the project's own tests, which only a checkout has")
    unknown = [m for m in modules if not (_origin("reference") / f"{m}.py").exists()]
    if unknown:
        sys.exit(f"there is no module reference/{unknown[0]}.py; for example: {MODULES[0]}")
    kept = _kept(folder, modules)
    shutil.rmtree(folder, ignore_errors=True)
    for name in FOLDERS:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(_origin(name), folder / "src" / "kvproof" / name, ignore=ignored)
    (folder / TESTS / EXPLORATION).write_text(_EXPLORATION)
    for path, text in {**kept, "state.json": json.dumps(_state(modules))}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    _configure(folder, modules)


def _origin(name: str) -> Path:
    package = find_spec(f"kvproof.{name}")
    (origin,) = (package.submodule_search_locations if package else None) or [""]
    return Path(origin)


def _configure(folder: Path, modules: Sequence[str]) -> None:
    tests = sorted((folder / TESTS).rglob("test_reference_*.py"))
    chosen = [t for t in tests if "faults" not in t.name and t.name != COST]
    names = [str(path.relative_to(folder / TESTS)) for path in chosen]
    config = _CONFIG.format(
        mutated=_listed(f"src/kvproof/reference/{name}.py" for name in modules),
        tests=_listed(f"{TESTS}/{name}" for name in [*names, EXPLORATION]),
    )
    (folder / "pyproject.toml").write_text(config)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


# --- earlier results ---


def _state(modules: Sequence[str]) -> dict[str, Any]:
    others = [_origin("harness"), _origin("suites")]
    return {
        "reference": _digest([_origin("reference")]),
        "tests": _digest(others) + sha256((_CONFIG + _EXPLORATION).encode()).hexdigest(),
        "modules": sorted(modules),
    }


def _digest(folders: Sequence[Path]) -> str:
    digest = sha256()
    for path in sorted(path for folder in folders for path in folder.rglob("*.py")):
        digest.update(f"{path}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _kept(folder: Path, modules: Sequence[str]) -> dict[str, str]:
    before = folder / "state.json"
    old, new = json.loads(before.read_text()) if before.exists() else {}, _state(modules)
    if old.get("reference") != new["reference"]:
        return {}
    same_tests = old["tests"] == new["tests"]
    found = {
        str(path.relative_to(folder)): mutant_scores.kept(path.read_text(), survivors=same_tests)
        for path in (folder / "mutants").rglob("*.meta")
    }
    statistics = folder / "mutants" / "mutmut-stats.json"  # the tests that reach each function
    if old == new and statistics.exists():
        found["mutants/mutmut-stats.json"] = statistics.read_text()
    return found


# --- the run ---


def main(arguments: Sequence[str] | None = None) -> int:
    """Mutate the named modules, by default all of `MODULES`; list scores and survivors."""
    asked = _parser().parse_args(arguments)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    folder, modules = Path("build/mutants"), asked.modules or MODULES
    prepare(folder, modules)
    chosen = left(folder, modules, asked.sample) if asked.sample else []
    code = 0 if asked.sample and not chosen else _judge(folder, chosen, asked.jobs)
    scores = mutant_scores.scores(folder, modules)
    table = mutant_scores.table(scores, sampled=bool(asked.sample))
    sys.stdout.writelines(f"{line}\n" for line in table)
    return code or int(any(score.share < GOAL for score in scores))


def _judge(folder: Path, names: Sequence[str], jobs: int) -> int:
    run = [sys.executable, "-m", "mutmut", "run", "--max-children", str(jobs), *names]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.call(run, cwd=folder, env=environment)


def left(folder: Path, modules: Sequence[str], size: int) -> list[str]:
    """Return those of `size` random mutants of each module that are still to be judged."""
    before = mutant_scores.scores(folder, modules)
    judged = {n for s in before for n, each in s.verdicts.items() if each != "not judged"}
    names = [name for module in modules for name in sampled(folder, module, size)]
    return [name for name in names if name not in judged]


def sampled(folder: Path, module: str, size: int) -> list[str]:
    """Draw from a module; a larger sample contains the smaller ones."""
    command = [sys.executable, "-c", _NAMES, f"src/kvproof/reference/{module}.py"]
    reported = subprocess.check_output(command, cwd=folder, text=True)
    names = reported.split()
    random.Random(module).shuffle(names)
    return names[:size]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m kvproof.suites.tests.mutation.mutants")
    parser.add_argument("--jobs", type=int, default=1, help="mutants at the same time")
    parser.add_argument("--sample", type=int, help="so many random mutants of each module")
    parser.add_argument("modules", nargs="*", metavar="module", help="such as core/block_pool")
    return parser


if __name__ == "__main__":
    sys.exit(main())
