"""Measures the overhead of a campaign on this machine, and simulates larger ones.

python -m kvproof.suites.tests.lab.campaign_cost --record runs/some-campaign

Measures the driver on local processes and on a local Ray cluster of three nodes (if Ray is
installed) with empty units, takes the length of real units and their database operations from a
recorded campaign, and simulates 100 to 10,000 cores from these figures.
"""

from __future__ import annotations

import argparse
import heapq
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kvproof.harness.campaign.driver import Outcome, work_off
from kvproof.harness.campaign.pool import LocalPool, Pool
from kvproof.harness.cli.actions.campaign.unit import tally_of
from kvproof.harness.cli.runs import new_manifest
from kvproof.harness.records.campaign_events import UnitDone
from kvproof.harness.records.run_directory import RunWriter, read_run
from kvproof.suites.framework.verdicts import Tally

CORES = (100, 250, 500, 1_000, 2_500, 5_000, 10_000)


class Cost(NamedTuple):
    """Seconds for one empty unit."""

    wall: float
    driver_cpu: float


def pool_cost(pool: Pool, units: int) -> Cost:
    """Seconds to hand out and collect `units` units, after the start of the workers."""
    names = [f"warm {number}" for number in range(32)]
    deadline = time.monotonic() + 600
    for name in names[:8]:
        pool.submit(name, 0)
    while len(names) > 24:
        names = names[len(pool.wait(1)) :]
    ends: list[tuple[float, float]] = []

    def take(_: Outcome) -> None:
        ends.append((time.perf_counter(), time.process_time()))

    wall, cpu = time.perf_counter(), time.process_time()
    work_off(pool, map(str, range(units)), lambda given: given.unit, take, deadline=deadline)
    assert len(ends) == units
    return Cost((ends[-1][0] - wall) / units, (ends[-1][1] - cpu) / units)


def crowded_cost(pool: Pool, units: int) -> float:
    """CPU seconds of the driver per unit, with this many concurrent units."""
    cpu = time.process_time()
    for number in range(units):
        pool.submit(str(number), number)
    done = 0
    while done < units:
        done += len(pool.wait(1))
    return (time.process_time() - cpu) / units


def record_cost(done: UnitDone, units: int) -> float:
    """Seconds to write one unit's event and to add it to the counts."""
    with tempfile.TemporaryDirectory() as folder:
        writer = RunWriter(Path(folder, "run"), new_manifest("fuzz", Path(folder), {}))
        tally, began = Tally(), time.process_time()
        for _ in range(units):
            writer.write(done)
            tally.merge(tally_of(done, {}))
        writer.close()
        return (time.process_time() - began) / units


@contextmanager
def three_nodes(cores: int) -> Iterator[str]:
    """Start a local cluster; yields its address."""
    from ray.cluster_utils import Cluster

    memory = 100 << 20
    head = {"num_cpus": cores, "include_dashboard": False, "object_store_memory": memory}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    for _ in range(2):
        cluster.add_node(num_cpus=cores, object_store_memory=memory)
    try:
        yield cluster.address
    finally:
        cluster.shutdown()


def efficiency(cores: int, lengths: Sequence[float], driver: float, units: int) -> float:
    """Share of the cores' time in units; one driver handles one result after the other."""
    generator = random.Random(cores)
    free = 0.0
    ends: list[float] = []
    for _ in range(cores):  # the driver gives out the first round, too
        free += driver
        heapq.heappush(ends, free + generator.choice(lengths))
    busy, last = 0.0, 0.0
    for _ in range(units):
        end = heapq.heappop(ends)
        free = max(free, end) + driver
        length = generator.choice(lengths)
        busy += length
        last = free
        heapq.heappush(ends, free + length)
    return busy / (cores * last)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print every figure with its unit."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--units", type=int, default=500)
    parser.add_argument("--simulated", type=int, default=1_000_000)
    options = parser.parse_args(arguments)
    say = partial(print, file=sys.stdout, flush=True)
    done = [e for e in read_run(options.record).events if isinstance(e, UnitDone) and e.test_cases]
    lengths = [event.cpu_seconds for event in done]
    say(f"units of {options.record}: {len(done)}, median {np.median(lengths):.2f} CPU s")
    operations = [sum(event.database.values()) for event in done]
    say(f"database operations per unit: median {np.median(operations):.0f}")
    recorded = record_cost(done[0], options.units)
    say(f"recording: {recorded * 1e3:.3f} ms per unit, {1 / recorded:,.0f} units/s")
    cost = pool_cost(LocalPool(bool, 2, limit=60), options.units)
    say(f"local, 2 processes: {cost.wall * 1e3:.2f} ms per unit, {cost.driver_cpu * 1e3:.2f} ms "
        "of the driver's CPU")  # fmt: skip
    driver = cost.driver_cpu
    if find_spec("ray"):
        from kvproof.harness.campaign.ray_pool import RayPool

        with three_nodes(1) as address:
            cost = pool_cost(RayPool(bool, address, limit=60), options.units)
            say(f"Ray, 3 nodes: {cost.wall * 1e3:.2f} ms per unit, {cost.driver_cpu * 1e3:.2f} ms "
                "of the driver's CPU")  # fmt: skip
            pool = RayPool(bool, address, limit=600)
            driver = crowded_cost(pool, 1_000)
            pool.close()
            say(f"Ray, 1,000 units under way: {driver * 1e3:.2f} ms of the driver's CPU per unit")
    whole = max(driver, cost.driver_cpu) + recorded
    say(f"one driver: {1 / whole:,.0f} results/s; saturates at "
        f"{np.mean(lengths) / whole:,.0f} cores")  # fmt: skip
    for cores in CORES:
        say(f"{cores:>7,} cores: efficiency "
            f"{efficiency(cores, lengths, whole, options.simulated):.3f}")  # fmt: skip


if __name__ == "__main__":
    main()
