"""Properties that do not judge an engine where its adapter does their part."""

from __future__ import annotations

from kvproof.harness.contract.profile import Profile

JUDGES = {
    "what_fits_is_admitted": ("refusal",),
    "what_can_never_fit_is_refused_at_arrival": ("arrival",),
    "what_can_fit_is_never_refused_for_good": ("arrival",),
    "a_refusal_for_good_shows_the_lack": ("arrival",),
    "release_is_idempotent": ("unknown ids",),
    "eviction_takes_idle_cached_blocks": ("evict",),
    "reset_does_what_it_says": ("busy",),
    "no_hit_across_epochs": ("reset",),
    "lookup_finds_the_longest_prefix": ("lookup",),
    "lookup_changes_nothing": ("lookup",),
    "batch_rows_are_the_tables": ("batch",),
    "padding_is_the_null_block": ("batch",),
    "kernel_tables_address_their_blocks": ("kernel tables",),
    "usage_adds_up": ("free count",),
    "held_blocks_are_those_in_tables": ("held count",),
    "holders_equal_tables_and_pins": ("held count",),
    "cached_blocks_are_those_stored": ("cached count",),
    "hits_are_counted_once": ("statistics",),
}
"""Property -> the actions that it judges and nothing else does."""


def done_by_adapter(prop: str, profile: Profile) -> str:
    """Return why a property is not judged on a target; empty if the engine does its part itself."""
    done = [profile.provenance.get(name, "") for name in JUDGES.get(prop, ())]
    return f"done by the adapter: {done[0]}" if any(done) else ""


_WIDEST = {
    "layouts": (),
    "pools": "shared",
    "least_blocks": 1,
    "least_window": 1,
    "behind_windows": "cached",
    "state_block_sizes": (),
    "request_rows": 1,
    "stores": "computed",
}
"""Field -> the value that excludes no configuration and weakens no rule."""


def narrowing(profile: Profile) -> list[str]:
    """Return the fields by which a profile excludes configurations or weakens rules."""
    found = [name for name, widest in _WIDEST.items() if getattr(profile, name) != widest]
    whole = {"kind", "start", "length", "content"}
    if profile.spans and whole - set(profile.span_identity):
        found.append("span_identity")
    return sorted(found) if profile.blocks else []
