"""Two identities that differ in one thing, and their keys."""

from __future__ import annotations

from typing import Any, NamedTuple

from kvproof.reference.core.attention_groups import GroupConfig
from kvproof.reference.core.cache_config import CacheConfig
from kvproof.reference.core.identity import Namespace, Span, token_bytes
from kvproof.reference.tiers.object_key import ObjectKeys

UNIT = 4


class Content(NamedTuple):
    """Everything that the bytes of an object depend on."""

    tokens: tuple[int, ...]
    namespace: Namespace = Namespace("adapter", "1", "salt\ud800")
    span: Span = Span("image", 1, 2, "hash")
    weights: str = "weights"
    geometry: str = "bf16"
    groups: tuple[GroupConfig, ...] = (GroupConfig("full", UNIT), GroupConfig("window", UNIT, 8))
    epoch: tuple[int, bytes] | None = None
    unit: int = 0
    part: str = "full"

    def key(self) -> bytes:
        """Return the key of the object."""
        config = CacheConfig(8, groups=self.groups)
        keys = ObjectKeys(config, self.weights, self.geometry)
        if self.epoch is not None:
            keys.begin_epoch(*self.epoch)
        spans = (self.span,)
        count = len(self.tokens) // UNIT
        for _ in range(2):
            links = keys.chain(self.namespace, token_bytes(self.tokens), spans, count)
            found = keys.key(links[self.unit], self.part)
            links[:] = [b"of the caller"] * count  # its list, not that of the keys (H5)
        return found


def changed(content: Content, what: str) -> Content:
    space, span, groups = content.namespace, content.span, content.groups
    other: dict[str, Any] = {
        "token": {"tokens": (content.tokens[0] + 1, *content.tokens[1:])},
        "adapter": {"namespace": space._replace(adapter="salt")},
        "version": {"namespace": space._replace(adapter_version="2")},
        "salt": {"namespace": space._replace(salt=None)},
        "lone surrogate": {"namespace": space._replace(salt="salt\ud801")},
        "span content": {"span": span._replace(content="hush")},
        "span kind": {"span": span._replace(kind="video")},
        "span start": {"span": span._replace(start=span.start - 1)},
        "weights": {"weights": content.weights + " 2"},
        "geometry": {"geometry": "fp8"},
        "epoch": {"epoch": (2, b"process")},
        "process of an epoch": {"epoch": (1, b"other")},
        "group": {"groups": (*groups, GroupConfig("full", UNIT))},
        "window size": {"groups": (groups[0], GroupConfig("window", UNIT, 9))},
        "unit": {"unit": 1 - content.unit},
        "part": {"part": "local0" if content.part == "full" else "full"},
    }
    return content._replace(**other[what])
