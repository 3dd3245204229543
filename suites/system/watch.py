"""What the engine decides: which situations that makes, and whether its options allow it."""

from __future__ import annotations

from collections import Counter
from typing import Any

from kvproof.suites.part import Config, Recorder
from kvproof.suites.system import properties as seen
from kvproof.suites.system.asked import Asked


def trace(cache: Any) -> object:
    """Return everything that a later decision may depend on, block ids included."""
    return (
        cache.usage(),
        cache.pool.free_ids().tolist(),
        {name: [table.tolist() for table in cache.tables(name)] for name in cache.live},
        {name: request.computed for name, request in cache.live.items()},
        [(node.start, node.units, node.holds, node.stamp) for node in cache.trie.nodes()],
        (cache.statistics.cumulative, cache.statistics.resumed, cache.statistics.rolling),
    )


class Watch:
    """Reads the decisions of an engine as they are made."""

    def __init__(
        self, engine: Any, config: Config, recorder: Recorder, asked: dict[str, Asked]
    ) -> None:
        self._engine, self._config, self._recorder = engine, config, recorder
        self._asked = asked
        self._read = 0
        self._junctions: set[tuple[int, ...]] = set()
        self._decoded: set[tuple[int, ...]] = set()
        self._excess = max_span = 0
        del max_span
        self._guard("admit")
        self._guard("extend")

    # --- refusals of the cache manager ---

    def _guard(self, verb: str) -> None:
        """Look at the cache manager before and after each call of `verb`."""
        cache, call = self._engine.cache, getattr(self._engine.cache, verb)

        def guarded(name: str, *arguments: Any, **options: Any) -> Any:
            before = trace(cache)
            answer = call(name, *arguments, **options)
            if not hasattr(answer, "reason"):
                self._started(cache.live[name], answer)
            else:
                self._recorder.check(
                    "refused_admissions_leave_no_trace",
                    before == trace(cache),
                    lambda: f"{verb} of {name} was refused with {answer}, and something changed",
                )
            return answer

        setattr(cache, verb, guarded)
