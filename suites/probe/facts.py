"""Facts about a server, and its engine's documentation of cached tokens."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kvproof.suites.probe.content import Form


class EngineRules(NamedTuple):
    """Documented rules of an engine, and its names in `/metrics`."""

    counts_option: str = ""
    """Option of the engine that adds cached tokens to answers."""
    computes_last: bool = True
    """The last token of a prompt is always computed."""
    hits: str = ""
    """Counter of cached prompt tokens."""
    more_hits: str = ""
    """Counter of those from other tiers or hosts."""
    queries: str = ""
    """Counter of the prompt tokens in lookups."""
    ended: str = ""
    """Counter of requests that ended."""
    running: str = ""
    """Gauge of requests of all clients after their lookup."""
    waiting: str = ""
    """Gauge of requests before their lookup."""
    held: tuple[str, ...] = ()
    """Gauges of resources that requests hold."""

    @property
    def at_rest(self) -> tuple[str, ...]:
        """Gauges that are 0 on an idle server."""
        return (*self.held, *self.under_way)

    @property
    def under_way(self) -> tuple[str, ...]:
        """Gauges of requests."""
        return tuple(filter(None, (self.running, self.waiting)))


ENGINE_RULES = {
    "kvproof": EngineRules(
        hits='kvproof_hit_tokens_total{request="new"}',
        queries='kvproof_query_tokens_total{request="new"}',
        ended="kvproof_requests_total",
        running="kvproof_requests_running", waiting="kvproof_requests_waiting",
        held=('kvproof_blocks{owner="held"}', "kvproof_places_taken"),
    ),
    "vllm": EngineRules(
        counts_option="vllm serve ... --enable-prompt-tokens-details",
        hits="vllm:prefix_cache_hits_total",
        more_hits="vllm:external_prefix_cache_hits_total",
        queries="vllm:prefix_cache_queries_total",
        ended="vllm:request_success_total",
        running="vllm:num_requests_running", waiting="vllm:num_requests_waiting",
        held=("vllm:kv_cache_usage_perc",),
    ),
    "sglang": EngineRules(
        counts_option="python -m sglang.launch_server ... --enable-cache-report",
        ended="sglang:num_requests_total",
        running="sglang:num_running_reqs", waiting="sglang:num_queue_reqs",
    ),
    "lmdeploy": EngineRules(
        running="lmdeploy:num_requests_running", waiting="lmdeploy:num_requests_waiting",
    ),
}  # fmt: skip
"""Engine, by `owned_by` of its models -> its rules."""

UNKNOWN = EngineRules(computes_last=False)
"""Rules for an engine that is not in ENGINE_RULES."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Facts about a server from a few requests."""

    model: str
    form: Form
    engine: str = "unknown"
    version: str = ""
    longest: int = 0
    """Tokens of the longest prompt and its answer; 0: unknown."""
    fields: dict[str, Any] = field(default_factory=dict)
    """Fields of every request; they ask for log-probabilities and token ids."""
    long_fields: dict[str, Any] = field(default_factory=dict)
    """Fields of requests that must not end early."""
    logprobs: bool = False
    token_ids: bool = False
    salts: bool = False
    """`cache_salt` is documented."""
    metrics: bool = False
    adapters: tuple[str, ...] = ()
    """Other models of the list that name this one as their parent."""
    missing: dict[str, str] = field(default_factory=dict)
    """Missing feature -> reason."""

    @property
    def rules(self) -> EngineRules:
        """Documented rules of the engine."""
        return ENGINE_RULES.get(self.engine, UNKNOWN)

    @property
    def path(self) -> str:
        """Path of the endpoint."""
        return "/chat/completions" if self.form == "chat" else "/completions"
