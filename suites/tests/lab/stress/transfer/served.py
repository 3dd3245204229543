"""Chunks through the memory of a cache server: the same bytes as in process (G8)."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from multiprocessing.connection import Connection
from typing import Any

import msgspec
import numpy as np
import torch

from kvproof.harness.oracle.violation import Violation
from kvproof.reference.cache_server.arena import Arena, attach
from kvproof.reference.cache_server.core import Settings
from kvproof.reference.cache_server.messages import Welcome
from kvproof.reference.cache_server.process import this_process
from kvproof.reference.transfer.grouped import Transfer
from kvproof.reference.transfer.host_object import HostObject
from kvproof.reference.transfer.layer_groups import layer_groups
from kvproof.reference.transfer.pinned import Pinned
from kvproof.reference.transfer.staging import Staging
from kvproof.suites.framework.component_suite import Config
from kvproof.suites.framework.coverage import Coverage
from kvproof.suites.reference.cache_server.local import LocalServer
from kvproof.suites.reference.transfer.machine import TransferMachine
from kvproof.suites.reference.transfer.properties import PROPERTIES
from kvproof.suites.reference.transfer.subject import hint_of, registered
from kvproof.suites.tests.lab.stress.transfer.round_trip import ids_of
from kvproof.suites.tests.lab.stress.transfer.shared_pages import open_shared, share

KEYS = [bytes([number]) * 32 for number in range(2)]
GENERATION = 1
SECONDS = 60
"""Limit for the other process."""


def through_a_server(config: Config) -> Counter[str]:
    """One client stores chunks straight from its pages, another one reads them into its own."""
    coverage = Coverage(PROPERTIES)
    writer, reader, twin = (TransferMachine(config, coverage) for _ in range(3))
    layout = writer.subject.layout
    server = LocalServer(Settings(size=2 * layout.nbytes + 4096))
    pinned = _pinned(config, memoryview(server.arena))
    ids = ids_of(writer, 2, 0)
    reported = bytes.fromhex(layout.fingerprint)
    with server.client(layout=reported) as one, server.client(layout=reported) as two:
        room = one.reserve(dict.fromkeys(KEYS, layout.nbytes))
        lend(writer, [0, 1], [room.views[key] for key in KEYS])
        writer.store(ids=ids, objects=[0, 1], skip=0)
        take_back(writer, [0, 1])
        room.commit()
        twin.store(ids=ids, objects=[0, 1], skip=0)
        lease = two.acquire(KEYS)
        same = [
            view is not None and bytes(view) == bytes(twin.subject.bytes_of(at))
            for at, view in enumerate(lease.views)
        ]
        coverage.check(
            "stored_bytes_equal_the_pages",
            all(same),
            lambda: f"chunks through the cache server are those of in process: {same}",
        )
        lend(reader, [2, 3], [view for view in lease.views if view is not None])
        reader.retrieve(ids=ids_of(reader, 2, 2), objects=[2, 3], skip=0)
        take_back(reader, [2, 3])
        lease.release()
    del pinned
    return coverage.checks


def lend(machine: TransferMachine, numbers: list[int], views: list[memoryview]) -> None:
    """Move objects of a machine to other memory, with their bytes."""
    for at, view in zip(numbers, views, strict=True):
        machine.objects[at][:] = np.frombuffer(view, np.uint8)
        machine.subject.objects[at] = HostObject.over(machine.subject.layout, view)


def take_back(machine: TransferMachine, numbers: list[int]) -> None:
    """Give a machine memory of its own for objects, with the same bytes."""
    machine.subject.settle()
    for at in numbers:
        lent, machine.subject.objects[at] = machine.subject.objects[at], machine.subject.object()
        machine.subject.objects[at].raw.copy_(lent.raw)


def _pinned(config: Config, memory: memoryview) -> Pinned | None:
    on_gpu = torch.device(config.get("device", "cpu")).type == "cuda"
    return Pinned(memory) if on_gpu else None


# --- two processes ---


def in_two_processes(config: Config) -> Counter[str]:
    """Another process reads chunks out of shared memory into its own pages.

    On a GPU it then stores and retrieves the pages of this one, by CUDA IPC.
    """
    coverage = Coverage(PROPERTIES)
    mine, twin = (
        TransferMachine(config, coverage),
        TransferMachine(config | {"device": "cpu"}, coverage),
    )
    layout = mine.subject.layout
    step = -(-layout.nbytes // 64) * 64
    arena = Arena(4 * step, GENERATION)
    try:
        welcome = Welcome(b"", this_process(), arena.descriptor, 4 * step, 60.0)
        memory = attach(welcome, GENERATION)
        pinned = _pinned(config, memory)
        chunks = [memory[at * step :][: layout.nbytes] for at in range(4)]
        lend(mine, [0, 1], chunks[:2])
        for machine in (mine, twin):
            machine.store(ids=ids_of(machine, 2, 0), objects=[0, 1], skip=0)
        shared = share(mine.subject.tensors) if pinned else b""
        reported = _other(config, msgspec.msgpack.encode(welcome), shared)
        if reported:
            raise Violation("retrieved_bytes_reach_their_blocks", "", reported)
        coverage.checks["retrieved_bytes_reach_their_blocks"] += 1
        if shared:
            _judge_shared(coverage, mine, twin, [bytes(chunk) for chunk in chunks])
        return coverage.checks
    finally:
        arena.close()


def _judge_shared(
    coverage: Coverage, mine: TransferMachine, twin: TransferMachine, chunks: list[bytes]
) -> None:
    """Compare the other process's work on these pages with a CPU alone."""
    coverage.check(
        "stored_bytes_equal_the_pages",
        chunks[:2] == chunks[2:],
        lambda: "chunks that another process stored by CUDA IPC have other bytes",
    )
    twin.retrieve(ids=ids_of(twin, 2, 2), objects=[0, 1], skip=0)
    for name, pages in mine.subject.pages.items():
        coverage.check(
            "retrieved_bytes_reach_their_blocks",
            np.array_equal(pages.read(), twin.pages[name]),
            lambda: "pages that another process wrote by CUDA IPC have other bytes",
        )


