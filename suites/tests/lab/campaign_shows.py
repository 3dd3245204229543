"""Demonstrates campaigns on one machine: processes, a Ray cluster, losses, a fault.

python -m kvproof.suites.tests.lab.campaign_shows --histories 20 --units 16

Needs `kvproof[ray,redis]` and a redis-server or valkey-server on PATH for the parts of their names;
`--only` selects parts. Every campaign is an ordinary `kvproof fuzz` in a folder of its own.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from kvproof.harness.records.campaign_events import UnitDone, UnitLost
from kvproof.harness.records.events import AnyEvent, Failure
from kvproof.harness.records.run_directory import read_run

FAULT = "kvproof.suites.tests.framework.faults:last_block_off_by_one"
SHAPES: dict[str, tuple[int, ...]] = {
    "one node of 2": (2,), "one node of 4": (4,), "three nodes, 2 + 1 + 1": (2, 1, 1),
}  # fmt: skip
"""Clusters: cores of each node."""

_MEMORY = 80 << 20
_KVPROOF = str(Path(sys.executable).with_name("kvproof"))

say = partial(print, file=sys.stdout, flush=True)


class Fuzz:
    """One `kvproof fuzz`, in a folder with its settings, its database and its records."""

    def __init__(self, folder: Path, histories: int, *options: str) -> None:
        self.folder, self.record = folder, folder / "run"
        folder.mkdir(parents=True)
        (folder / "kvproof.toml").write_text(f"[campaign]\nhistories = {histories}\n")
        command = [_KVPROOF, "fuzz", "--output", "run", "--max-time", "1h", "--seed", "1", *options]
        with (folder / "out.txt").open("wb") as out:
            self._process = subprocess.Popen(
                command, cwd=folder, stdout=out, stderr=subprocess.STDOUT
            )

    def ended(self) -> Fuzz:
        """Wait for its end; any status except a verdict ends the demonstration."""
        if self._process.wait() not in (0, 1, 3):
            raise SystemExit((self.folder / "out.txt").read_text())
        return self

    def until(self, enough: Callable[[list[UnitDone]], bool]) -> None:
        """Wait until enough units are recorded."""
        while not enough(self.units):
            if self._process.poll() is not None:
                raise SystemExit(f"it ended early: {(self.folder / 'out.txt').read_text()}")
            time.sleep(0.1)

    @property
    def events(self) -> list[AnyEvent]:
        """Recorded events."""
        there = (self.record / "run.json").exists()
        return read_run(self.record).events if there else []

    @property
    def units(self) -> list[UnitDone]:
        """Completed units."""
        return [event for event in self.events if isinstance(event, UnitDone)]

    @property
    def failures(self) -> list[Failure]:
        """Shrunk failures."""
        return [event for event in self.events if isinstance(event, Failure)]

    @property
    def lost(self) -> list[UnitLost]:
        """Lost workers."""
        return [event for event in self.events if isinstance(event, UnitLost)]

    def met(self) -> dict[str, list[str]]:
        """Unit -> its failures."""
        return {unit.unit: unit.failed for unit in self.units}

    def once(self) -> bool:
        """Whether every unit is recorded once."""
        return set(Counter(unit.unit for unit in self.units).values()) == {1}


@contextmanager
def cluster(cores: Sequence[int]) -> Iterator[Any]:
    """A local Ray cluster with one node per number; its workers have the usual nice level."""
    os.environ.setdefault("RAY_worker_niceness", "0")
    from ray.cluster_utils import Cluster

    head = {"num_cpus": cores[0], "include_dashboard": False, "object_store_memory": _MEMORY}
    made = Cluster(initialize_head=True, head_node_args=head)
    for number in cores[1:]:
        made.add_node(num_cpus=number, object_store_memory=_MEMORY)
    try:
        yield made
    finally:
        made.shutdown()


def alike(folder: Path, histories: int, units: int, _: int) -> None:
    """The same seeds find the same failures on local processes and on every cluster."""
    options = ("--target", FAULT, "--units", str(units), "--keep-going")
    here = Fuzz(folder / "local", histories, *options, "--workers", "2").ended()
    found = {failure.property for failure in here.failures}
    say(f"local, 2 processes: {len(here.units)} units, failed: {', '.join(sorted(found))}")
    for name, cores in SHAPES.items():
        with cluster(cores) as made:
            there = Fuzz(folder / name, histories, *options, "--ray", made.address).ended()
        same = {failure.property for failure in there.failures} == found
        nodes = len({unit.where for unit in there.units})
        say(f"Ray, {name}: {nodes} workers; the same failures: {same}; unit by unit: "
            f"{there.met() == here.met()}; every unit once: {there.once()}; shrunk "
            f"{sum(len(unit.shrunk) for unit in there.units)} for {len(found)}")  # fmt: skip


def efficiency(folder: Path, histories: int, units: int, turns: int) -> None:
    """CPU time of the same units on as many local processes, alternating, after start-up."""
    for name, cores in SHAPES.items():
        workers = sum(cores)
        costs: dict[str, list[float]] = {"local": [], "ray": []}
        with cluster(cores) as made:
            sides = (("local", ("--workers", str(workers))), ("ray", ("--ray", made.address)))
            for turn in range(turns):
                for side, where in sides if turn % 2 == 0 else sides[::-1]:
                    place = folder / f"{name} {side} {turn}"
                    done = Fuzz(place, histories, "--units", str(units), *where).ended()
                    costs[side].append(after_start_up(done.units))
        local, ray = median(costs["local"]), median(costs["ray"])
        say(f"{name}: {workers} workers, CPU time per unit {ray:.2f} s on Ray, {local:.2f} s "
            f"locally (medians of {turns} turns, load {os.getloadavg()[0]:.1f}): efficiency "
            f"{local / ray:.2f}")  # fmt: skip


def after_start_up(units: Sequence[UnitDone]) -> float:
    """Mean CPU seconds of all units but the first of each process."""
    seen: set[str] = set()
    kept = []
    for unit in sorted(units, key=lambda each: each.began):
        if unit.where in seen:
            kept.append(unit.cpu_seconds)
        seen.add(unit.where)
    return sum(kept) / len(kept)


def node_killed(folder: Path, histories: int, units: int, _: int) -> None:
    """A node is killed during the campaign."""
    with cluster((1, 1, 1)) as made:
        going = Fuzz(folder / "node", histories, "--units", str(units), "--ray", made.address)
        going.until(lambda done: len({unit.where for unit in done}) == 3)  # all nodes are busy
        made.remove_node(next(iter(made.worker_nodes)), allow_graceful=False)
        going.ended()
    again = sum(unit.attempt > 1 for unit in going.units)
    say(f"node killed: {len(going.units)} of {units} units, each once: {going.once()}; "
        f"{len(going.lost)} lost, {again} done again, {len(going.failures)} failures")  # fmt: skip


def redis_killed(folder: Path, histories: int, units: int, _: int) -> None:
    """Redis disappears and returns."""
    binary = next(filter(None, map(shutil.which, ("redis-server", "valkey-server"))), "")
    if not binary:
        say("redis: skipped, no redis-server or valkey-server on PATH")
        return
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])

    def start() -> subprocess.Popen[bytes]:
        command = [binary, "--port", port, "--save", "", "--dir", str(folder)]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL)

    where = ("--database", f"redis://127.0.0.1:{port}/0", "--workers", "2")
    server = start()
    try:
        going = Fuzz(folder / "redis", histories, "--units", str(units), *where)
        going.until(bool)
        server.send_signal(signal.SIGKILL)
        server.wait()
        more = len(going.units) + 3
        going.until(lambda done: len(done) >= more)
        server = start()
        going.ended()
    finally:
        server.kill()
        server.wait()
    away = [unit.database.get("unreachable", 0) for unit in going.units]
    say(f"Redis killed and restarted: {len(going.units)} of {units} units, each once: "
        f"{going.once()}; {sum(map(bool, away))} units missed it for {sum(away)} operations; "
        f"{len(going.failures)} failures reported, {len(going.lost)} workers lost")  # fmt: skip


def one_of_eight(folder: Path, histories: int, units: int, _: int) -> None:
    """A fault that eight workers find is shrunk once, and its script reproduces it elsewhere."""
    options = ("--target", FAULT, "--units", str(max(units, 8)), "--keep-going", "--workers", "8")
    done = Fuzz(folder / "eight", histories, *options).ended()
    shrunk = Counter(name for unit in done.units for name in unit.shrunk)
    met = Counter(name for unit in done.units for name in unit.failed)
    for failure in done.failures:
        again = shown_elsewhere(done.record / failure.script_path, failure)
        workers = len({unit.where for unit in done.units})
        say(f"{failure.property} ({failure.fingerprint}): met by {met[failure.property]} units of "
            f"{workers} workers, shrunk {shrunk[failure.property]} time, "
            f"{len(failure.history)} operations; its script alone shows it: {again}")  # fmt: skip


def shown_elsewhere(script: Path, failure: Failure) -> bool:
    """Whether the script alone, in an empty folder, reproduces the recorded failure."""
    with tempfile.TemporaryDirectory(prefix="kvproof-elsewhere-") as place:
        copy = Path(shutil.copy(script, place))
        ran = subprocess.run(
            [sys.executable, str(copy)], cwd=place, capture_output=True, text=True, check=False
        )
    return ran.returncode != 0 and failure.sentence in ran.stderr


PARTS: dict[str, Callable[[Path, int, int, int], None]] = {
    "alike": alike, "efficiency": efficiency, "node": node_killed, "redis": redis_killed,
    "eight": one_of_eight,
}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line for each demonstration."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--histories", type=int, default=20)
    parser.add_argument("--units", type=int, default=16)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--only", nargs="*", choices=PARTS, default=list(PARTS))
    parser.add_argument("--keep", type=Path, help="folder for the records; none by default")
    options = parser.parse_args(arguments)
    folder = options.keep or Path(tempfile.mkdtemp(prefix="kvproof-shows-"))
    try:
        for name in options.only:
            PARTS[name](folder / name, options.histories, options.units, options.turns)
    finally:
        if not options.keep:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
