"""The engine under test, built from a JSON configuration."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from kvproof.suites.framework.component_suite import Config
from kvproof.suites.reference.engine.fault_injection import give_tiers

EXPERTS = (11, 2, 3)
"""Number of experts, layers, ranks."""


class Subject:
    """The parts of the reference engine that a machine needs, from the given package."""

    def __init__(self, package: str) -> None:
        def module(name: str) -> Any:
            return import_module(f"{package}.{name}")

        self.config = module("core.cache_config")
        self.context_ranks = module("core.context_ranks")
        self.groups = module("core.attention_groups")
        self.engine = module("engine.engine")
        self.engine_config = module("engine.engine_config")
        self.identity = module("core.identity")
        self.model = module("model.symbolic")
        self.disk_tier = module("tiers.disk_tier")

    def build(self, config: Config, **changes: Any) -> Any:
        """Return an engine with its symbolic model; `changes` override the configuration."""
        config = config | changes
        cache = self.config.CacheConfig(
            config["num_blocks"],
            hit_rate_window=config["max_requests"],
            groups=tuple(self.groups.GroupConfig(**group) for group in config["groups"]),
            enable_prefix_caching=config["prefix_caching"],
            state_pool=config["state_pool"],
            max_requests=config["max_requests"],
            prefix_cache_state_budget=config["state_budget"],
            prefix_cache_decode_state_interval=config["decode_interval"],
            return_routed_experts=config["experts"],
            experts=EXPERTS,
            require_cached_experts=config["require_experts"],
            cache_partial_blocks=config.get("partial_blocks", False),
        )
        options = self.engine_config.EngineConfig(
            cache,
            max_batch_tokens=config["max_batch_tokens"],
            steps_in_flight=config["steps_in_flight"],
            num_drafts=config["num_drafts"],
            poison_freed=True,
            host_tier=config["tiers"]["host"] if config.get("tiers") else 0,
        )
        ranks = self.context_ranks.ContextRanks(*config.get("ranks", (1, 1)))
        model = self.model.SymbolicModel(
            cache,
            vocabulary=config["vocabulary"],
            ranks=ranks,
            scaled=config.get("scaled", ()),
        )
        engine = self.engine.Engine(options, model)
        if engine.tiers:
            give_tiers(engine, config, self)
        return engine

    def alone(self, config: Config, weights: int) -> Any:
        """Return an engine without cache, with room for everything, that never splits a prompt."""
        engine = self.build(
            config,
            num_blocks=2000,
            prefix_caching=False,
            max_batch_tokens=100_000,
            steps_in_flight=1,
            num_drafts=0,
            tiers=None,
            ranks=(1, 1),
            scaled=(),
        )
        for _ in range(weights):
            engine.reset()
        return engine

    def namespace(self, salt: str | None) -> Any:
        """Return the namespace of a tenant."""
        return self.identity.Namespace(salt=salt)

    def spans(self, spans: list[list[Any]]) -> tuple[Any, ...]:
        return tuple(self.identity.Span(*span) for span in spans)
