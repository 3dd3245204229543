"""How often `kvproof compare` is wrong, and what it finds: measured on this machine.

    python -m examples.compare_power --comparisons 50

Compares equal code 50 times, then 50 times a head whose index and whose kernel `kv_fill` really
take 15 % longer. Both sides have 12 runs of each, in turns, as in docs/compare.md; every run is a
process of its own and an ordinary run directory. The kernel needs torch; without it only the index
is measured.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
from collections.abc import Sequence
from datetime import datetime, timezone
from functools import partial
from importlib.util import find_spec
from itertools import product
from pathlib import Path

from examples.compare_power.side import measure
from kvproof.harness.cli.runs import hardware, versions
from kvproof.harness.compare import Comparison, compare
from kvproof.harness.compare_series import Key
from kvproof.harness.compare_sides import read_side
from kvproof.harness.records import Manifest
from kvproof.harness.settings import CompareSettings

ROUNDS = 12
"""Runs of each side."""


def manifest(directory: Path) -> Manifest:
    """As of a bench; with milliseconds, because these runs are short."""
    started = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    return Manifest(id=directory.name, verb="bench", command=["compare_power"], started=started,
                    config={}, versions=versions(), hardware=hardware())  # fmt: skip


def compared(planted: float) -> Comparison:
    """Measure both sides in turns, A B B A A B B A, and compare them."""
    kinds = ["index", *(["kernel"] if find_spec("torch") else [])]
    with tempfile.TemporaryDirectory(prefix="kvproof-power-") as folder:
        sides = [Path(folder, "base"), Path(folder, "head")]
        for kind, number in product(kinds, range(ROUNDS)):
            for side in (0, 1) if number % 2 == 0 else (1, 0):
                alone(kind, side * planted, sides[side] / f"{kind}-{number}")
        base, head = (read_side(side, Path(folder)) for side in sides)
        return compare(base, head, CompareSettings())


def alone(kind: str, planted: float, directory: Path) -> None:
    """Start the process of a run and wait for it; torch is imported once, in a server of forks."""
    how = multiprocessing.get_context("fork"), multiprocessing.get_context("forkserver")
    start = how[kind == "kernel"].Process
    process = start(target=measure, args=(kind, planted, directory, manifest(directory)))
    process.start()
    process.join()
    if process.exitcode:
        raise SystemExit(f"a run of the {kind} ended with {process.exitcode}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one line for each comparison, and the shares."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--comparisons", type=int, default=50)
    parser.add_argument("--planted", type=float, default=0.15)
    options = parser.parse_args(arguments)
    multiprocessing.set_forkserver_preload(["examples.compare_power.side", "torch"])
    say = partial(print, file=sys.stdout, flush=True)
    found: dict[float, list[set[Key]]] = {0.0: [], options.planted: []}
    for number, planted in product(range(options.comparisons), found):
        rows = compared(planted).rows
        changed = {row.key for row in rows if row.change not in ("same", "inconclusive")}
        found[planted].append(changed)
        told = (f"{r.key.subject} {r.key.metric} {r.ratio:.3f} {r.change}" for r in rows)
        say(f"planted {planted:.0%}, {number + 1}: {', '.join(told)}")
    for planted, every in found.items():
        for name in ("index", "torch"):
            times = sum(any(key.subject == name for key in keys) for keys in every)
            say(f"planted {planted:.0%}: {name} reported in {times} of {len(every)}")
        say(f"planted {planted:.0%}: anything reported in {sum(map(bool, every))} of {len(every)}")


if __name__ == "__main__":
    main()
