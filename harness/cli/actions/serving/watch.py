"""`kvproof watch`: start an engine, or join one, and judge its caches while it runs."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from kvproof.harness.cli.runs import ActiveRun, new_directory, run_directory
from kvproof.harness.errors import Exit, UsageError
from kvproof.harness.recorder import boot_folder
from kvproof.harness.recorder.codec import pack
from kvproof.harness.recorder.import_hook import DIRECTORY, WATCH
from kvproof.harness.recorder.recording import Header, Line, Place
from kvproof.harness.recorder.verdict import RunningCheck, doubts
from kvproof.harness.records.events import Checked, HarnessFault
from kvproof.harness.watch.engine import Engine, collected, runnable
from kvproof.harness.watch.folder import WatchedFolder
from kvproof.harness.watch.watched import Incident, Kept, WatchedCache
from kvproof.reports.values.text import clean, one_line, plural

_MEMORY = Path("/dev/shm")  # noqa: S108 - shared memory; the folder in it has a random name
_UNJUDGED = "counters, refusals, eviction order, drafts that were rejected, bytes"


class Options(NamedTuple):
    """The user's settings."""

    keep: float = 60.0
    """Seconds before a violation that are written with it."""
    every: float = 60.0
    """Seconds between two lines."""
    metrics_port: int = 0
    """0: no metrics."""


def watch(
    command: Sequence[str], *, output: Path | None, attach: Path | None, options: Options
) -> int:
    """Judge until the engine has ended, or until a signal; returns the exit code.

    Raises UsageError for an unusable command, folder or port.
    """
    _refuse(command, attach, options)
    directory = output or new_directory("watch")
    config = {"command": list(command), "attach": str(attach or ""), **options._asdict()}
    with (
        _memory(attach) as memory,
        run_directory("watch", config=config, output=directory, console=Console(stderr=True),
                      resumes="never") as active,
    ):  # fmt: skip
        folder = WatchedFolder(memory, Kept(directory / "incidents", options.keep))
        ended = _Watch(active, folder, options).run(command, memory)
    return _exit_code(active.exit_code, *ended)


def _refuse(command: Sequence[str], attach: Path | None, options: Options) -> None:
    if bool(command) == (attach is not None):
        raise UsageError(
            "give a command or --attach, and one of them",
            "kvproof watch -- vllm serve MODEL, or --attach FOLDER beside KVPROOF_WATCH=FOLDER",
        )
    if os.environ.get(DIRECTORY):
        raise UsageError(
            f"{DIRECTORY} is set: an engine is recorded or watched",
            f"unset {DIRECTORY}; an incident has the recording",
        )
    if command:
        runnable(command[0])
    for name, seconds in (("--keep", options.keep), ("--every", options.every)):
        if not 1 <= seconds <= 86_400:
            raise UsageError(f"{name} {seconds:g} is not between 1 and 86400 seconds",
                             "for example 60")  # fmt: skip


@contextmanager
def _memory(attach: Path | None) -> Iterator[Path]:
    """Yield the folder of the rings; one of ours is removed in the end."""
    if attach is not None:
        try:
            attach.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"cannot read {str(attach)!r}: {error.strerror}") from error
        yield attach
        return
    parent = _MEMORY if os.access(_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="kvproof-watch-", dir=parent) as folder:
        yield Path(folder)


def _exit_code(verdict: int, received: Sequence[int], engine: int) -> int:
    """A violation comes first, then the engine's own code, then that of Ctrl-C."""
    if verdict in (Exit.FAILURE, Exit.HARNESS):
        return verdict
    return engine or (Exit.INTERRUPTED if signal.SIGINT in received else verdict)


def _warm_up() -> None:
    """Judge a pool of two blocks: the first verdict takes as long as hundreds of later ones."""
    header = Header("recording", 1, "none", "0", 2, 1, 1, 0.0)
    check, place = RunningCheck(header, trusting=False), Place(Path(), 0)
    check.take(place, Line("admit", 0, 1, tokens=pack([1]), blocks=pack([1]), stop=1))
    check.take(place, Line("finish", 0, 1))


