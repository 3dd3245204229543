"""The levels of factors that a situation needs: other pairs with it are excluded."""

from __future__ import annotations

from kvproof.harness.contract.whole_engine_traits import WholeEngineTraits
from kvproof.suites.framework.pairs import Needs
from kvproof.suites.whole_engine import properties as named
from kvproof.suites.whole_engine.table import CONNECTOR, NONE, ON


def situation_levels(traits: WholeEngineTraits) -> Needs:
    """Return situation -> factor -> levels of which it needs one."""
    drafts = {"drafts": [each.name for each in traits.drafts]}
    waits = [NONE, *(each.name for each in traits.drafts if not each.trees)]
    tiers = {CONNECTOR: [each.name for each in traits.tiers]}
    links = {CONNECTOR: [each.copies for each in traits.links]}
    switched = {
        named.HITS: "caching",
        named.RESET: "reset",
        named.AFTER_RESET: "reset",
        named.TWICE: "repeats",
        named.SPACES: "namespaces",
        named.PICTURES: "media",
        named.SLEPT: "sleep",
        named.WAITED: "sleep",
        named.REMOVED: "events",
        named.STORED_KEYS: "events",
        named.POSSIBLE: "caching",
        named.MEDIA_READ: "media",
        named.LEAVES: "caching",
        named.TURNED: "sessions",
        named.AFTER_ABORT: "sessions",
        named.CLOSED: "sessions",
        named.ENTRIES: "entries",
        named.STATED: "states",
    }
    return {
        **{situation: {factor: [ON]} for situation, factor in switched.items()},
        named.LATE: {"asynchronous": [ON], "drafts": waits},  # the host asks for a tree's tokens
        named.ACCEPTED: drafts,
        named.REJECTED: drafts,
        named.MOVED: drafts,
        named.STORED: tiers,
        named.LOADED: tiers,
        named.HANDED: links,
        named.COPIED: links,
        named.BROKEN: links,
        named.UNEQUAL: {"workers": ["unequal"]},
    }