def _other(config: Config, welcome: bytes, shared: bytes) -> str:
    """Run the other process; returns its errors."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_over_there, args=(there, config, welcome, shared))
    process.start()
    there.close()
    try:
        reported: str = here.recv() if here.poll(SECONDS) else f"no answer within {SECONDS} s"
    except EOFError:
        reported = "the other process ended without an answer"
    finally:
        process.join(SECONDS)
        if process.is_alive():
            process.kill()
            process.join()
    return reported


def _over_there(answer: Connection[str, str], config: Config, data: bytes, shared: bytes) -> None:
    try:
        _work_over_there(config, msgspec.msgpack.decode(data, type=Welcome), shared)
        answer.send("")
    except Exception as error:  # noqa: BLE001 - the other side tells it
        answer.send(f"{type(error).__name__}: {error}")


def _work_over_there(config: Config, welcome: Welcome, shared: bytes) -> None:
    machine = TransferMachine(config, Coverage(PROPERTIES))
    subject, step = machine.subject, welcome.size // 4
    memory = attach(welcome, GENERATION)
    pinned = _pinned(config, memory)
    chunks = [memory[at * step :][: subject.layout.nbytes] for at in range(4)]
    lend(machine, [0, 1, 2, 3], chunks)
    machine.retrieve(ids=ids_of(machine, 2, 2), objects=[0, 1], skip=0)
    if shared:
        transfer = _transfer_of(machine, open_shared(shared))
        stored = transfer.store(machine.ids_of(ids_of(machine, 2, 0)), subject.objects[2:4])
        stored.synchronize()
        back = transfer.retrieve(machine.ids_of(ids_of(machine, 2, 2)), subject.objects[:2])
        back.synchronize()
    take_back(machine, [0, 1, 2, 3])
    del pinned


def _transfer_of(machine: TransferMachine, tensors: dict[str, Any]) -> Transfer:
    caches = machine.subject.caches
    groups = layer_groups(
        registered(caches, tensors), hints={cache.name: hint_of(cache) for cache in caches}
    )
    staging = Staging(machine.subject.layout, slots=3, device=machine.subject.device)
    return Transfer(groups, machine.subject.layout, staging=staging)
