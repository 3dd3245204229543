"""Properties of the suite `tiered`."""

from __future__ import annotations

from kvproof.suites.framework.property import table

MIXES = (
    "full", "two sizes", "window", "chunk", "windows only", "draft", "draft window", "draft chunk",
)  # fmt: skip
BACK = {mix: f"a hit comes back from host memory: {mix}" for mix in MIXES}
FROM = {tier: f"a hit comes back from {tier}" for tier in ("disk", "remote")}
AGAIN = "another engine finds what this one shared"

PROPERTIES = table(
    vars(),
    """
tiers_hit_what_a_pool_without_end_hits | C8 X2 X3 T3 | BACK FROM | by metamorphic pair
    prompts give the same answers and hits with a tiny pool and tiers as with a large pool
    why: paid host memory and disk bring fewer hits than their size promises
a_new_engine_hits_what_others_shared | G8 H6 | AGAIN | by metamorphic pair
    an engine with equal weights and an empty pool hits the stored blocks of a closed one
    why: a freshly started replica computes every common prompt again, and scaling out is slow
""",
)
