"""The profile of a recorded engine, as the oracle needs it."""

from __future__ import annotations

from kvproof.harness.contract.profile import (
    LayerProfile,
    PolicyProfile,
    Profile,
    SpanProfile,
    StateProfile,
)
from kvproof.harness.recorder.recording import Header


def profile(header: Header) -> Profile:
    """Profile of any recorded engine: no counters, no digests.

    A state is in the block of its last token, and where that ends a block it stays there (S2).
    """
    return Profile(
        engine=header.engine,
        version=header.version,
        block_sizes=(header.block_size,),
        no_read=True,
        no_store=True,
        media=SpanProfile(supported=True),
        policy=PolicyProfile(
            sharing="when_scheduled",
            duplicates="kept",
            reset="idle",
            eviction_order="undeclared",
            index="flat",
            maximal=header.maximal and not header.capped,
        ),
        layers=LayerProfile(
            groups=("full", "window", "chunk", "state"),
            behind_windows="freed" if header.overlaps else "cached",
            window_blocks="reach",
            mixed_block_sizes=True,
        ),
        recurrent=StateProfile(
            pools=("shared",), most_blocks=1, checkpoints="running", decode_intervals=False
        ),
    )
