"""The profiles of one engine: those that its traits meet, and why it has not the others."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from kvproof.harness.contract.whole_engine_traits import WholeEngineTraits
from kvproof.suites.whole_engine import histories
from kvproof.suites.whole_engine.histories import Choose, why_not
from kvproof.suites.whole_engine.links import linked

_LOOP = (
    histories.plain,
    histories.eagle,
    histories.ngram,
    histories.windows,
    histories.groups,
    histories.states,
    histories.state_drafts,
    histories.media,
    histories.embeds,
    histories.sleeps,
)
_TIERS = (
    histories.tiers,
    histories.tier_mixes,
    histories.tier_resets,
    histories.failing_loads,
)
_LINKS = {"pull": "prefill_decode", "push": "prefill_push"}


class Profile(NamedTuple):
    """One kind of engines."""

    name: str
    choose: Choose
    refused: str
    """Why the engine cannot have it; empty: it can."""


def profiles(traits: WholeEngineTraits) -> dict[str, Choose]:
    """Return the profiles that an engine can have, by name."""
    return {each.name: each.choose for each in _every(traits) if not each.refused}


def unsupported(traits: WholeEngineTraits) -> dict[str, str]:
    """Return the other ones, with the reason."""
    return {each.name: each.refused for each in _every(traits) if each.refused}


def _every(traits: WholeEngineTraits) -> Iterator[Profile]:
    for choose in _LOOP:
        yield Profile(choose.__name__, choose, why_not(traits, choose))
    for runner in traits.runners[1:]:
        name = f"runner_{runner.name}"
        yield Profile(name, partial(histories.other_runner, runner), runner.refused)
    for choose in _TIERS:
        yield Profile(choose.__name__, choose, why_not(traits, choose))
    for store in traits.stores:
        kind = histories.whole_prompts if store.whole_prompts else histories.copies_by_itself
        yield Profile(f"{store.name}_tier", partial(kind, store), store.refused)
    for copies, name in _LINKS.items():
        refused = traits.lacks(f"two engines, {copies}")
        yield Profile(name, partial(linked, copies), refused)
