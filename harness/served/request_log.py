"""An own reading of hits: what each request shares with earlier ones, by content and by time.

A client knows all of its prompts and their answers. So it knows the longest hit that is right, the
age and the use of an entry, and which requests were under way at the same time. The count of
cached tokens that a server reports is held against that; where it reports none, a situation counts
by construction: all that is shared is taken for hit.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, NamedTuple, TypeAlias

from kvproof.harness.served.situations import COMPANY, COUNTS, LENGTHS

Content: TypeAlias = "str | tuple[int | str, ...]"
"""A text, or token ids or characters; an image is a piece of its own, its digest in hexadecimal."""

UNIT = 16
"""Tokens between places at which prompts are compared; the smallest block of common engines."""
_OLD, _FRESH, _IDLE = 20.0, 1.0, 5.0
"""Seconds."""
_SOON = 16
"""Requests after an eviction that count as soon."""
_UNEQUAL = 8
"""Times that a long prompt is longer than a short one."""
_NEARLY = 0.9
"""Share of the longest prompt."""
_USES = 2
"""Earlier hits that make the next one the third."""


class Identity(NamedTuple):
    """What besides the tokens must be equal for a hit."""

    salt: str = ""
    adapter: str = ""


DEFAULT = Identity()


@dataclass(eq=False)
class Sent:
    """A request under way or ended."""

    prompt: Content
    identity: Identity
    number: int
    """Requests before it."""
    begun: float
    earlier: _Shared
    idle: bool
    """No request was under way, and none had ended for some seconds."""
    beside: list[Sent] = field(default_factory=list)
    """Requests that were under way at the same time."""
    at_once: int = 1
    """Most requests under way together."""
    twin: bool = False
    """The same new prompt was under way."""
    swapped: bool = False
    """An earlier prompt has the same images in another order."""
    first_image: bool = False
    """It begins with an image with which none has begun: only its template may be cached."""
    tokens: Content = ()
    """Prompt and answer, once ended."""


class _Shared(NamedTuple):
    """The longest beginning that an ended request has."""

    tokens: int = 0
    source: Sent | None = None
    used: float = -math.inf
    """Time of its last use."""
    hits: int = 0
    """Earlier requests that shared it."""
    elsewhere: bool = False
    """Another salt or adapter has the whole prompt's beginning, this one has not."""


class Sighting(NamedTuple):
    """An ended request, read by its content and its time."""

    shared: int
    """Tokens that it has in common with an earlier request: no right hit is longer."""
    cached: int | None
    """Cached tokens as reported."""
    situations: tuple[str, ...]
    hit: bool
    """Anything came from the cache, by report or by construction."""
    contradiction: str = ""
    """Why the report cannot be right."""


@dataclass
class _Place:
    """One beginning of prompts."""

    source: Sent
    used: float
    hits: int = 0


