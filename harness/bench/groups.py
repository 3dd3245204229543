"""The groups of a benchmark: `full,window:1024,window:1024,state`, and their blocks.

Every group has the block size of the run. The module needs only the standard library of Python
3.10, because it also runs inside the workers.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from kvproof.harness.contract.target import Group
from kvproof.harness.errors import UsageError
from kvproof.harness.model.visibility import KINDS

EXAMPLE = "full,window:1024,window:1024,state"

_NUMBER = re.compile(r"[1-9][0-9]{0,8}")

_STATES = 3
"""States of one request: the running one, and checkpoints at the junction and the last border."""


def groups_of(spec: str, block_size: int) -> tuple[Group, ...]:
    """Parse `kind[:size of a window or chunk][:blocks of a state]`, ...; nothing for "".

    Raises UsageError for an invalid group.
    """
    if not spec:
        return ()
    return tuple(_group(item.strip(), spec, block_size) for item in spec.split(","))


def _group(item: str, spec: str, block_size: int) -> Group:
    kind, *numbers = item.split(":")
    rule = KINDS.get(kind)
    numbered = (1,) if rule and rule.sized else (0,) if rule and rule.by_position else (0, 1)
    whole = rule is not None and all(_NUMBER.fullmatch(number) for number in numbers)
    if not (whole and len(numbers) in numbered):
        raise UsageError(
            f"groups {spec[:80]!r}: {item[:80]!r} is no group",
            "full, window:TOKENS, chunk:TOKENS, state or state:BLOCKS, with commas between them; "
            f"for example {EXAMPLE}",
        )
    number = int(numbers[0]) if numbers else 1
    if rule is not None and rule.by_position:
        return Group(kind, block_size, size=number if rule.sized else 0)
    return Group(kind, block_size, state_blocks=number)


class Widths(NamedTuple):
    """Blocks of one unit (`block_size` tokens) of a request, and of one state."""

    full: int
    attention: int
    """Blocks of attention, windows and chunks included: dense retention keeps those too."""
    state: int

    def blocks(self, units: int, requests: int) -> int:
        """Blocks that `units` and all states of `requests` fill."""
        return units * self.attention + self.states(requests)

    def states(self, requests: int) -> int:
        """Blocks that all states of `requests` fill."""
        return requests * _STATES * self.state


def widths(groups: tuple[Group, ...]) -> Widths:
    """Add up the blocks of the groups; no groups are one of full attention."""
    if not groups:
        return Widths(1, 1, 0)
    rules = [group.visibility for group in groups]
    attention = sum(rule.by_position for rule in rules)
    state = sum(group.state_blocks for group in groups if not group.visibility.by_position)
    return Widths(sum(rule.reads_all for rule in rules), attention, state)
