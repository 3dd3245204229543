"""One door to every evaluation: the benchmark is the key of its settings in the manifest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kvproof.eval.divergence.report import evaluated as divergence
from kvproof.eval.run.records import EvalRun, read_eval
from kvproof.eval.scbench.report import evaluated as scbench
from kvproof.eval.verdict.evaluated import Evaluated
from kvproof.eval.verdict.report import evaluated as answers
from kvproof.harness.errors import UsageError

_KINDS: dict[str, Callable[[EvalRun], Evaluated]] = {
    "scbench": scbench,
    "divergence": divergence,
    "evaluation": answers,
}
"""Key -> the judge of the answers in a directory."""


def judged(directory: Path) -> Evaluated:
    """Judge the answers of a run, complete or not. Raises UsageError."""
    run = read_eval(directory)
    for key, judge in _KINDS.items():
        if key in run.manifest.config:
            return judge(run)
    raise UsageError(
        f"{str(directory)!r} holds no evaluation", "give the directory that kvproof eval printed"
    )
