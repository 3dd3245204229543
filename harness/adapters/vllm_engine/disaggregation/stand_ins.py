"""In place of modules and threads: workers of one process do everything in turn."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any


class Module:
    """In place of a module: some names are ours."""

    def __init__(self, module: Any, **ours: Any) -> None:
        vars(self).update(ours)
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


class Unstarted:
    """A thread that never runs: a call that needs its loop runs it."""

    def __init__(self, **_: Any) -> None:
        """Nothing is kept of it."""

    def start(self) -> None:
        """Do nothing."""


class Inline(Executor):
    """Does all that it is given at once."""

    def __init__(self, **_: Any) -> None:
        """There are no threads."""

    def submit(self, call: Callable[..., Any], /, *args: Any, **keywords: Any) -> Future[Any]:
        """Carry out a call. Its errors are those of the future."""
        found: Future[Any] = Future()
        try:
            found.set_result(call(*args, **keywords))
        except Exception as raised:  # noqa: BLE001 - as an executor does
            found.set_exception(raised)
        return found
