"""From a target's name (`reference`, `vllm==0.33.0`, `my_pkg.cache:make_target`) to a handle."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

from kvproof.harness.contract.target import Target, TargetConfig
from kvproof.harness.errors import TargetDied, UsageError
from kvproof.harness.isolation import connected, environments, fit, worker_main
from kvproof.harness.isolation.chosen import VARIABLE, Chosen, chosen, is_engine, named
from kvproof.harness.isolation.environments import EngineVersion
from kvproof.harness.isolation.handles import Handle, InProcessHandle
from kvproof.harness.isolation.worker_handle import WorkerHandle
from kvproof.kernels.entry_points import Offer, offers, usable, why_not

GROUP = "kvproof.targets"
"""Entry-point group through which packages offer targets."""


class TargetRow(NamedTuple):
    """One line of `kvproof targets`."""

    name: str
    """Name for `--target`."""
    isolation: str
    """`in_process` or `worker`."""
    state: str
    """`ready`, `installed`, `outdated`, `missing`, or `not usable: ` with the reason."""
    command: str
    """Command that makes it ready; empty if it is."""


def list_targets() -> list[TargetRow]:
    """Everything that `open_handle` accepts by name, environments for each known version."""
    installed = [*environments.known(), *environments.others()]
    cards = (TargetRow(str(each), "worker", _NO_KERNELS, "") for each in environments.ON_A_CARD)
    return [*map(_offered, _offers()), *map(_row, installed), *cards]


_NO_KERNELS = "not usable: it needs a GPU and, by --python, an environment with its own kernels"


def _offered(each: Offer) -> TargetRow:
    state = f"not usable: {each.problem}" if each.problem else "ready"
    return TargetRow(each.name, "in_process" if each.ours else "worker", state, "")


def _row(each: EngineVersion) -> TargetRow:
    state = environments.state(each)
    command = "" if state == "installed" else _install_command(each)
    return TargetRow(str(each), "worker", state, command)


def _install_command(each: EngineVersion) -> str:
    return f"kvproof targets install {each}"


def _offers() -> list[Offer]:
    return offers(GROUP, reserved={ALL, *environments.engines()})


ALL = "all"
"""Stands for every target that is ready: those of this process, and installed environments."""


def expand(specs: Sequence[str]) -> list[str]:
    """Put every target that is ready in place of `all`; each target once."""
    ready = [row.name for row in list_targets() if row.state in ("ready", "installed")]
    named = [name for spec in specs for name in (ready if spec == ALL else [spec])]
    return list(dict.fromkeys(named))


def check_names(specs: Sequence[str]) -> None:
    """Raise UsageError for a name that `open_handle` does not know; opens and imports nothing."""
    names = {each.name for each in _offers()}
    for spec in specs:
        engine, connector = connected.divided(spec)
        if connector and engine.partition("==")[0] in connected.ENGINES:
            connected.check(connector)
        elif ":" in spec:
            _factory(spec)
        elif spec not in names and not is_engine(spec):
            raise _unknown(spec.partition("==")[0])


OWN_SECONDS = 10.0
"""Seconds in which a user's target answers; its profile may raise them."""

OWN_START = 30.0
"""Seconds in which a user's target is imported, and its profile is read from a first one."""

OWN_MEMORY = 2 << 30
"""Bytes that the worker of a user's target may map beyond its imports."""


class OwnTargets(NamedTuple):
    """How targets run that are neither kvproof's nor locked engines."""

    in_process: bool = False
    """For debugging: a crash then ends kvproof, and a hang is for ever."""
    memory: int = OWN_MEMORY
    """Bytes that the worker may map beyond its imports; 0: any amount."""
    python: str = ""
    """Interpreter that engines are imported by, in place of kvproof's environments of them."""
    start: float = OWN_START
    """Seconds for its import, and for its first `__init__` and `close`."""
    known_failures: str = ""
    """File with the known failures of targets, as `kvproof xfail` writes it; empty: none."""
    connector_options: tuple[str, ...] = ()
    """Settings of a connector of the user's own, as `key=value`."""

    def recorded(self) -> dict[str, Any]:
        """Return the unusual choices for a run's configuration."""
        return {
            name: value
            for name, value in self._asdict().items()
            if value != self._field_defaults[name]
        }


USUAL = OwnTargets()


def open_handle(
    spec: str, *, log_directory: Path | None = None, options: OwnTargets = USUAL
) -> Handle:
    """A handle for `spec`; workers log to `<log_directory>/<spec>.log`.

    Its profile is read now. Raises UsageError, with the closest name or the command to run, if
    there is no such target, if another release runs than its name states, or if a field of its
    profile is not legal.
    """
    handle = _opened(spec, log_directory, options)
    handle.known_failures = options.known_failures
    try:
        with suppress(TargetDied):  # its verdict comes when it is started
            _ = handle.profile
    except BaseException:
        handle.close()
        raise
    return handle


def _opened(spec: str, log_directory: Path | None, options: OwnTargets) -> Handle:
    engine, connector = connected.divided(spec)
    if connector and engine.partition("==")[0] in connected.ENGINES:
        return _connected(engine, connector, options, log_directory)
    if "==" in spec or is_engine(spec):
        return _fitting(_engine(spec, options.python), log_directory)
    if ":" in spec:
        return _own(spec, _factory(spec), options, log_directory)
    found = _offers()
    offer = usable(found).get(spec)
    if offer is None:
        _refuse(spec, why_not(found, spec), "kvproof targets lists what can be used")
        raise _unknown(spec)
    if offer.ours:  # its suites import it
        return InProcessHandle(spec, worker_main.load(offer.factory))
    return _own(spec, offer.factory, options, log_directory)


