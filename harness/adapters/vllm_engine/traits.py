"""Traits of vLLM's own loop for the suite `engine`: its connectors, settings, groups, workers.

Standard library only: the values can be read without vLLM. What a release lacks comes from
`releases.lacking`, with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

from kvproof.harness.contract.whole_engine import GroupKind
from kvproof.harness.contract.whole_engine_traits import (
    FEATURES,
    KINDS,
    DraftMethod,
    FailingTier,
    Layouts,
    Link,
    Runner,
    Store,
    Tier,
    WholeEngineTraits,
    Workers,
)

BLOCK = 16
"""Tokens."""
_SETTINGS = {
    "long_prefill_token_threshold": (20,),
    "scheduler_reserve_full_isl": (False,),
    "watermark": (0.2,),
}
_DRAFTS = (
    DraftMethod(name="eagle", beside={"full": 4, "window": 4, "state": 3}),
    DraftMethod(name="mtp"),
    DraftMethod(name="ngram", on_host=True, ahead=("v2",)),
)
_LOCAL = (
    GroupKind("window", 12),
    GroupKind("window", 20),
    GroupKind("window", 40),
    GroupKind("window", BLOCK),
    GroupKind("chunk", 2 * BLOCK),
)
_MIXTURES = (
    (GroupKind("window", 20, layers=2), GroupKind("window", 40, layers=2)),
    (GroupKind("window", 12, layers=3),),
    (GroupKind("window", 40, layers=2), GroupKind("chunk", 32, layers=2)),
)
_ROLES = (("consumer", "producer"), ("both", "both"))
_POLICIES = ("recompute", "fail")


def traits(lacking: Mapping[str, str]) -> WholeEngineTraits:
    """Return the traits of a release.

    `lacking`: feature, need or name of a connector, runner or link -> why the release has it not.
    """

    def why(*names: str) -> str:
        return next((lacking[name] for name in names if name in lacking), "")

    return WholeEngineTraits(
        features=tuple(name for name in FEATURES if name not in lacking),
        refuses={name: lacking[name] for name in _REFUSABLE if name in lacking},
        block_sizes=(BLOCK,),
        kernel_block_sizes=(0, 4, 8),
        policies=("fcfs", "priority"),
        settings=_SETTINGS,
        sleep_levels=(0, 1, 1, 2),
        local=() if why("windows") else _LOCAL,
        mixtures=() if why("unequal groups") else _MIXTURES,
        runners=(
            Runner(name="v1"),
            Runner(name="v2", kinds=("full", "window", "chunk"), refused=why("v2")),
        ),
        drafts=_DRAFTS,
        tiers=(
            Tier(name="offload", weight=2, repeats=True, refused=why("offload")),
            Tier(name="simple", repeats=True, refused=why("simple")),
            Tier(name="simple_lazy", repeats=True, refused=why("simple")),
            Tier(name="multi", repeats=True, refused=why("offload", "simple")),
        ),
        tier_kinds=("full",) if why("groups beside tiers") else KINDS,
        failing_tiers=tuple(
            FailingTier(
                name=f"failing_{mode}_{policy}",
                mode=mode,
                policy=policy,
                repeats=True,
                refused=why("failing"),
            )
            for mode, policy in product(("sync", "async"), _POLICIES)
        ),
        stores=(
            Store(
                name="example",
                whole_prompts=True,
                caching=(False, False, True),
                features=(("losses",), ("losses",), ("media",), ("media",), ()),
                refused=why("example"),
            ),
            Store(
                name="lmcache",
                caching=(False, True, True),
                heads=(1, 2),
                features=(("media",), ("turns",), ("turns", "losses")),
                refused=why("lmcache"),
            ),
        ),
        links=(_link("pull", why("nixl")), _link("push", why("nixl"))),
    )


_REFUSABLE = ("states", "reset of running requests", "unread", "windows", "unequal groups")


def _link(copies: str, refused: str) -> Link:
    pull = copies == "pull"
    lost = ("losses",), ("losses",), ("losses",), ("losses", "late")
    return Link(
        copies=copies,
        connector=f"nixl_{copies}_{{role}}_{{policy}}",
        roles=_ROLES,
        policies=_POLICIES,
        heads=(1, 2, 2, 4),
        windows=(12, 20, 40),
        other_block_size=BLOCK // 2 if pull else 2 * BLOCK,
        workers=tuple(
            Workers(heads=heads, equal_blocks=equal, pairs=_pairs(copies, heads, equal=equal))
            for heads, equal in product((1, 2, 4), (True, False))
        ),
        layouts=(
            Layouts(weight=3),
            Layouts(prefill="NHD", decode="NHD", equal_workers=True),
            *((Layouts(prefill="HND", decode="NHD", one_group=True),) if pull else ()),
        ),
        breaks=lost if pull else ((), (), ("losses",), ("late",)),
        refused=refused,
    )


def _pairs(copies: str, heads: int, *, equal: bool) -> tuple[tuple[int, int], ...]:
    return tuple(
        (prefill, decode)
        for prefill, decode in product((1, 2, 4), repeat=2)
        if max(prefill, decode) <= 2 * heads
        and _taken(copies, prefill, decode, heads=heads, equal=equal)
    )


def _taken(copies: str, prefill: int, decode: int, *, heads: int, equal: bool) -> bool:
    """Tell whether vLLM takes these numbers of workers.

    The engine that copies may have fewer workers than the other one if each head is in one worker
    and blocks are equal. By push, repeated heads are for equal numbers.
    """
    active, other = (decode, prefill) if copies == "pull" else (prefill, decode)
    repeated = max(prefill, decode) > heads
    if active >= other:
        return active == other or copies == "pull" or not repeated
    return equal and not repeated
