"""Traits of vLLM on a card: those of `vllm-engine`, but for the parts that are not driven here."""

from __future__ import annotations

from dataclasses import replace

from kvproof.harness.adapters.vllm_engine.traits import traits
from kvproof.harness.contract.whole_engine_traits import (
    LocalKind,
    Runner,
    Tier,
    WholeEngineTraits,
)
from kvproof.harness.whole_engine.device import AWAY

GRAPHS = "cudagraph_mode"
USUAL = "FULL_DECODE_ONLY"
EAGER = "NONE"
"""Modes in which steps are captured: those that only decode, and none."""
_FEATURES = (
    "chunks", "preemption", "queue", "ahead", "events", "reset", "reset of running requests",
    "unread", "salts",
)  # fmt: skip
_SETTINGS = (
    "long_prefill_token_threshold", "scheduler_reserve_full_isl", "watermark",
    "max_num_active_seqs", "prefill_schedule_interval", "max_num_scheduled_tokens",
    "prefix_caching_hash_algo",
)  # fmt: skip
_COPIES = "copies run on the card's own streams, and their ends are not noted"
_THERE = "the card's memory is never taken away"
TIERS = ("offload", "simple", "simple_lazy")
_NOT_DRIVEN = "it is not driven on a card"


def declared() -> WholeEngineTraits:
    """Return the traits."""
    whole = traits({})
    others = tuple(
        replace(each, refused=_NOT_DRIVEN) for each in whole.tiers if each.name not in TIERS
    )
    return replace(
        whole,
        features=_FEATURES,
        refuses={},
        without={"blocks_in_flight_are_not_reused": _COPIES, AWAY: _THERE},
        block_sizes=(16,),
        kernel_block_sizes=(0,),
        settings={**{name: whole.settings[name] for name in _SETTINGS}, GRAPHS: (EAGER,)},
        settings_in_blocks={},
        sleep_levels=(0,),
        local=(LocalKind("window", ((3, 0),)),),
        ratios=(),
        runners=(Runner(name="v2"), Runner(name="v1", refused=_NOT_DRIVEN)),
        drafts=(),
        tiers=(*(Tier(name=name) for name in TIERS), *others),
        links=tuple(replace(each, refused=_NOT_DRIVEN) for each in whole.links),
    )
