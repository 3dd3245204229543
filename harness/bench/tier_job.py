"""A shared store of KV objects under several engines, in the worker of a target (Python 3.10).

`open` starts a server and engines, each a process; `turn` measures; `close` ends them. They stay
between the calls, so that turns of several targets can alternate.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvproof.harness.contract.tier import in_shared_memory
from kvproof.harness.isolation.process import WorkerProcess

OPERATIONS = ("memcpy", "copy_in", "copy_out", "store", "lookup", "retrieve")
IN_SHARED_MEMORY = ("copy_in", "copy_out")
"""Plain copies, measured for comparison with a store in shared memory."""
ROUNDS = 2
"""Repetitions of all operations in a turn."""
_CPU_CLOCK = 2
"""CPUCLOCK_SCHED: nanoseconds that all threads of a process ran."""
_PATIENCE = 10.0
"""Seconds in which a process that has lost its input should have left the store."""
_RUNNING: dict[str, _Tier] = {}


def start(arguments: dict[str, Any]) -> dict[str, Any]:
    """Start a server of `room` bytes and `clients` engines.

    Arguments: factory, tier (its name), clients, room. Result: `copies` of each byte by operation.
    """
    tiers, name = _tiers(arguments["factory"]), arguments["tier"]
    _end(name)
    _RUNNING[name] = tier = _Tier(tiers[name], arguments["clients"], arguments["room"])
    if tier.missing:
        _end(name)
        return {"unsupported": tier.missing}
    return {"copies": tier.copies}


def names(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the names of the tiers of a target. Argument: factory."""
    if found := _tiers(arguments["factory"]):
        return {"names": [*found]}
    module = arguments["factory"].partition(":")[0]
    return {"unsupported": f"{module} names no TIERS: no store that others share"}


def _tiers(factory: str) -> dict[str, str]:
    module = importlib.import_module(factory.partition(":")[0])
    found: dict[str, str] = getattr(module, "TIERS", {})
    return found


def turn(arguments: dict[str, Any]) -> dict[str, Any]:
    """Measure each operation, with the first `clients` engines at the same time.

    Of `ROUNDS` rounds the last one counts: in the first one, code and tables of pages are cold
    because another store had its turn.

    Arguments: tier, clients, size (bytes of an object), objects (of each engine), first (register
    the pages, and check all bytes once). Result: operation -> {objects, cpu_seconds (of engines and
    server), wall_seconds (of the slowest engine)}, and `problem`, which ends the tier.
    """
    tier, count = _RUNNING[arguments["tier"]], arguments["clients"]
    if arguments["first"]:
        tier.ask(count, "register", arguments["size"], arguments["objects"])
    for _ in range(ROUNDS):
        tier.ask(count, "clear")
        found: dict[str, Any] = {name: tier.timed(count, name) for name in tier.operations}
    wanted = count * arguments["objects"]
    short = [name for name in found if found[name]["objects"] != wanted]
    problem = f"{', '.join(short)}: fewer than the {wanted} objects" if short else ""
    if arguments["first"] and not all(a["intact"] for a in tier.ask(count, "intact")):
        problem = "retrieved bytes differ from the stored ones"
    if problem:
        _end(arguments["tier"])
    return {**found, "problem": problem}


def stop(arguments: dict[str, Any]) -> dict[str, Any]:
    """End server and engines. Argument: tier."""
    _end(arguments["tier"])
    return {}


def _end(name: str) -> None:
    if running := _RUNNING.pop(name, None):
        running.close()


class _Tier:
    def __init__(self, module: str, clients: int, room: int) -> None:
        self._folder = tempfile.mkdtemp(prefix="kvproof-tier-")
        self._engines: list[_Process] = []
        self._server = _Process("server", module, self._folder, room)
        self.copies: dict[str, int] = {}
        self.missing = ""
        """Why there is none on this machine."""
        try:
            ready = self._server.answer()
            if why := ready.get("unsupported"):
                self.missing = why
                return
            self._server.clock = int(ready["process"])
            self._engines += [_Process("engine", module, self._folder, n) for n in range(clients)]
            for engine in self._engines:
                self.copies = engine.answer()["copies"]
        except BaseException:
            self.close()
            raise

    @property
    def operations(self) -> list[str]:
        """Those that are measured, in this order."""
        shared = in_shared_memory(self.copies)
        return [name for name in OPERATIONS if shared or name not in IN_SHARED_MEMORY]

    def ask(self, count: int, *message: object) -> list[dict[str, Any]]:
        """Ask the first engines the same at the same time."""
        for engine in self._engines[:count]:
            engine.send(message)
        return [engine.answer() for engine in self._engines[:count]]

    def timed(self, count: int, operation: str) -> dict[str, Any]:
        began = self._server.cpu_seconds()
        answers = self.ask(count, operation)
        return {
            "objects": sum(each["objects"] for each in answers),
            "cpu_seconds": sum(each["cpu_seconds"] for each in answers)
            + self._server.cpu_seconds()
            - began,
            "wall_seconds": max(each["wall_seconds"] for each in answers),
        }

    def close(self) -> None:
        for process in (*self._engines, self._server):
            process.close()
        shutil.rmtree(self._folder, ignore_errors=True)


class _Process:
    """The server, or one engine, that answers lines of JSON."""

    def __init__(self, role: str, module: str, folder: str, number: int) -> None:
        command = [sys.executable, "-I", str(Path(__file__).with_name("tier_process.py"))]
        self._role = role
        self._worker = WorkerProcess(
            [*command, role, module, folder, str(number)],
            Path(folder, f"{role}-{number}.log"),
            environment={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        self.clock = self._worker.pid
        """The process whose time counts."""

    def send(self, message: Sequence[object]) -> None:
        self._worker.send(json.dumps(message).encode(), math.inf)

    def answer(self) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = json.loads(self._worker.receive(math.inf))
        except EOFError as error:
            ended, log = self._worker.how_it_ended(), self._worker.log_tail()
            raise RuntimeError(f"the {self._role} of the tier ended: {ended}\n{log}") from error
        return answer

    def cpu_seconds(self) -> float:
        """Of all its threads, by its own clock (clock_getcpuclockid)."""
        return time.clock_gettime((~self.clock << 3) | _CPU_CLOCK)

    def close(self) -> None:
        self._worker.end(_PATIENCE)
