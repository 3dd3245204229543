"""Options of a distributed store, checked once."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kvproof.reference.core.validation import require, whole
from kvproof.reference.stores.object_format import HEADER_BYTES


@dataclass(frozen=True)
class RemoteConfig:
    """Raises ConfigError if no store could be built from it."""

    prefix: str = "kvproof"
    """Begins every name, so that others may use the same database."""
    epoch: str = "0"
    """Hosts of one epoch share objects; `clear` leaves it for one that no other host has (H6)."""
    timeout_s: float = 1.0
    """The longest that any call takes."""
    failures: int = 3
    """Calls in a row without an answer after which the server is left alone."""
    backoff_s: float = 10.0
    """From one attempt to the next while it is left alone."""
    batch_bytes: int = 8 << 20
    """Bytes per round trip; one object may be larger."""
    largest_object: int = (512 << 20) - HEADER_BYTES
    """Bytes of payload; larger ones are not kept. Redis takes no value above 512 MiB."""

    def __post_init__(self) -> None:
        _check_text("prefix", self.prefix, "kvproof")
        _check_text("epoch", self.epoch, "0")
        for name in ("timeout_s", "backoff_s"):
            value: object = getattr(self, name)
            good = isinstance(value, int | float) and 0 < value < math.inf
            require(good, name, value, "a number of seconds above 0", 1.0)
        whole("failures", self.failures, least=1, example=3)
        whole("batch_bytes", self.batch_bytes, least=1, example=8 << 20)
        whole("largest_object", self.largest_object, least=1, example=64 << 20)


def _check_text(name: str, text: object, example: str) -> None:
    rule = "printable ASCII without a colon"
    good = isinstance(text, str) and text.isascii() and text.isprintable() and ":" not in text
    require(good and text != "", name, text, rule, example)
