"""Threads that an interrupt does not wait for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager


@contextmanager
def interruptible(
    at_once: int, stop: Callable[[], object], *, when: type[BaseException] = KeyboardInterrupt
) -> Iterator[ThreadPoolExecutor]:
    """Run tasks in `at_once` threads; leaving the block waits for all of them.

    An exception of type `when` in the block calls `stop` first, which must end the tasks under
    way. A bare executor waits without it, also for a task that was started a moment before.
    """
    pool = ThreadPoolExecutor(at_once)
    try:
        yield pool
    except when:
        stop()
        raise
    finally:
        pool.shutdown()
