"""One door to every evaluation: the benchmark is the key of its settings in the manifest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kvproof.eval.divergence.report import evaluated as divergence
from kvproof.eval.scbench.report import evaluated as scbench
from kvproof.eval.verdict.evaluated import Evaluated
from kvproof.eval.verdict.report import evaluated as answers
from kvproof.harness.errors import UsageError
from kvproof.harness.records.run_directory import Manifest, read_manifest

_KINDS: dict[str, Callable[[Path, Manifest], Evaluated]] = {
    "scbench": scbench,
    "divergence": divergence,
    "evaluation": answers,
}
"""Key -> the judge of the answers in a directory."""


def judged(directory: Path) -> Evaluated:
    """Judge the answers of a run, complete or not. Raises UsageError."""
    manifest = read_manifest(directory)
    for key, judge in _KINDS.items():
        if key in manifest.config:
            return judge(directory, manifest)
    raise UsageError(
        f"{str(directory)!r} holds no evaluation", "give the directory that kvproof eval printed"
    )
