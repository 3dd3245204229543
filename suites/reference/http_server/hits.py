"""Bounds of the hit of a prompt."""

from __future__ import annotations

from collections.abc import Sequence

from kvproof.suites.framework.component_suite import Config
from kvproof.suites.framework.coverage import Coverage
from kvproof.suites.reference.http_server import properties as seen
from kvproof.suites.reference.http_server.tracked_requests import Order, common, reusable

FOUND = "clients_find_what_others_have_computed"
NOTHING_ELSE = "clients_find_nothing_else"


class Hits:
    """Checks the position where the first step of a prompt begins."""

    def __init__(self, config: Config, coverage: Coverage) -> None:
        self._block_size = config["block_size"]
        self._coverage = coverage
        self._left = config["num_blocks"] - 1
        """Blocks that no request so far can have filled: without an eviction everything stays."""

    def tracked(self, order: Order, earlier: Sequence[Order]) -> None:
        """Count the blocks that a prompt may fill, and its shared prefixes."""
        tokens = len(order.prompt) + order.most
        self._left -= -(-tokens // self._block_size)
        for other in earlier:
            if other.prompt == order.prompt:
                self._coverage.event(seen.SALT, other.namespace != order.namespace)
                self._coverage.event(seen.IMAGE, other.asks != order.asks)

    def judge(
        self, order: Order, hit: int, tracked: Sequence[Order], done: Sequence[Order]
    ) -> None:
        """Check a hit; `tracked`: all requests begun before, `done`: those answered before."""
        mine = order.asks

        def longest(others: Sequence[Order]) -> int:
            alike = [o for o in others if o.namespace == order.namespace and o is not order]
            return max((common(mine, other.leaves) for other in alike), default=0)

        self._coverage.event(
            seen.PROMPT_SCORED, not order.reads and longest(done) > self._block_size
        )
        if not order.reads:
            return  # its scores show that all of it was computed
        most = min(longest(tracked), len(mine) - 1)
        self._coverage.check(
            NOTHING_ELSE,
            hit <= most,
            lambda: f"{hit} tokens of {order.prompt} are found, at most {most} were ever computed",
        )
        if self._left < 0:
            return
        least = reusable(longest(done), len(mine), order.spans, self._block_size)
        self._coverage.check(
            FOUND,
            hit >= least,
            lambda: f"{hit} tokens of {order.prompt} are found, {least} have been computed",
        )
