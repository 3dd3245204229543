"""Run `kvproof probe` in this process, and read what it has recorded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import NamedTuple
from unittest import mock

from kvproof.harness.records.events import Failure, PropertyVerdict
from kvproof.harness.records.run_directory import Run, read_run
from kvproof.suites.probe import check, company, rounds, trials
from kvproof.suites.probe import metrics_idle as at_rest
from kvproof.suites.tests.cli.cli_kit import Done, here
from kvproof.suites.tests.lab.stress.http import process
from kvproof.suites.tests.lab.stress.http.process import Server, serving
from kvproof.suites.tests.probe.probe_url_faults import RUN

JUDGED = {each.name for each in check.CHECKS} - {check.CLAIMED.name}
SYMBOLIC = ("--model", "symbolic", "--block-size", "16")


class Probed(NamedTuple):
    done: Done
    run: Run

    @property
    def verdicts(self) -> dict[str, PropertyVerdict]:
        return {e.property: e for e in self.run.events if isinstance(e, PropertyVerdict)}

    @property
    def failures(self) -> dict[str, Failure]:
        return {e.property: e for e in self.run.events if isinstance(e, Failure)}

    def named(self, *outcomes: str) -> set[str]:
        """Properties with these verdicts, without the one that hangs on the machine's speed."""
        found = {name for name, e in self.verdicts.items() if e.verdict in outcomes}
        return found - {check.CLAIMED.name}


def probed(url: str, cwd: Path, *options: str) -> Probed:
    """Probe a server; nothing may look like a mistake of kvproof itself.

    The order of its requests is the same each time: in any order, one probe in 1,000 of a server
    with noise may fail.
    """
    cwd.mkdir(exist_ok=True)
    orders = [mock.patch.object(each, "RANDOM", Random(1)) for each in (rounds, trials)]
    brief = mock.patch.multiple(company, PAUSES=(0,), PROMPTS=4, COPIES=2)
    with orders[0], orders[1], brief, mock.patch.object(at_rest, "_SETTLE", 3.0):
        done = here("probe", url, "--output", "out", *options, cwd=cwd)
    assert "Traceback" not in done.out + done.err, done
    assert done.code in (0, 1, 3), done
    return Probed(done, read_run(cwd / "out"))


@contextmanager
def faulty(name: str, *options: str) -> Iterator[Server]:
    """`kvproof serve` with a fault that was planted before anything was imported."""
    with mock.patch.object(process, "_RUN", RUN.format(name)):
        running = serving(*SYMBOLIC, *options)
        server = running.__enter__()
    try:
        yield server
    finally:
        running.__exit__(None, None, None)
