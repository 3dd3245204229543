"""Runs jobs in a process that may die: one JSON line for each job, cell and end of a job."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from kvproof.harness.isolation.host import Host
from kvproof.suites.tests.lab.parity.cells import Cell
from kvproof.suites.tests.lab.parity.job import Job, run


class Computed(msgspec.Struct, frozen=True, tag="computed"):
    """One cell of the job."""

    cell: Cell


class Finished(msgspec.Struct, frozen=True, tag="finished"):
    """All cells of the job are computed."""

    healthy: bool
    """Nothing was raised: after a fault of a GPU all further results of the process are wrong."""


Line: TypeAlias = Computed | Finished

read_line = msgspec.json.Decoder(Line).decode
_read_job = msgspec.json.Decoder(Job).decode


def main() -> None:
    """Run one job after the other until the host closes the pipe."""
    host = Host()
    for line in host:
        healthy = True
        for cell in run(_read_job(line)):
            host.write(Computed(cell))
            healthy = healthy and not cell.crashed
        host.write(Finished(healthy))


if __name__ == "__main__":
    main()
