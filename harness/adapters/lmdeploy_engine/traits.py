"""Traits of LMDeploy's own loop for the suite `engine`. Standard library only."""

from __future__ import annotations

from kvproof.harness.contract.factors import Excluded, never
from kvproof.harness.contract.whole_engine_traits import WholeEngineTraits

_FEATURES = ("chunks", "preemption", "queue")
_NOT_DRIVEN = "it is LMDeploy's, and this adapter does not drive it yet"
_NO_NAMESPACE = "the trie separates adapters alone, and requests have no salt"
_NO_RESET = "no call drops its cache while it is awake"
_REFUSES = {
    "ahead": "its next step is always scheduled ahead of the last answer: it is no setting",
    "events": "the trie sends no events",
    "reset": _NO_RESET,
    "reset of running requests": _NO_RESET,
    "unread": "requests are kept from reading only through log-probabilities, from a position on",
    "salts": _NO_NAMESPACE,
    "namespaces": _NO_NAMESPACE,
    "adapters": _NOT_DRIVEN,
    "media": _NOT_DRIVEN,
    "embeds": "no caller of its engine gives embeddings",
    "encoder": _NOT_DRIVEN,
    "zeroing": "LMDeploy does not fill new blocks",
    "states": _NOT_DRIVEN,
    "windows": "a window holds all layers of a model, and turns prefix caching off",
    "sessions": "its clients end the session of a request with it, since 0.15",
    "sleep": _NOT_DRIVEN,
    "entries": "an indexer's keys and compressed entries are written by kernels of a GPU alone",
    "pipeline stages": "it has no pipeline stages",
    "context ranks": "it has no context-parallel ranks",
    "drafts": _NOT_DRIVEN,
    "trees of drafts": _NOT_DRIVEN,
    "another tier": _NOT_DRIVEN,
    "two engines": _NOT_DRIVEN,
    "unequal workers": _NOT_DRIVEN,
    "ends that are reported twice": _NOT_DRIVEN,
}
_WITHOUT = {
    "a_block_leaves_the_index_for_another_one": (
        "LMDeploy makes room before it knows that a request fits"
    ),
}
_SETTINGS = {
    "LMDEPLOY_PT_TTFT_POLICY": ("fifo",),
    "LMDEPLOY_PT_TTFT_SHORT_TURNS": (1, 2),
    "LMDEPLOY_PT_TTFT_AGING_SEC": (0.001, 0.01),
    "num_cpu_blocks": (4, 20),
    "prefill_interval": (1, 2, 5),
}


def traits() -> WholeEngineTraits:
    """Return the traits of the driven release."""
    return WholeEngineTraits(
        features=_FEATURES,
        refuses=_REFUSES,
        without=_WITHOUT,
        block_sizes=(16, 16, 16, 32, 48),
        kernel_block_sizes=(0, 16, 32),
        settings=_SETTINGS,
        excluded=_EXCLUDED,
    )


_EXCLUDED: tuple[Excluded, ...] = (
    never(
        "a kernel's block has 16 tokens at least", {"block size": "16", "kernel blocks": "parts"}
    ),
    never("a kernel's block is a power of two", {"block size": "48", "kernel blocks": "whole"}),
    never(
        "policy fifo looks at no age",
        {"setting LMDEPLOY_PT_TTFT_POLICY": "on", "setting LMDEPLOY_PT_TTFT_AGING_SEC": "on"},
    ),
)