class _Watch:
    """The loop of one command."""

    def __init__(self, active: ActiveRun, folder: WatchedFolder, options: Options) -> None:
        self._active, self._folder, self._options = active, folder, options
        self._begun: set[str] = set()
        """Caches whose first line was shown."""
        self._refused = 0

    def run(self, command: Sequence[str], memory: Path) -> tuple[Sequence[int], int]:
        """Watch; returns the signals that came and the engine's exit code."""
        with collected() as received:
            try:
                if self._options.metrics_port:
                    _publish(self._folder, self._options.metrics_port)
                if command:
                    code = self._below(command, memory, received)
                else:
                    code = self._beside(memory, received)
                self._conclude()
            finally:
                self._folder.close()
        return received, code

    def _below(self, command: Sequence[str], memory: Path, received: list[int]) -> int:
        paths = [str(boot_folder()), *filter(None, [os.environ.get("PYTHONPATH")])]
        own = {"PYTHONPATH": os.pathsep.join(paths), WATCH: str(memory)}
        _warm_up()
        engine = Engine(command, {**os.environ, **own})
        _say(f"watching process {engine.process}; incidents go to {self._active.writer.directory}")
        shown, passed_on = time.monotonic(), 0
        while engine.poll() is None:
            for number in received[passed_on:]:
                engine.send(number)
                passed_on += 1
            shown = self._look(shown)
        self._found(self._folder.drain())
        return engine.code or 0

    def _beside(self, memory: Path, received: list[int]) -> int:
        _say(f"watching engines that have KVPROOF_WATCH={memory}, until Ctrl-C")
        shown = time.monotonic()
        while not received:
            shown = self._look(shown)
        self._found(self._folder.drain())
        return 0

    def _look(self, shown: float) -> float:
        """Judge the new lines; returns when the last line was shown."""
        self._found(self._folder.work())
        self._show_new()
        if time.monotonic() - shown < self._options.every:
            return shown
        for cache in self._folder.caches:
            _say(f"{cache.name}: {_figures(cache)}")
        if not self._folder.caches:
            _say("no cache to judge has appeared yet")
        return time.monotonic()

    def _show_new(self) -> None:
        for cache in self._folder.caches:
            header = cache.header
            if header is not None and cache.name not in self._begun:
                self._begun.add(cache.name)
                _say(
                    f"{cache.name}: {header.target}, {header.num_blocks:,} blocks of "
                    f"{header.block_size} tokens, judged with at most "
                    f"{cache.memory >> 20:,} MiB beside the tokens of its requests"
                )
                _say(f"{cache.name}: not judged: {_unjudged(cache)}")
                for each in cache.header.unjudged if cache.header else ():
                    _say(f"{cache.name}: not judged: {each}")
        for reason in self._folder.refused[self._refused :]:
            _say(f"a cache is not judged: {clean(reason)}")
        self._refused = len(self._folder.refused)

    def _found(self, incidents: Sequence[Incident]) -> None:
        for each in incidents:
            where = f"; incident: {each.folder}" if each.folder else "; no further incident kept"
            _say(one_line(f"VIOLATION {each.message}{where}"))

    def _conclude(self) -> None:
        self._show_new()
        for cache in self._folder.caches:
            if cache.header is not None:
                self._active.write(_checked(cache))
                _say(f"{cache.name}: {_figures(cache)}")
            for fault in cache.faults[:1]:
                self._active.write(HarnessFault(where="kvproof watch", message=fault))
        if not any(cache.header for cache in self._folder.caches):
            reason = "; ".join(self._folder.refused) or "no cache to judge appeared"
            self._active.write(_nothing(reason))


def _unjudged(cache: WatchedCache) -> str:
    header = cache.header
    lost = "" if header and header.maximal and not header.capped else "lost hits, "
    return f"{lost}{_UNJUDGED}"


def _figures(cache: WatchedCache) -> str:
    counts = cache.counts
    broken = ", ".join(f"{count} {prop}" for prop, count in counts.violations.items())
    lost = f"; {plural(counts.lost, 'line')} lost" if counts.lost else ""
    return (
        f"{plural(counts.requests, 'request')}, {counts.judged:.1%} of {counts.tokens:,} tokens "
        f"judged, {counts.hit_tokens:,} of them hit, at most {counts.latest:.2f} s late; "
        f"violations: {broken or 'none'}{lost}"
    )


def _checked(cache: WatchedCache) -> Checked:
    counts, header = cache.counts, cache.header
    assert header is not None
    first, doubt = cache.first, _doubt(cache)
    return Checked(
        target=header.target,
        workload=f"watch {cache.name}",
        block_size=header.block_size,
        num_blocks=header.num_blocks,
        requests=counts.requests,
        tokens=counts.tokens,
        slots_compared=counts.slots,
        verdict="fail" if first else "inconclusive" if doubt else "pass",
        message=f"{first.message}; {_listed(cache)}" if first else doubt,
    )


def _listed(cache: WatchedCache) -> str:
    folder = cache.first.folder if cache.first else None
    broken = ", ".join(f"{count} {prop}" for prop, count in cache.counts.violations.items())
    return f"in all {broken}; incident {folder or 'not written'}"


def _doubt(cache: WatchedCache) -> str:
    counts, header = cache.counts, cache.header
    if header is None:
        return "no request was admitted"
    why = doubts(header, stopped=cache.stopped, requests=counts.requests, hits=counts.hit_tokens)
    return "; ".join(why)


def _nothing(reason: str) -> Checked:
    return Checked(
        target="engine", workload="watch", block_size=0, num_blocks=0, requests=0, tokens=0,
        slots_compared=0, verdict="inconclusive", message=reason,
    )  # fmt: skip


def _publish(folder: WatchedFolder, port: int) -> None:
    try:
        from prometheus_client import CollectorRegistry, start_http_server

        from kvproof.harness.watch.metrics import WatchCollector
    except ImportError as error:
        raise UsageError(str(error), "pip install 'kvproof[metrics]'") from error
    registry = CollectorRegistry()
    registry.register(WatchCollector(folder))
    try:
        start_http_server(port, "127.0.0.1", registry)
    except OSError as error:
        raise UsageError(
            f"cannot listen on port {port}: {error.strerror}", "choose another --metrics-port"
        ) from error
    _say(f"metrics at http://127.0.0.1:{port}/metrics")


def _say(text: str) -> None:
    sys.stderr.write(f"kvproof: {text}\n")
    sys.stderr.flush()
