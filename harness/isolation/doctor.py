"""Checks of this machine for kvproof: missing parts, and the commands that install them."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from re import match
from typing import Literal, NamedTuple

from kvproof.harness.isolation import environments

GPU_EXTRA = '"kvproof[gpu]"'
"""Argument of `pip install` for all packages that kernels need."""

State = Literal["ok", "missing", "problem"]

KERNELS_NEED = ("torch", "triton")
"""Those of the extra gpu, which installs versions that fit each other."""

_LEAST_MEMORY = 4 << 30
"""Bytes; one vLLM worker takes 0.5 GiB when idle, and prompts and cached blocks come on top."""

_COARSEST_CLOCK = 5e-6
"""Seconds; a request takes some ten microseconds, and a reading up to two on a busy machine."""


class Extra(NamedTuple):
    """An optional package."""

    package: str
    extra: str
    """Name of the extra of kvproof that installs it."""
    needed_by: str


_EXTRAS = (
    Extra("torch", "gpu", "kernels and Hugging Face models"),
    Extra("triton", "gpu", "kernels"),
    Extra("transformers", "hf", "Hugging Face models"),
    Extra("fastapi", "serve", "kvproof serve"),
    Extra("uvicorn", "serve", "kvproof serve"),
    Extra("prometheus-client", "metrics", "metrics for Prometheus"),
    Extra("pyzmq", "server", "kvproof cache-server"),
    Extra("redis", "redis", "stores and fuzz databases in Redis or Valkey"),
    Extra("ray", "ray", "--ray of kvproof fuzz and kvproof sweep"),
    Extra("duckdb", "duckdb", "kvproof history --sql"),
)


class Finding(NamedTuple):
    """One line of `kvproof doctor`."""

    name: str
    state: State
    """`missing` is optional and gets skipped; `problem` breaks or distorts something."""
    detail: str
    command: str = ""
    """Command of the fix; empty if none is needed, or no single command does it."""


def diagnose() -> list[Finding]:
    """All findings, most basic first."""
    return [
        _python(),
        *_core(),
        *_optional(),
        *_environments(),
        _home(),
        _processor(),
        _memory(),
        *_clocks(),
    ]


def _python() -> Finding:
    return Finding("python", "ok", f"{platform.python_version()} in {sys.prefix}")


def _core() -> Iterator[Finding]:
    for requirement in requires("kvproof") or ():
        name = match(r"[\w.-]+", requirement)
        if name and "extra ==" not in requirement:
            yield _package(name[0], "problem", f"pip install '{requirement}'")


def _optional() -> Iterator[Finding]:
    for package, extra, needed_by in _EXTRAS:
        found = _package(package, "missing", f'pip install "kvproof[{extra}]"')
        lacking = found.state == "missing"
        yield found._replace(detail=f"not installed, for {needed_by}") if lacking else found
    yield _gpu()


def _gpu() -> Finding:
    without = "none found: kernels are checked in Triton's interpreter, and not timed"
    query = "--query-gpu=name,memory.total,driver_version"
    try:
        done = subprocess.run(  # noqa: S603 - fixed arguments
            ["nvidia-smi", query, "--format=csv,noheader"],  # noqa: S607 - the user's driver
            capture_output=True,
            text=True,
            check=False,
            timeout=20,
        )
    except FileNotFoundError:
        return Finding("GPU", "missing", without)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding("GPU", "problem", f"nvidia-smi does not answer: {error}")
    found = "; ".join(done.stdout.splitlines())
    if done.returncode or not found:
        return Finding("GPU", "problem", f"nvidia-smi: {(done.stdout or done.stderr).strip()}")
    return Finding("GPU", "ok", found)


def _package(name: str, otherwise: State, command: str) -> Finding:
    try:
        return Finding(name, "ok", version(name))
    except PackageNotFoundError:
        return Finding(name, otherwise, "not installed", command)


def _environments() -> Iterator[Finding]:
    states: dict[str, State] = {"installed": "ok", "missing": "missing", "outdated": "problem"}
    for each in environments.known():
        state = environments.state(each)
        command = "" if state == "installed" else f"kvproof targets install {each}"
        detail = f"{state} in {each.directory}" if state != "missing" else "not installed"
        yield Finding(str(each), states[state], detail, command)


def _home() -> Finding:
    folder = environments.home()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            free = shutil.disk_usage(folder).free
    except OSError as error:
        detail = f"cannot write {str(folder)!r}: {error.strerror}"
        return Finding("home", "problem", detail, "export KVPROOF_HOME=<a writable folder>")
    return Finding("home", "ok", f"{folder}, {free / 2**30:.0f} GiB free")


def _processor() -> Finding:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return Finding("processor", "ok", f"{usable} usable cores, {platform.machine()}")


def _memory() -> Finding:
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    fit = total >= _LEAST_MEMORY
    needed = "" if fit else f", {_LEAST_MEMORY >> 30} GiB needed"
    return Finding("memory", "ok" if fit else "problem", f"{total / 2**30:.1f} GiB{needed}")


def _clocks() -> Iterator[Finding]:
    for name, clock in (("wall clock", time.perf_counter), ("CPU clock", time.thread_time)):
        step = min(_step(clock) for _ in range(100))
        state: State = "ok" if step <= _COARSEST_CLOCK else "problem"
        yield Finding(name, state, f"smallest step {step * 1e9:.0f} ns")


def _step(clock: Callable[[], float]) -> float:
    first = later = clock()
    while later == first:
        later = clock()
    return later - first
