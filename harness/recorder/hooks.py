"""Puts the recorder around functions of an engine, without changing their behaviour."""

from __future__ import annotations

import functools
import importlib.metadata
import logging
import os
import time
from collections.abc import Callable
from typing import Any

from kvproof.harness.recorder.log_writer import Cache, LogWriter, Settings, Tokens
from kvproof.harness.recorder.ring import REFUSED

ATTRIBUTE = "_kvproof_log_writer"
"""Where the log writer of a cache is kept: an attribute of the engine's own object."""

log = logging.getLogger("kvproof.record")


def writer_of(cache: Any) -> LogWriter | None:
    """Return the recorder of a cache, if there is one."""
    return getattr(cache, ATTRIBUTE, None)


Make = Callable[[Any], Callable[..., Any]]
"""Returns the replacement of a function."""


def after(
    react: Callable[..., Any], cache_of: Callable[..., Any] = lambda owner, *_, **__: owner
) -> Make:
    """Call a function, then `react` with the writer, its answer and its arguments.

    `cache_of` returns the recorded cache for these arguments.
    """

    def make(original: Any) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            answer = original(*args, **kwargs)
            writer = writer_of(cache_of(*args, **kwargs))
            if writer is not None:
                writer.guard(react, answer, *args, **kwargs)
            return answer

        return called

    return make


def recorded(describe: Callable[[Any], Cache | str], settings: Settings, tokens: Tokens) -> Make:
    """Make a cache, then start to record it."""

    def make(original: Any) -> Callable[..., None]:
        def made(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            begin(self, describe, settings, tokens)

        return made

    return make


def begin(
    owner: Any, describe: Callable[[Any], Cache | str], settings: Settings, tokens: Tokens
) -> None:
    """Start to record a new cache if that is possible; the log has the reason if not."""
    try:
        cache = describe(owner)
        if isinstance(cache, str):
            log.warning("kvproof record: this cache is not recorded: %s", cache)
            if settings.watched:
                _tell(settings, cache)
        else:
            setattr(owner, ATTRIBUTE, LogWriter(cache, settings, tokens))
            log.info("kvproof record: recording into %s", settings.directory)
    except Exception as error:  # noqa: BLE001 - the engine must not notice
        log.warning("kvproof record: not recording: %s: %s", type(error).__name__, error)


def _tell(settings: Settings, reason: str) -> None:
    """Leave a note for the watcher, whole under its name."""
    settings.directory.mkdir(parents=True, exist_ok=True)
    path = settings.directory / f"{os.getpid()}-{time.monotonic_ns()}.new"
    path.write_text(reason, encoding="utf-8")
    path.rename(path.with_suffix(REFUSED))


def wrap(owner: Any, name: str, make: Make) -> None:
    """Replace `owner.name` by `make` of it, once."""
    original = getattr(owner, name)
    if not hasattr(original, ATTRIBUTE):
        wrapped = functools.wraps(original)(make(original))
        setattr(wrapped, ATTRIBUTE, original)
        setattr(owner, name, wrapped)


def version(package: str) -> str:
    """Return the version of an engine."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
