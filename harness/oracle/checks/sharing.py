"""Equal blocks that are shared when a step is scheduled, before it computes them (T2, C4).

A tree that shares when it schedules puts the block that the cache has in place of the request's
own, and lets the step compute into it what it holds already. The shadow memory sees that it does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvproof.harness.contract.target import Profile

if TYPE_CHECKING:
    from kvproof.harness.oracle.request_state import Live
    from kvproof.harness.oracle.session import Session


def is_declared(profile: Profile) -> bool:
    """Tell whether a target shares in this way."""
    return profile.sharing == "when_scheduled" and profile.index == "tree"


def is_equal(session: Session, live: Live, group: int, index: int, block: int) -> bool:
    """Tell whether `block` is cached with what block `index` of a request would hold."""
    size = session.layout.groups[group].block_size
    if not is_declared(session.profile) or (index + 1) * size > len(live.prints):
        return False
    entry = session.ledger.cached.get(block) or session.running.victims.get(block)
    return entry is not None and entry.content == session.ledger.key(live.prints, index, group)
