"""Documented ranges of the reference's options, and values at their borders (O1).

The table is written from the documentation of each record, not from its checks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from hypothesis import strategies as st

from kvproof.reference.core.cache_config import CacheConfig, ConfigError
from kvproof.reference.engine.engine_config import EngineConfig
from kvproof.reference.server.options import ServerConfig
from kvproof.reference.stores.remote_config import RemoteConfig
from kvproof.suites.framework.component_suite import Draw

Record: TypeAlias = Callable[..., object]


class Whole(NamedTuple):
    """A whole number."""

    least: int
    most: int | None = None

    def takes(self, value: object) -> bool:
        most = math.inf if self.most is None else self.most
        return isinstance(value, int) and self.least <= value <= most

    def borders(self) -> list[object]:
        last = [] if self.most is None else [self.most, self.most + 1]
        return [self.least - 1, self.least, self.least + 1, *last, float(self.least) + 0.5]


class Span(NamedTuple):
    """A number of seconds."""

    most: float
    zero: bool
    """Whether 0 is one."""

    def takes(self, value: object) -> bool:
        if not isinstance(value, int | float) or math.isnan(value):
            return False
        return value <= self.most and (value > 0 or (self.zero and value == 0))

    def borders(self) -> list[object]:
        last = [] if math.isinf(self.most) else [self.most, self.most + 1, math.inf]
        return [-0.5, 0, 0.5, *last, math.nan]


class Switch(NamedTuple):
    """True or false."""

    def takes(self, value: object) -> bool:
        return isinstance(value, bool)

    def borders(self) -> list[object]:
        return [True, False, 0, 1]


Range: TypeAlias = Whole | Span | Switch

_FINITE = math.nextafter(math.inf, 0)
_RECORDS: Mapping[str, tuple[Record, type, Mapping[str, Range]]] = {
    "cache": (
        partial(CacheConfig, num_blocks=8, experts=(4, 2, 1), return_routed_experts=True),
        CacheConfig,
        {
            "num_blocks": Whole(2), "block_size": Whole(1), "hit_rate_window": Whole(1),
            "max_requests": Whole(1), "enable_prefix_caching": Switch(), "record_events": Switch(),
            "prefix_cache_state_budget": Whole(0), "return_routed_experts": Switch(),
            "require_cached_experts": Switch(), "cache_partial_blocks": Switch(),
        },
    ),
    "engine": (
        partial(EngineConfig, CacheConfig(8)), EngineConfig,
        {
            "max_batch_tokens": Whole(1), "steps_in_flight": Whole(1), "num_drafts": Whole(0),
            "poison_freed": Switch(),
        },
    ),
    "server": (
        ServerConfig, ServerConfig,
        {
            "port": Whole(0, 65_535), "max_connections": Whole(1), "max_waiting": Whole(0),
            "max_tokens": Whole(1), "max_prompt_tokens": Whole(0), "max_body_bytes": Whole(1024),
            "max_prompts": Whole(1), "max_images": Whole(0), "max_image_bytes": Whole(1),
            "request_timeout": Span(86_400, zero=False), "grace": Span(86_400, zero=True),
        },
    ),
    "remote": (
        RemoteConfig, RemoteConfig,
        {
            "timeout_s": Span(_FINITE, zero=False), "backoff_s": Span(_FINITE, zero=False),
            "failures": Whole(1), "batch_bytes": Whole(1), "largest_object": Whole(1),
        },
    ),
}  # fmt: skip

LEFT_OUT: Mapping[str, str] = {
    "prefix_cache_decode_state_interval": "a multiple of the block size",
    "kernel_block_size": "a property of its own: it divides the block size",
    "hash_algorithm": "a name",
    "groups": "a layout",
    "state_pool": "a name",
    "experts": "three counts together",
    "cache": "a record of its own",
    "host_tier": "a size with a unit",
    "disk_tier": "a folder and a size",
    "weights": "a name",
    "host": "an address",
    "api_key": "a text",
    "admin_api_key": "a text",
    "prefix": "a text",
    "epoch": "a text",
}
"""Option -> why it has no range."""


class Option(NamedTuple):
    """One option of one record."""

    record: str
    name: str

    @property
    def range(self) -> Range:
        return _RECORDS[self.record][2][self.name]

    def given(self, value: object) -> object:
        """Return the value as the record has it. Raises ConfigError."""
        return getattr(_RECORDS[self.record][0](**{self.name: value}), self.name)


_OTHERS: tuple[object, ...] = (None, "8", [], 1 << 20, "true")
"""Values of other types, and a large one."""

OPTIONS = [Option(record, name) for record, (_, _, by) in _RECORDS.items() for name in by]


def without_a_range() -> set[str]:
    """Return the options of all records that no range covers."""
    every = {field.name for _, kind, _ in _RECORDS.values() for field in fields(kind)}
    return every - {option.name for option in OPTIONS}


def draw_option(draw: Draw) -> dict[str, Any]:
    """Draw an option, and a value near a border of its range or of another type."""
    option = draw(st.sampled_from(OPTIONS))
    at = draw(st.integers(0, len(option.range.borders()) + len(_OTHERS) - 1))
    return {"record": option.record, "name": option.name, "at": at}


def value_at(option: Option, at: int) -> object:
    """Return the value at a place of the list: borders, then values of other types."""
    return [*option.range.borders(), *_OTHERS][at]


def refused(option: Option, value: object) -> str:
    """Return the words of a refusal; empty: the value was taken."""
    try:
        option.given(value)
    except ConfigError as error:
        return str(error)
    return ""
