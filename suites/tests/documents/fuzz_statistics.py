"""Search effort and situations of engines, from the records of `kvproof fuzz`.

`python -m` this module `RUN...` prints two tables in Markdown, one column a target. It adds up
the runs of a target and counts units without a result.
"""

from __future__ import annotations

import signal
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kvproof.harness.errors import UsageError
from kvproof.harness.records.campaign_events import UnitDone
from kvproof.harness.records.run_directory import read_run


@dataclass
class Search:
    """Sums over the units of one target."""

    units: int = 0
    lost: int = 0
    histories: int = 0
    operations: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    hits: Counter[str] = field(default_factory=Counter)
    """Length class of a hit -> admissions or look-ups."""
    situations: Counter[str] = field(default_factory=Counter)

    def add(self, done: UnitDone) -> None:
        """Add one unit."""
        self.units += 1
        self.lost += bool(done.gave_up)
        self.histories += done.test_cases
        self.operations += sum(done.operations.values())
        self.seconds += done.seconds
        self.cpu_seconds += done.cpu_seconds
        self.hits.update(done.hits)
        self.situations.update(done.situations)

    @property
    def reused(self) -> str:
        """Share of admissions, or look-ups, with a hit."""
        total = self.hits.total()
        return f"{1 - self.hits['0'] / total:.1%}" if total else ""


def searches(events: Iterable[object]) -> dict[str, Search]:
    """Return target -> its search; skips events of other kinds."""
    found: dict[str, Search] = {}
    for event in events:
        if isinstance(event, UnitDone):
            found.setdefault(event.target, Search()).add(event)
    return found


def tables(found: dict[str, Search]) -> list[str]:
    """Return effort and situations as lines of Markdown."""
    effort = {
        "units": [f"{s.units:,}" for s in found.values()],
        "units without a result": [f"{s.lost:,}" for s in found.values()],
        "histories": [f"{s.histories:,}" for s in found.values()],
        "operations": [f"{s.operations:,}" for s in found.values()],
        "hits": [s.reused for s in found.values()],
        "minutes by the clock": [f"{s.seconds / 60:,.0f}" for s in found.values()],
        "minutes of processor time": [f"{s.cpu_seconds / 60:,.0f}" for s in found.values()],
        "kinds of situations": [f"{len(s.situations):,}" for s in found.values()],
    }
    names = sorted({name for s in found.values() for name in s.situations})
    seen = {
        name: [f"{s.situations[name]:,}" if s.situations[name] else "" for s in found.values()]
        for name in names
    }
    return [*_table("search", found, effort), "", *_table("situation", found, seen)]


def _table(first: str, found: Iterable[str], rows: dict[str, list[str]]) -> list[str]:
    titles = [first, *found]
    rule = ["---", *("---:" for _ in titles[1:])]
    lines = [titles, rule, *([name, *cells] for name, cells in rows.items())]
    return [f"| {' | '.join(cells)} |" for cells in lines]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables of some runs; returns 2 if a folder is no run."""
    paths = sys.argv[1:] if arguments is None else arguments
    if not paths:
        sys.stderr.write(
            "which runs? for example: python -m "
            "kvproof.suites.tests.documents.fuzz_statistics runs/latest\n"
        )
        return 2
    try:
        events = [event for path in paths for event in read_run(Path(path)).events]
    except UsageError as error:
        sys.stderr.writelines(f"{line}\n" for line in (str(error), error.hint) if line)
        return 2
    sys.stdout.writelines(f"{line}\n" for line in tables(searches(events)))
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # the reader closed the pipe
    sys.exit(main())
