"""Many processes use one cache server and are killed at random; the server is killed once.

python -m kvproof.suites.tests.lab.stress.cache_server.stress --operations 10000 --clients 8

Bytes follow from the key, so that any reader can check them.
"""

from __future__ import annotations

import multiprocessing
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

from cyclopts import App

from kvproof.reference.cache_server.allocator import rounded
from kvproof.suites.reference.cache_server.model import content, key
from kvproof.suites.tests.lab.stress.cache_server.process import SLOW, ServerProcess
from kvproof.suites.tests.lab.stress.cache_server.stress_client import KEYS, run, size

_SPAWN = multiprocessing.get_context("spawn")
ARENA = 4 << 20
"""Bytes; two thirds of the size of all objects."""
LONGEST_PAUSE = 0.005
"""Seconds between the decision to kill a client and the kill, so that it hits any operation."""

app = App(result_action="return_value", help=__doc__)


class Outcome(NamedTuple):
    """Result of the test."""

    operations: int
    clients: int
    """Processes in all, including replacements of killed ones."""
    kills: int
    server_kills: int
    seconds: float
    wrong: list[str]
    """Errors that clients reported."""
    stuck: int
    """Clients without progress for a minute, or that did not end."""
    checked: int
    """Objects with correct bytes at the end."""
    leftovers: dict[str, int]
    """Remaining resources at the end, by kind; all zero without a leak."""

    @property
    def right(self) -> bool:
        """Whether there is no error, stuck client or leak."""
        return not (self.wrong or self.stuck or any(self.leftovers.values()))


class Clients:
    """A fixed number of client processes; a killed one is replaced."""

    def __init__(self, address: str, folder: Path, clients: int, seed: int) -> None:
        self._address, self._folder, self._seed = address, folder, seed
        self._counts: Any = _SPAWN.RawArray("q", clients)
        self._stop: Any = _SPAWN.RawValue("b", 0)
        self.started = 0
        self._processes: list[BaseProcess] = []
        self._heard = [(0, time.monotonic())] * clients
        for place in range(clients):
            self._processes.append(self._spawn(place))

    @property
    def operations(self) -> int:
        """Completed operations, including those of killed clients."""
        return sum(self._counts)

    @property
    def stuck(self) -> int:
        """Clients without progress for a minute."""
        now = time.monotonic()
        for place, count in enumerate(self._counts):
            if count != self._heard[place][0]:
                self._heard[place] = (count, now)
        return sum(now - since > SLOW for _, since in self._heard)

    def kill(self, place: int) -> None:
        """Kill a client at any point, and start another one."""
        self._processes[place].kill()
        self._processes[place].join()
        self._processes[place] = self._spawn(place)

    def complaints(self) -> list[str]:
        """Return the errors of the clients."""
        return [path.read_text(encoding="utf-8") for path in sorted(self._folder.glob("*.wrong"))]

    def end(self) -> int:
        """Wait for the end of all; returns how many did not end."""
        self._stop.value = 1
        deadline = time.monotonic() + SLOW
        for process in self._processes:
            process.join(max(0.0, deadline - time.monotonic()))
        late = [process for process in self._processes if process.is_alive()]
        for process in late:
            process.kill()
            process.join()
        return len(late)

    def _spawn(self, place: int) -> BaseProcess:
        self.started += 1
        complaint = str(self._folder / f"{self.started}.wrong")
        seed = self._seed * 100_003 + self.started
        self._heard[place] = (self._counts[place], time.monotonic())
        process = _SPAWN.Process(
            target=run, args=(self._address, seed, place, self._counts, self._stop, complaint)
        )
        process.start()
        return process


def stress(
    *, operations: int, clients: int, kill_every: int, server_kills: int = 1, seed: int = 0
) -> Outcome:
    """Run clients for this many operations, and check the remaining objects."""
    began, draw = time.monotonic(), random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        server = ServerProcess(Path(name), size=ARENA)
        with server:
            running = Clients(server.address, Path(name), clients, seed)
            stuck, kills, restarts = 0, 0, 0
            try:
                while (done := running.operations) < operations and not stuck:
                    time.sleep(draw.uniform(0, LONGEST_PAUSE))
                    while done >= (kills + 1) * kill_every:  # they go on during a restart
                        running.kill(draw.randrange(clients))
                        kills += 1
                    if done >= (restarts + 1) * operations // (server_kills + 1):
                        server.kill()
                        server.start()
                        restarts += 1
                    stuck = running.stuck
            finally:
                stuck += running.end()
            checked, leftovers = look(server)
            return Outcome(
                running.operations,
                running.started,
                kills,
                restarts,
                time.monotonic() - began,
                running.complaints(),
                stuck,
                checked,
                leftovers,
            )


def look(server: ServerProcess) -> tuple[int, dict[str, int]]:
    """Check every present object; return their number and the leaked resources."""
    with server.client() as client:
        client.unpin("stress")
        keys = [key(number) for number in range(KEYS)]
        with client.acquire(keys) as lease:
            there = [number for number in range(KEYS) if lease.views[number] is not None]
            wrong = sum(bytes(lease.views[n] or b"") != content(keys[n], size(n)) for n in there)
        reported = client.report()
        client.clear()
        cleared = client.report()
    return len(there), {
        "wrong objects": wrong,
        "leases": reported.leased,
        "reservations": reported.reserved,
        "dropped objects": reported.dropped,
        "pins": reported.pinned,
        "sessions": len(reported.sessions) - 1,
        "bytes of no object": reported.used - sum(rounded(size(number)) for number in there),
        "bytes after a clear": cleared.used,
    }


@app.default
def main(
    *,
    operations: int = 10_000,
    clients: int = 8,
    kill_every: int = 50,
    server_kills: int = 1,
    seed: int = 0,
) -> int:
    """Run and print the result; 1 if anything is wrong."""
    seen = stress(
        operations=operations,
        clients=clients,
        kill_every=kill_every,
        server_kills=server_kills,
        seed=seed,
    )
    lines: Sequence[str] = [
        f"{seen.operations:,} operations by {clients} clients at a time in {seen.seconds:.1f} s",
        f"killed: {seen.kills} clients, the server {seen.server_kills} times",
        f"read and right at the end: {seen.checked} objects",
        *(f"left: {count} {kind}" for kind, count in seen.leftovers.items() if count),
        *(f"wrong: {complaint}" for complaint in seen.wrong[:10]),
        *([f"stuck: {seen.stuck} clients"] if seen.stuck else []),
        "nothing wrong, nothing left" if seen.right else "FAILED",
    ]
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return 0 if seen.right else 1


if __name__ == "__main__":
    sys.exit(app())
