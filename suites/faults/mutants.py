"""Mutation testing of the control plane: `python -m kvproof.suites.faults.mutants block_pool`.

mutmut changes one operator or constant after the other in a copy of the package, and lets the
tests of the control plane and one exploration of the suite `cache` judge each change.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path

FOLDERS = ("eval", "harness", "kernels", "reference", "reports", "suites")
TESTS = "src/kvproof/suites/tests"
MODULES = ("block_pool", "block_table", "steps", "trie_match", "prefix_trie", "hit_length")
"""Those whose tests are fast enough to be run against each mutant at night."""
MEMORY = 2 << 30
"""Bytes; some mutants never stop to allocate."""
_CONFIG = """\
[tool.mutmut]
source_paths = ["src/kvproof/reference"]
only_mutate = [{mutated}]
also_copy = ["src"]
pytest_add_cli_args = ["-x", "-q", "-p", "no:cacheprovider", "-k", "not every_process"]
pytest_add_cli_args_test_selection = [{tests}]
use_git_change_detection = false
timeout_multiplier = 4.0

[tool.pytest.ini_options]
addopts = ["--import-mode=importlib"]
"""
_EXPLORATION = '''\
"""What the suite `cache` says of the reference as it is here."""

from hypothesis import Phase, settings

from kvproof.harness.adapters.reference import make_target
from kvproof.harness.handles import InProcessHandle
from kvproof.suites.cache.budgets import BUDGETS
from kvproof.suites.cache.explore import explore

BUDGET = settings(BUDGETS["pr"], phases=(Phase.generate,))


def test_the_suite_cache_passes():
    seen = explore(InProcessHandle("reference", make_target), BUDGET)
    assert (seen.violation, seen.died) == (None, None)
'''


def prepare(folder: Path, modules: Sequence[str]) -> None:
    """Write a copy of the package, and what mutmut is to do with it. Raises SystemExit."""
    if find_spec("kvproof.suites.tests") is None:
        sys.exit("mutation testing needs the project's own tests, which only a checkout has")
    shutil.rmtree(folder, ignore_errors=True)
    for name in FOLDERS:
        package = find_spec(f"kvproof.{name}")
        (origin,) = (package.submodule_search_locations if package else None) or [""]
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(origin, folder / "src" / "kvproof" / name, ignore=ignored)
    unknown = [m for m in modules if not (folder / f"src/kvproof/reference/{m}.py").exists()]
    if unknown:
        sys.exit(f"there is no module reference/{unknown[0]}.py; for example: {MODULES[0]}")
    (folder / TESTS / "test_mutants.py").write_text(_EXPLORATION)
    tests = sorted((folder / TESTS).glob("test_reference_*.py"))
    chosen = [path.name for path in tests if "faults" not in path.name]  # these plant their own
    config = _CONFIG.format(
        mutated=_listed(f"src/kvproof/reference/{name}.py" for name in modules),
        tests=_listed(f"{TESTS}/{name}" for name in [*chosen, "test_mutants.py"]),
    )
    (folder / "pyproject.toml").write_text(config)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def main(arguments: Sequence[str]) -> int:
    """Mutate the modules named, all of `MODULES` by default; list the survivors."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    folder, mutmut = Path("build/mutants"), [sys.executable, "-m", "mutmut"]
    prepare(folder, arguments or MODULES)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = [*mutmut, "run", "--max-children", "1"]
    code = subprocess.call(run, cwd=folder, env=environment)  # noqa: S603 - our own command
    return code or subprocess.call([*mutmut, "results"], cwd=folder)  # noqa: S603 - likewise


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
