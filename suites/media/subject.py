"""The functions of the reference that the part `media` looks at."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

from kvproof.reference import hit_length, identity, media, media_hash
from kvproof.reference.access import decide
from kvproof.reference.identity import Span

Spans: TypeAlias = tuple[Span, ...]

ALLOWED = decide(enabled=True)


class Subject(NamedTuple):
    """What is tested; a test may put modules with faults in."""

    media: Any = media
    hashing: Any = media_hash
    hits: Any = hit_length
    identity: Any = identity
