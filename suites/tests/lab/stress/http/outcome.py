"""Result of a stress test, its verdict, and its report for people."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

BASELINE = ('kvproof_blocks{owner="held"}', "kvproof_requests_running",
            "kvproof_requests_waiting", "kvproof_places_taken")  # fmt: skip
"""All 0 on an idle server."""
OUTCOMES = ("completed", "cancelled", "failed", "refused")
RESIDENT = "process_resident_memory_bytes"


@dataclass
class Tally:
    """Counts of a stress test."""

    completed: int = 0
    cancelled: int = 0
    turned_away: int = 0
    near_ties: int = 0
    """Answers that leave the expected one at a token with a gap below the tolerance."""
    cached_tokens: int = 0
    prompt_tokens: int = 0
    wrong: list[str] = field(default_factory=list)
    unexpected: Counter[str] = field(default_factory=Counter)


class Outcome(NamedTuple):
    """Everything that a stress has to show."""

    tally: Tally
    seconds: float
    before: dict[str, float]
    after: dict[str, float]
    exit_code: int
    errors: str

    @property
    def leaked(self) -> dict[str, float]:
        """Gauges that are not back at their first value."""
        return {name: self.after[name] for name in BASELINE if self.after[name]}

    @property
    def complaints(self) -> list[str]:
        """Errors in the server's log; libraries may log other messages when they load."""
        lines = self.errors.splitlines()
        return [line for line in lines if line.startswith(("WARNING", "ERROR", "Traceback"))]

    @property
    def growth(self) -> float:
        """Growth of the server's resident memory since warm-up, bytes."""
        return self.after[RESIDENT] - self.before[RESIDENT]

    @property
    def holds(self) -> bool:
        """Return whether answers, blocks and the server's end are correct."""
        tally = self.tally
        clean = not (tally.wrong or tally.unexpected or self.leaked or self.complaints)
        return clean and tally.completed > 0 and self.exit_code == 0


def report(outcome: Outcome) -> str:
    """Return the report, line by line."""
    tally, after = outcome.tally, outcome.after
    mebi = 1 << 20
    rate = tally.cached_tokens / max(1, tally.prompt_tokens)
    reported = {
        name: after.get(f'kvproof_requests_total{{outcome="{name}"}}', 0) for name in OUTCOMES
    }
    lines = [
        f"{outcome.seconds:.0f} s: {tally.completed} completed, {tally.cancelled} cancelled, "
        f"{tally.turned_away} turned away with 429 "
        f"({tally.completed / outcome.seconds:.0f} answers a second)",
        f"the server counts, warm-up included: {_words_of(reported)}",
        f"answers that differ: {len(tally.wrong)}, and {tally.near_ties} at near ties",
        f"unexpected: {dict(tally.unexpected) or 'nothing'}",
        f"prompt tokens from the cache: {rate:.1%}",
        f"not back at the start: {outcome.leaked or 'nothing'}",
        f"resident memory: {outcome.before[RESIDENT] / mebi:.1f} MiB warm, "
        f"{after[RESIDENT] / mebi:.1f} MiB at the end ({outcome.growth / mebi:+.1f})",
        f"exit code {outcome.exit_code}",
        f"the server complains of: {'; '.join(outcome.complaints)[:400] or 'nothing'}",
    ]
    return "\n".join([*lines, *tally.wrong[:5], "holds" if outcome.holds else "DOES NOT HOLD"])


def _words_of(counts: dict[str, float]) -> str:
    return ", ".join(f"{name} {count:.0f}" for name, count in counts.items())