def _connected(
    engine: str, connector: str, options: OwnTargets, log_directory: Path | None
) -> WorkerHandle:
    connected.check(connector)
    handle = _fitting(_engine(engine, options.python), log_directory)
    try:
        connected.connect(handle, connector, options.connector_options)
    except BaseException:
        handle.close()
        raise
    return handle


def open_target(spec: str, config: TargetConfig) -> Target:
    """One target for a script; its `close` also ends the worker. Raises as `open_handle`."""
    handle = open_handle(spec)
    try:
        target = handle.create(config)
    except BaseException:
        handle.close()
        raise
    cast("Any", target).close = partial(_close_both, target.close, handle)
    return target


def _close_both(close_target: Callable[[], None], handle: Handle) -> None:
    try:
        close_target()
    finally:
        handle.close()


def _installed(spec: str) -> EngineVersion:
    """The environment meant by `engine==version`, or by the engine's name if only one is there."""
    engine, _, version = spec.partition("==")
    if engine not in environments.engines():
        raise _unknown(engine)
    versions = [*environments.known(), *environments.others()]
    wanted = [each for each in versions if each.engine == engine]
    if version:
        wanted = [environments.parse(spec)]
    ready = [each for each in wanted if environments.state(each) == "installed"]
    if len(ready) == 1:
        return ready[0]
    if ready:
        choices = ", ".join(map(str, ready))
        raise UsageError(f"target {spec!r} is installed in several versions", f"say one: {choices}")
    last = wanted[-1] if version else [each for each in wanted if each.locked][-1]
    there = f"; to use an environment of your own, pass --python PATH or set {VARIABLE}"
    raise UsageError(
        f"the environment of target {last} is {environments.state(last)}",
        _install_command(last) + there * (environments.state(last) == "missing"),
    )


def engine_handle(spec: str, *, python: str, log_directory: Path) -> WorkerHandle:
    """A handle of an engine that is not asked yet whether its adapter fits. Raises UsageError."""
    return _worker(_engine(spec, python), log_directory)


def _engine(spec: str, python: str) -> EngineVersion | Chosen:
    there = named(python)
    if there and is_engine(spec):
        return chosen(spec, there)
    if spec.partition("==")[0] in {each.engine for each in environments.ON_A_CARD}:
        raise UsageError(
            f"target {spec!r} runs the engine's own kernels, which no environment of ours has",
            f"on a machine with a GPU: --python PATH of your own environment, or set {VARIABLE}",
        )
    return _installed(spec)


def _fitting(wanted: EngineVersion | Chosen, log_directory: Path | None) -> WorkerHandle:
    """A handle; the adapter of a release that no lock file is for is asked whether it fits."""
    handle = _worker(wanted, log_directory)
    if isinstance(wanted, EngineVersion) and wanted.locked:
        return handle
    try:
        fit.refuse(handle.name, fit.differences(handle))
    except BaseException:
        handle.close()
        raise
    return handle


def _worker(wanted: EngineVersion | Chosen, log_directory: Path | None) -> WorkerHandle:
    folder = log_directory or _scratch()
    log = folder / f"{wanted.engine}-{wanted.version}.log"
    version = wanted.version
    return WorkerHandle(str(wanted), wanted.python, wanted.factory, log, version=version)


def _scratch() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="kvproof-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _own(spec: str, factory: str, options: OwnTargets, log_directory: Path | None) -> Handle:
    """A handle of the user's own factory, imported also from the working directory."""
    if options.in_process:
        return _inside(spec, factory)
    log = (log_directory or _scratch()) / f"{re.sub(r'[^A-Za-z0-9_.]+', '-', spec)}.log"
    handle = WorkerHandle(
        spec,
        Path(sys.executable),
        factory,
        log,
        search_path=[os.getcwd(), *sys.path],  # noqa: PTH109 - sys.path holds strings
        memory=options.memory,
        call_timeout=OWN_SECONDS,
        start_timeout=options.start,
    )
    try:
        with suppress(TargetDied):  # its verdict comes when it is started
            _refuse(spec, *handle.problem())
    except BaseException:
        handle.close()
        raise
    return handle


def _inside(spec: str, factory: str) -> InProcessHandle:
    """The directory stays in `sys.path` until the handle is closed: a target may import more."""
    directory = os.getcwd()  # noqa: PTH109 - sys.path holds strings
    sys.path.insert(0, directory)
    try:
        _refuse(spec, *worker_main.problem_of(factory))
        return InProcessHandle(spec, worker_main.load(factory), search_path=directory)
    except BaseException:
        sys.path.remove(directory)
        raise


def _refuse(spec: str, problem: str, hint: str) -> None:
    if problem:
        raise UsageError(f"target {spec!r} {problem}", hint)


def _factory(spec: str) -> str:
    module, _, attribute = spec.partition(":")
    if not all(name.isidentifier() for name in [*module.split("."), attribute]):
        raise UsageError(
            f"target {spec!r} is not of the form package.module:function", worker_main.HOW_TO_NAME
        )
    return spec


def _unknown(name: str) -> UsageError:
    names = [row.name for row in list_targets() if not row.state.startswith("not usable")]
    engines = {row.partition("==")[0]: row for row in names}
    close = get_close_matches(name, engines, n=1, cutoff=0.5)
    guess = f"did you mean {engines[close[0]]!r}? " if close else ""
    return UsageError(
        f"unknown target {name!r}",
        f"{guess}known targets: {', '.join(names)}; your own: package.module:function",
    )
