"""Traits of engines that all run with one connector class of a user's own."""

from __future__ import annotations

from dataclasses import replace

from kvproof.harness.adapters.vllm_engine.exclusions import NO_RESET, of_own_connector
from kvproof.harness.adapters.vllm_engine.own.chosen import CHOSEN, is_hybrid
from kvproof.harness.contract.whole_engine_traits import Tier, WholeEngineTraits

_ALONE = "a class of your own is driven in one engine"
_ONE_GROUP = "the class does not derive from SupportsHMA: vLLM runs it with one group"
_BY_CONTENT = "copies of a class of your own are judged by the content that arrives"
_DRAWN = {"kv_load_failure_policy": ("recompute",)}
"""Settings that are drawn where the user gives none."""
_OF_LINKS = ("two engines", "unequal workers", "ends that are reported twice")
"""Needs of two engines, and of connectors whose reports can be repeated."""


def traits_with(traits: WholeEngineTraits) -> WholeEngineTraits:
    """Return the traits of engines that all have the chosen connector; without one, those given.

    Settings of vLLM that do not concern a connector keep their defaults.
    """
    if not CHOSEN.name:
        return traits
    hybrid = is_hybrid(CHOSEN.name, CHOSEN.options)
    refuses = {**dict.fromkeys(_OF_LINKS, _ALONE), "sleep": NO_RESET}
    if not hybrid:
        refuses |= dict.fromkeys(("windows", "states", "zeroing"), _ONE_GROUP)
    return replace(
        traits,
        features=tuple(each for each in traits.features if each not in refuses),
        refuses={**traits.refuses, **refuses},
        without={**traits.without, "blocks_in_flight_are_not_reused": _BY_CONTENT},
        settings={},
        settings_in_blocks={},
        sleep_levels=(),
        local=traits.local if hybrid else (),
        tiers=(
            Tier(
                name=CHOSEN.name,
                loses=True,
                heads=(1, 2),
                settings={name: _DRAWN[name] for name in _DRAWN if name not in CHOSEN.options},
                given=CHOSEN.options,
            ),
        ),
        links=(),
        without_tier=0,
        excluded=(*traits.excluded, *of_own_connector(CHOSEN.name)),
    )
