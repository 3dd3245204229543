"""Which lines of a subject's functions run: in this process, or as jobs in an engine's.

From Python 3.12 on `sys.monitoring` reports each line once, which costs next to nothing. Before,
functions are compiled again with probes; those that live already get the new code.
"""

from __future__ import annotations

import builtins
import gc
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import decode_source, find_spec
from inspect import CO_NEWLOCALS
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from kvproof.harness.whole_engine.line_probes import RAN, Probes

START = f"{__name__}:start"
LINES = f"{__name__}:lines"
FILES = f"{__name__}:files"
"""Jobs of any engine: trace from now on; lines that have run; a digest of the files."""
_TOOL = 4
"""A number of `sys.monitoring` that no debugger, profiler or coverage takes."""


class ExecutedLines:
    """The lines of functions in some folders that have run inside `running`, by file."""

    def __init__(self, folders: tuple[str, ...]) -> None:
        """Trace the files whose paths begin with one of `folders`."""
        self._trace: _Monitored | _Probed = (
            _Monitored(folders) if sys.version_info >= (3, 12) else _Probed(folders)
        )

    @contextmanager
    def running(self) -> Iterator[None]:
        """Trace everything inside."""
        self._trace.start()
        try:
            yield
        finally:
            self._trace.stop()

    def start(self) -> None:
        """Trace from now on."""
        self._trace.start()

    def taken(self) -> dict[str, list[int]]:
        """Return file -> lines that have run since the last call."""
        return self._trace.taken()


class _Monitored:
    """Traces with events of Python 3.12."""

    def __init__(self, folders: tuple[str, ...]) -> None:
        self._folders = folders
        self._ran: dict[CodeType, set[int]] = {}

    def start(self) -> None:
        if sys.version_info >= (3, 12):
            events = sys.monitoring.events
            if sys.monitoring.get_tool(_TOOL) is None:
                sys.monitoring.use_tool_id(_TOOL, __name__)
            sys.monitoring.register_callback(_TOOL, events.PY_START, self._begun)
            sys.monitoring.register_callback(_TOOL, events.LINE, self._line)
            sys.monitoring.set_events(_TOOL, events.PY_START | events.LINE)
            sys.monitoring.restart_events()

    def stop(self) -> None:
        if sys.version_info >= (3, 12):
            sys.monitoring.set_events(_TOOL, 0)
            sys.monitoring.free_tool_id(_TOOL)

    def taken(self) -> dict[str, list[int]]:
        found = defaultdict[str, set[int]](set)
        for code, lines in list(self._ran.items()):
            found[code.co_filename] |= lines
        self._ran.clear()
        if sys.version_info >= (3, 12):
            sys.monitoring.restart_events()
        return {path: sorted(lines) for path, lines in sorted(found.items())}

    def _begun(self, code: CodeType, offset: int) -> object:
        del offset
        return self._line(code, code.co_firstlineno)

    def _line(self, code: CodeType, line: int) -> object:
        if code.co_flags & CO_NEWLOCALS and code.co_filename.startswith(self._folders):
            self._ran.setdefault(code, set()).add(line)
        if sys.version_info >= (3, 12):
            return sys.monitoring.DISABLE
        return None


class _Probed(MetaPathFinder):
    """Traces with probes: in functions that live now, and in modules imported from now on."""

    def __init__(self, folders: tuple[str, ...]) -> None:
        self._folders = folders
        self._probes = Probes()
        self._kept: list[tuple[FunctionType, CodeType]] = []

    def start(self) -> None:
        setattr(builtins, RAN, self._probes.marks)
        sys.meta_path.insert(0, self)
        mine = [each for each in _living() if each.__code__.co_filename.startswith(self._folders)]
        codes = self._codes({each.__code__.co_filename for each in mine})
        for function in mine:
            code = codes.get(_key(function.__code__))
            if code and code.co_freevars == function.__code__.co_freevars:
                self._kept.append((function, function.__code__))
                function.__code__ = code

    def stop(self) -> None:
        """Code that was made inside keeps its probes, which then mark nothing that is read."""
        sys.meta_path.remove(self)
        while self._kept:
            function, code = self._kept.pop()
            function.__code__ = code

    def taken(self) -> dict[str, list[int]]:
        return self._probes.taken()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find modules in the folders, to be compiled with probes."""
        spec = PathFinder.find_spec(fullname, path, target)
        mine = spec and spec.origin and spec.origin.startswith(self._folders)
        if not (spec and mine and isinstance(spec.loader, SourceFileLoader)):
            return None
        spec.loader = _Loader(fullname, spec.origin or "", self._probes.compiled)
        return spec

    def _codes(self, paths: Iterable[str]) -> dict[tuple[str, str, int], CodeType]:
        modules = [self._probes.compiled(_source(path), path) for path in sorted(paths)]
        return {_key(code): code for module in modules for code in _inner(module)}


class _Loader(SourceFileLoader):
    """Compiles with probes; compiled files are neither read nor written."""

    def __init__(self, name: str, path: str, compiled: Callable[[str, str], CodeType]) -> None:
        super().__init__(name, path)
        self._compiled = compiled

    def get_code(self, fullname: str) -> CodeType:
        """Compile the source."""
        path = self.get_filename(fullname)
        return self._compiled(_source(path), path)


def _living() -> list[FunctionType]:
    """Return all functions, also those that an engine has frozen out of garbage collection."""
    frozen = gc.get_freeze_count()
    gc.unfreeze()
    found = [each for each in gc.get_objects() if type(each) is FunctionType]  # asks no lazy object
    if frozen:
        gc.freeze()
    return found


def _source(path: str) -> str:
    return decode_source(Path(path).read_bytes())


def _key(code: CodeType) -> tuple[str, str, int]:
    return code.co_filename, code.co_qualname, code.co_firstlineno


def _inner(code: CodeType) -> Iterator[CodeType]:
    """Find all code inside of a module's; a lambda or comprehension has no probe."""
    for each in code.co_consts:
        if isinstance(each, CodeType):
            if not each.co_name.startswith("<"):
                yield each
            yield from _inner(each)


_TRACES: list[ExecutedLines] = []


def start(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """A job of any engine: trace the functions of its packages `packages` from now on."""
    _TRACES[:] = [ExecutedLines(tuple(f"{place}/" for place in _places(arguments)))]
    _TRACES[0].start()
    return {}


def lines(_: Mapping[str, Any]) -> dict[str, Any]:
    """A job: the lines that have run in this process since the last such job, by file."""
    return {"lines": _TRACES[0].taken()}


def files(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """A job: a digest of the files of the packages `packages`."""
    found = sha256()
    for place in _places(arguments):
        for path in sorted(Path(place).rglob("*.py")):
            found.update(str(path).encode() + path.read_bytes())
    return {"digest": found.hexdigest()}


def _places(arguments: Mapping[str, Any]) -> list[str]:
    """Return the folders of packages; none is imported, since an engine is set up before that."""
    return [place for name in arguments["packages"] for place in _folders(*name.split("."))]


def _folders(top: str, *inside: str) -> list[str]:
    spec = find_spec(top)
    places = (spec and spec.submodule_search_locations) or ()
    return [str(Path(place, *inside)) for place in places]