class RequestLog:
    """All requests of one client to one server, from any number of threads."""

    def __init__(self, *, longest: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        """`longest`: tokens of the longest prompt with its answer; 0: unknown."""
        self.longest, self._clock = longest, clock
        self._lock = threading.Lock()
        self._places: dict[int, dict[Identity, _Place]] = {}
        """Hash of a beginning -> its first request, by identity."""
        self._orders: dict[object, set[tuple[str, ...]]] = {}
        """A prompt without its images, and these as a set -> their orders."""
        self._images: set[tuple[Identity, str]] = set()
        """Images with which prompts began."""
        self.opening = 0
        """Tokens that stand before an image at most; 0: unknown."""
        self._running: list[Sent] = []
        self._last = self._since = -math.inf
        """Time of the last end, and of the last event in the server's life."""
        self.count = 0
        """Requests so far."""
        self.evictions = 0
        """Requests that found an entry lost."""
        self._evicted = -math.inf
        """Number of the request that had lost its entry."""
        self._life: tuple[str, ...] = ()
        self.alone = False
        """No other client has filled the cache; under an own salt or adapter that is sure."""
        self.seen: Counter[str] = Counter()
        """Situation -> requests in which it occurred."""
        self.block = 0
        """Largest step that fits all reported counts; 0: none was reported."""

    def begin(self, prompt: Content, identity: Identity = DEFAULT) -> Sent:
        """Note a request that is about to be sent."""
        with self._lock:
            now = self._clock()
            idle = not self._running and now - self._last >= _IDLE and self.count > 0
            sent = Sent(prompt, identity, self.count, now, self._shared(prompt, identity), idle)
            self.count += 1
            sent.swapped, sent.first_image = self._swapped(prompt), self._first_image(sent)
            self._meet(sent)
            return sent

    def end(
        self, sent: Sent, answer: Content = (), *, cached: int | None, prompt_tokens: int | None,
        also: Iterable[str] = (),
    ) -> Sighting:  # fmt: skip
        """Note its answer and counts; `also`: situations known otherwise, as from counters."""
        with self._lock:
            self._running.remove(sent)
            self._last = self._clock()
            scale = (prompt_tokens or len(sent.prompt)) / max(1, len(sent.prompt))
            shared = int(sent.earlier.tokens * scale)
            if cached:
                self.block = math.gcd(self.block, cached)
            hit = cached > 0 if cached is not None else shared >= UNIT
            length = shared if cached is None else cached
            found = [*self._situations(sent, length, shared, scale, hit=hit)]
            found += also if hit else ()
            known = sent.earlier.used > self._since
            if cached == 0 and known and shared >= 2 * max(self.block, 4 * UNIT):
                self._evicted = sent.number
                self.evictions += 1
            self._keep(sent, answer)
            wrong = self._wrong(sent, shared, cached, prompt_tokens)
            found = list(dict.fromkeys(found))
            self.seen.update(found)
            return Sighting(shared, cached, tuple(found), hit, wrong)

    def mark(self, life: str, *, emptied: bool) -> None:
        """Note an event in the server's life, as `reset`; `emptied`: nothing is cached after it."""
        with self._lock:
            self._life = tuple(dict.fromkeys([*self._life, *filter(None, [life])]))
            self._since = self._clock()
            if emptied:
                self._places.clear()
                self.alone = True

    # --- content ---

    def _shared(self, prompt: Content, identity: Identity) -> _Shared:
        found, place = 0, None
        for end, key in _beginnings(prompt):
            owners = self._places.get(key, {})
            if identity not in owners:
                if place is None:
                    return _Shared(elsewhere=bool(owners))
                break
            found, place = end, owners[identity]
        if place is None:
            return _Shared()
        exact = found + _equal(prompt[found:], place.source.tokens[found : found + UNIT])
        return _Shared(min(exact, len(prompt)), place.source, place.used, place.hits)

    def _swapped(self, prompt: Content) -> bool:
        images = images_of(prompt)
        if len(images) < 2:
            return False
        rest = tuple(each for each in prompt if each not in images)
        orders = self._orders.setdefault((rest, frozenset(images)), set())
        orders.add(images)
        return len(orders) > 1

    def _first_image(self, sent: Sent) -> bool:
        images = images_of(sent.prompt)
        if not images or sent.prompt[0] != images[0]:
            return False
        key, known = (sent.identity, images[0]), len(self._images)
        self._images.add(key)
        return len(self._images) > known

    def _wrong(self, sent: Sent, shared: int, cached: int | None, prompt_tokens: int | None) -> str:
        """Return why the count of cached tokens cannot be right.

        It is compared token by token, where no other client may have filled the cache. No other
        one has an image of ours.
        """
        sure = self.alone or sent.identity != DEFAULT
        exact = sure and len(sent.prompt) == prompt_tokens
        most = max([shared, *_beside(sent)])
        if sent.first_image and self.opening:
            exact, most = True, self.opening
        if cached is None or cached <= most or not exact:
            return ""
        return (
            f"{cached} cached tokens are reported, but no earlier request shares more than {most}"
        )

    def _keep(self, sent: Sent, answer: Content) -> None:
        """Its prompt and its answer but for the last token, which no step has computed."""
        sent.tokens = _joined(sent.prompt, answer)
        for end, key in _beginnings(sent.tokens):
            owners = self._places.setdefault(key, {})
            at = owners.setdefault(sent.identity, _Place(sent, self._last))
            at.hits += at.source is not sent and end <= sent.earlier.tokens
            at.used = self._last

    def _meet(self, sent: Sent) -> None:
        for other in self._running:
            other.beside.append(sent)
            sent.beside.append(other)
            if (other.prompt, other.identity) == (sent.prompt, sent.identity):
                new = len(sent.prompt) - sent.earlier.tokens >= UNIT
                sent.twin, other.twin = sent.twin or new, other.twin or new
        self._running.append(sent)
        for each in self._running:
            each.at_once = max(each.at_once, len(self._running))

    # --- situations ---

    def _situations(
        self, sent: Sent, length: int, shared: int, scale: float, *, hit: bool
    ) -> Iterable[str]:
        if sent.twin:
            yield "twins"
        if sent.earlier.elsewhere:
            yield "other-namespace"
        if sent.swapped:
            yield "swapped-images"
        if not hit:
            return
        yield from self._of_length(length, shared)
        yield from self._of_content(sent, length / scale)
        yield from self._of_time(sent)
        yield from _of_company(sent)
        yield from (name for name in ("salt", "adapter") if getattr(sent.identity, name))
        if images_of(sent.prompt):
            yield "image"
        yield from self._life
        yield from (name for name, least in COUNTS.items() if sent.number >= least)
        if sent.number - self._evicted <= _SOON:
            yield "evicted"

    def _of_length(self, length: int, shared: int) -> Iterable[str]:
        block = self.block or UNIT
        if length <= block or (not self.block and length < 8 * UNIT):
            yield "one-block"
        if shared > block and shared % block:
            yield "partial-block"
        reached = [name for name, least in LENGTHS.items() if length >= least]
        yield from reached or ["short"]
        if self.longest and length >= _NEARLY * self.longest:
            yield "longest"

    def _of_content(self, sent: Sent, length: float) -> Iterable[str]:
        source = sent.earlier.source
        if source is None:
            return
        border, block = len(source.prompt), self.block or UNIT
        if length <= border:
            yield "prompt"
            return
        if border % block:
            yield "both"
        if length - -(-border // block) * block >= block:
            yield "generated"

    def _of_time(self, sent: Sent) -> Iterable[str]:
        age = sent.begun - sent.earlier.used if sent.earlier.source else math.nan
        if age < _FRESH:
            yield "fresh"
        if age >= _OLD:
            yield "old"
        if sent.earlier.hits >= _USES:
            yield "third-use"
        if sent.idle:
            yield "idle"


def _of_company(sent: Sent) -> Iterable[str]:
    if sent.at_once == 1:
        yield "alone"
    yield from (name for name, least in COMPANY.items() if sent.at_once >= least)
    own = len(sent.prompt)
    if any(max(own, n) >= _UNEQUAL * min(own, n) for n in (len(e.prompt) for e in sent.beside)):
        yield "long-beside-short"


def images_of(prompt: Content) -> tuple[str, ...]:
    """Return the digests of its images, in order."""
    if isinstance(prompt, str):
        return ()
    return tuple(each for each in prompt if isinstance(each, str) and len(each) > 1)


def _beside(sent: Sent) -> Iterable[int]:
    """Tokens shared with requests that were under way, and may have been computed in time."""
    return (
        _equal(sent.prompt, other.tokens or other.prompt)
        for other in sent.beside
        if other.identity == sent.identity
    )


def _beginnings(tokens: Content) -> Iterable[tuple[int, int]]:
    """Yield ends and hashes of all beginnings of whole units."""
    key = 0
    for end in range(UNIT, len(tokens) + 1, UNIT):
        key = hash((key, tokens[end - UNIT : end]))
        yield end, key


def _equal(one: Sequence[Any], other: Sequence[Any]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _joined(prompt: Content, answer: Content) -> Content:
    if isinstance(prompt, str):
        return prompt + answer[:-1] if isinstance(answer, str) else prompt
    return (*prompt, *answer[:-1])
