"""Power of a run, before it: the smallest losses that fail, and that a pass excludes."""

from __future__ import annotations

from kvproof.eval.run.config import EvalConfig
from kvproof.harness.statistics import clopper_pearson, detectable, smallest_loss
from kvproof.reports.values.text import percent, plural

POWER = 0.8
"""Share of runs in which a described effect fails."""


def count_tests(config: EvalConfig) -> int:
    """Count the tests of the whole table: accuracy, and flips unless only accuracy counts."""
    phases = config.protocol.phases
    rows = len(phases) + ("warm" in phases and "shared" in phases)
    each = 1 if config.judge.rule == "accuracy" else 2
    return max(1, rows * len(config.others) * each)


def power(config: EvalConfig, samples: int, unit: str = "sample") -> list[str]:
    """Describe the smallest effects, as if every answer of the first configuration were right."""
    judge, tests = config.judge, count_tests(config)
    loss = smallest_loss(tests, judge.alpha)
    share = detectable(samples, loss, POWER)
    least = clopper_pearson(0, samples)
    found = [
        f"{plural(samples, unit)}: a loss fails from {plural(loss, 'answer')} on "
        f"({plural(tests, 'test')}); one of {percent(share)} of right answers does in 8 of 10 runs"
        if share < 1
        else f"{plural(samples, unit)} cannot show a loss: it fails from "
        f"{plural(loss, 'answer')} on ({plural(tests, 'test')})",
        f"without any loss, one over {percent(least)} is excluded; a pass needs "
        f"{percent(judge.margin)} (margin)",
    ]
    if judge.exact:
        share = detectable(samples, 1, POWER)
        found.append(f"one changed text fails: wrong ones among {percent(share)} of hits do in 8 "
                     "of 10 runs")  # fmt: skip
    if least > judge.margin:
        found.append(f"no row can pass: give {least_samples(judge.margin)} {unit}s or more")
    return found


def least_samples(margin: float) -> int:
    """Return the fewest samples without a loss that exclude one of the margin."""
    count = 1
    while clopper_pearson(0, count) > margin:
        count += 1
    return count
