"""Run the script of a finding with its engine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kvproof.harness import adapters
from kvproof.harness.isolation.environments import EngineVersion, site_packages
from kvproof.harness.scratch import scratch
from kvproof.suites.tests.patience import LONG

KERNELS = ("decode_reads_behind_the_last_token",)
"""Findings whose scripts need Triton, which environments leave out: this interpreter runs them."""
_LINKED = (
    "lmdeploy",
    "pydantic",
    "pydantic_core",
    "annotated_types",
    "typing_inspection",
    "psutil",
)
"""Packages that this interpreter lacks."""


def carried_out(engine: EngineVersion, folder: Path) -> subprocess.CompletedProcess[str]:
    """Return how the script of a finding ended; code 0: it shows the finding."""
    stubs = [Path(next(iter(adapters.__path__))) / "sglang" / "stubs.py"]
    more = stubs if engine.engine in {"sglang", "sglang-engine"} else []
    with _interpreter(engine, folder.name) as (python, variables):
        return subprocess.run(
            [python, "-W", "ignore", folder / "script.py", *more],
            capture_output=True, text=True, check=False, timeout=LONG,
            env={**os.environ, **variables},
        )  # fmt: skip


@contextmanager
def _interpreter(engine: EngineVersion, finding: str) -> Iterator[tuple[Path, dict[str, str]]]:
    if finding not in KERNELS:
        yield engine.python, {}
        return
    with scratch("kvproof-packages-") as packages:
        for name in _LINKED:
            (packages / name).symlink_to(site_packages(engine.directory) / name)
        yield Path(sys.executable), {"PYTHONPATH": str(packages)}
