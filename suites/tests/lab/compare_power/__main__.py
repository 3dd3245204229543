"""Measures the error rates of `kvproof compare` on this machine.

python -m kvproof.suites.tests.lab.compare_power --comparisons 50 --record power.jsonl

Compares equal code 50 times, then 50 times a head whose index and whose kernel `kv_fill` really
take 15 % longer. Both sides have 12 runs of each, alternating, as in docs/guides/compare.md;
every run is a process of its own and an ordinary run directory. The kernel needs torch; without it
only the
index is measured. With --record every comparison is stored with the load of the machine, and the
same command resumes after the last one.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timezone
from functools import partial
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

from kvproof.harness.analysis.compare import Comparison, compare
from kvproof.harness.analysis.sides import read_side
from kvproof.harness.cli.runs import hardware, versions
from kvproof.harness.records.run_directory import Manifest
from kvproof.harness.settings import CompareSettings
from kvproof.suites.tests.lab.compare_power.side import measure

ROUNDS = 12
"""Runs of each side."""


def manifest(directory: Path) -> Manifest:
    """Manifest of a bench; with milliseconds, because these runs are short."""
    started = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    return Manifest(id=directory.name, verb="bench", command=["compare_power"], started=started,
                    config={}, versions=versions(), hardware=hardware())  # fmt: skip


def compared(kinds: Sequence[str], planted: float) -> Comparison:
    """Measure both sides in the order A B B A A B B A, and compare them."""
    with tempfile.TemporaryDirectory(prefix="kvproof-power-") as folder:
        sides = [Path(folder, "base"), Path(folder, "head")]
        for kind, number in product(kinds, range(ROUNDS)):
            for side in (0, 1) if number % 2 == 0 else (1, 0):
                alone(kind, side * planted, sides[side] / f"{kind}-{number}")
        base, head = (read_side(side, Path(folder)) for side in sides)
        return compare(base, head, CompareSettings())


def alone(kind: str, planted: float, directory: Path) -> None:
    """Run in a process of its own and wait; a fork server imports torch once."""
    how = multiprocessing.get_context("fork"), multiprocessing.get_context("forkserver")
    start = how[kind == "kernel"].Process
    process = start(target=measure, args=(kind, planted, directory, manifest(directory)))
    process.start()
    process.join()
    if process.exitcode:
        raise SystemExit(f"a run of the {kind} ended with {process.exitcode}")


def reported(kinds: Sequence[str], planted: float) -> dict[str, Any]:
    """One comparison as a line of the record."""
    found = compared(kinds, planted)
    rows = [{"subject": row.key.subject, "metric": row.key.metric, "ratio": row.ratio,
             "interval": [row.found.low, row.found.high] if row.found else None, "p": row.p,
             "change": row.change} for row in found.rows]  # fmt: skip
    return {"planted": planted, "load": os.getloadavg()[0], "rows": rows}


def in_words(line: dict[str, Any], number: int) -> str:
    """One comparison as a line of the terminal."""
    rows = (f"{r['subject']} {r['metric']} {r['ratio']:.3f} {r['change']}" for r in line["rows"])
    return f"planted {line['planted']:.0%}, {number}, load {line['load']:.1f}: {', '.join(rows)}"


def shares(lines: Sequence[dict[str, Any]], planted: float) -> list[str]:
    """Count the comparisons with each result."""
    meant = [line for line in lines if line["planted"] == planted]
    changed = [
        {row["subject"] for row in line["rows"] if row["change"] not in ("same", "inconclusive")}
        for line in meant
    ]
    loads = [line["load"] for line in meant]
    counts = Counter(name for names in changed for name in names)
    return [
        *(f"planted {planted:.0%}: {name} reported in {counts[name]} of {len(meant)}"
          for name in ("index", "torch")),
        f"planted {planted:.0%}: anything reported in {sum(map(bool, changed))} of {len(meant)}, "
        f"load {min(loads):.1f} to {max(loads):.1f}",
    ]  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one line per comparison, and the shares."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--comparisons", type=int, default=50)
    parser.add_argument("--planted", type=float, default=0.15)
    parser.add_argument("--record", type=Path)
    kinds = ["index", *(["kernel"] if find_spec("torch") else [])]
    parser.add_argument("--only", nargs="*", choices=kinds, default=kinds)
    options = parser.parse_args(arguments)
    multiprocessing.set_forkserver_preload(["kvproof.suites.tests.lab.compare_power.side", "torch"])
    say = partial(print, file=sys.stdout, flush=True)
    record: Path | None = options.record
    kept = record.read_text(encoding="utf-8").splitlines() if record and record.exists() else []
    lines: list[dict[str, Any]] = [json.loads(line) for line in kept]
    every = list(product(range(options.comparisons), (0.0, options.planted)))
    for number, planted in every[len(lines) :]:
        lines.append(reported(options.only, planted))
        if record:
            with record.open("a", encoding="utf-8") as file:
                file.write(json.dumps(lines[-1]) + "\n")
        say(in_words(lines[-1], number + 1))
    for planted in (0.0, options.planted):
        for line in shares(lines, planted):
            say(line)


if __name__ == "__main__":
    main()
