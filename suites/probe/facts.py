"""What a server is and takes, and what its engine documents about cached tokens."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kvproof.suites.probe.content import Form


class Law(NamedTuple):
    """What an engine documents, and the names that its `/metrics` have."""

    counts_told_by: str = ""
    """How the engine is told to count cached tokens in its answers."""
    computes_last: bool = True
    """The last token of a prompt is always computed."""
    hits: str = ""
    """Counter of cached prompt tokens."""
    more_hits: str = ""
    """Counter of those that came from elsewhere."""
    queries: str = ""
    """Counter of the prompt tokens that were looked up."""
    ended: str = ""
    """Counter of requests that ended."""
    running: str = ""
    """Gauge of requests, anybody's, whose prompts were looked up."""
    waiting: str = ""
    """Gauge of those whose prompts are still to be."""
    held: tuple[str, ...] = ()
    """Gauges of what requests hold."""

    @property
    def at_rest(self) -> tuple[str, ...]:
        """Gauges that are 0 when nobody asks."""
        return (*self.held, *self.under_way)

    @property
    def under_way(self) -> tuple[str, ...]:
        """Gauges of requests."""
        return tuple(filter(None, (self.running, self.waiting)))


LAWS = {
    "kvproof": Law(
        hits='kvproof_hit_tokens_total{request="new"}',
        queries='kvproof_query_tokens_total{request="new"}',
        ended="kvproof_requests_total",
        running="kvproof_requests_running", waiting="kvproof_requests_waiting",
        held=('kvproof_blocks{owner="held"}', "kvproof_places_taken"),
    ),
    "vllm": Law(
        counts_told_by="vllm serve ... --enable-prompt-tokens-details",
        hits="vllm:prefix_cache_hits_total",
        more_hits="vllm:external_prefix_cache_hits_total",
        queries="vllm:prefix_cache_queries_total",
        ended="vllm:request_success_total",
        running="vllm:num_requests_running", waiting="vllm:num_requests_waiting",
        held=("vllm:kv_cache_usage_perc",),
    ),
    "sglang": Law(
        counts_told_by="python -m sglang.launch_server ... --enable-cache-report",
        ended="sglang:num_requests_total",
        running="sglang:num_running_reqs", waiting="sglang:num_queue_reqs",
    ),
    "lmdeploy": Law(
        running="lmdeploy:num_requests_running", waiting="lmdeploy:num_requests_waiting",
    ),
}  # fmt: skip
"""Engine, as `owned_by` of its models says -> its law."""

UNKNOWN = Law(computes_last=False)
"""Of an engine that is not in LAWS."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """A server, as far as a few requests can tell."""

    model: str
    form: Form
    engine: str = "unknown"
    version: str = ""
    longest: int = 0
    """Tokens of a prompt with its answer; 0: not told."""
    fields: dict[str, Any] = field(default_factory=dict)
    """Of every request: what asks for log-probabilities and token ids."""
    long_fields: dict[str, Any] = field(default_factory=dict)
    """Of requests that must not end early."""
    logprobs: bool = False
    token_ids: bool = False
    salts: bool = False
    """`cache_salt` is documented."""
    metrics: bool = False
    missing: dict[str, str] = field(default_factory=dict)
    """What cannot be had -> why."""

    @property
    def law(self) -> Law:
        """What the engine documents."""
        return LAWS.get(self.engine, UNKNOWN)

    @property
    def path(self) -> str:
        """Where prompts are sent."""
        return "/chat/completions" if self.form == "chat" else "/completions"
