"""Events of SGLang's tree by its own publisher, and the keys under which they name cached pages.

The hash of a page cannot be read from the tree. Inserts give the tokens of slots, and events those
of hashes: so a page in the tree has the key of the event with its tokens, and one that no event has
named has a key of its own.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Any

from kvproof.harness.contract.whole_engine import CacheEvent

PUBLISHER = "kvproof"
_ROOT = b""
_OWN = "GPU"
"""The medium of the pool."""


class Published:
    """The events of one engine since it started."""

    def __init__(self, scheduler: Any, page: int) -> None:
        self._tree, self._page = scheduler.tree_cache, page
        self._batches: list[Any] = []
        scheduler.kv_events_publisher.kv_event_publisher.taken = self._batches
        self._content: dict[int, bytes] = {}
        """Page of the pool -> digest of the tokens up to its end, by the last insert."""
        self._digests: dict[str, bytes] = {"": _ROOT}
        """Hash -> digest of the tokens up to its end, by its event."""
        self._hashes: dict[bytes, str] = {}
        self._on_host: dict[int, bytes] = {}
        """Page of the host -> digest, by the last backup."""
        self._note_inserts()
        if controller := getattr(self._tree, "cache_controller", None):
            self._note_copies(controller)

    def _note_inserts(self) -> None:
        core = self._tree.tree_core
        begin = core.begin_insert

        def noting(params: Any) -> Any:
            key, slots = params.key, params.value
            if slots is not None:
                tokens = key.token_ids[: len(key)]
                self._inserted(tokens, key.cache_salt or "", slots.tolist())
            return begin(params)

        core.begin_insert = noting

    def _note_copies(self, controller: Any) -> None:
        """Carry digests along with the copies to the host and back."""
        write, load = controller.write, controller.load

        def writing(device_indices: Any, *more: Any, **options: Any) -> Any:
            host = write(device_indices, *more, **options)
            self._copied(self._content, device_indices, self._on_host, host)
            return host

        def loading(host_indices: Any, *more: Any, **options: Any) -> Any:
            device = load(host_indices, *more, **options)
            self._copied(self._on_host, host_indices, self._content, device)
            return device

        controller.write, controller.load = writing, loading

    def _copied(
        self, sources: dict[int, bytes], read: Any, targets: dict[int, bytes], written: Any
    ) -> None:
        if written is not None:
            pages = [(each[:: self._page] // self._page).tolist() for each in (read, written)]
            for source, target in zip(*pages):  # noqa: B905 - equal by make
                targets[target] = sources.get(source, _ROOT)

    def _inserted(self, tokens: Sequence[int], salt: str, slots: Sequence[int]) -> None:
        digest, size = _ROOT, self._page
        for first in range(0, min(len(tokens), len(slots)) // size * size, size):
            digest = _next(digest, tokens[first : first + size], salt)
            self._content[slots[first] // size] = digest

    def key(self, page: int) -> str:
        """Return the key of a page in the tree."""
        digest = self._content.get(page, _ROOT)
        return self._hashes.get(digest, f"page {page} with unpublished tokens")

    def take(self) -> list[CacheEvent]:
        """Return the events since the last call, also those that wait for the next batch."""
        batches = [each.events for each in self._batches]
        self._batches.clear()
        native = [event for batch in batches for event in batch] + self._tree.take_events()
        found = [event for each in native for event in events_of(each)]
        for event, salt in zip(found, _salts(native)):  # noqa: B905 - equal by make
            if event.kind == "stored" and event.parent in self._digests:
                digest = _next(self._digests[event.parent], event.tokens, salt)
                self._digests[event.key], self._hashes[digest] = digest, event.key
        return found


def events_of(native: Any) -> list[CacheEvent]:
    """Return one event for each page."""
    name = type(native).__name__
    kind = {"BlockStored": "stored", "BlockRemoved": "removed"}.get(name, "cleared")
    medium = getattr(native, "medium", None)
    tier = str(medium.value) if medium and medium.value != _OWN else ""
    keys = [str(each) for each in getattr(native, "block_hashes", ())] or [""]
    parent = getattr(native, "parent_block_hash", None)
    parents = ["" if parent is None else str(parent), *keys]
    tokens, size = tuple(getattr(native, "token_ids", ())), getattr(native, "block_size", 0)
    return [
        CacheEvent(kind, key, parents[at], 0, tokens[at * size : (at + 1) * size], tier=tier)
        for at, key in enumerate(keys)
    ]


def _salts(native: Sequence[Any]) -> Iterator[str]:
    """Yield the salt of each event that `events_of` makes of them."""
    for each in native:
        for _ in getattr(each, "block_hashes", ()) or [""]:
            yield getattr(each, "cache_salt", None) or ""


def _next(digest: bytes, tokens: Sequence[int], salt: str) -> bytes:
    """Return the digest of a page that follows others."""
    own = blake2b(digest or salt.encode(), digest_size=16)
    own.update(array("q", tokens).tobytes())
    return own.digest()


def publisher() -> Any:
    """Return the publisher that keeps each batch where `Published` takes it, as SGLang's kind."""
    from sglang.srt.disaggregation.kv_events import EventPublisher

    class Keeping(EventPublisher):  # type: ignore[misc] # SGLang is untyped here
        def __init__(self, **_: Any) -> None:
            self.taken: list[Any] = []

        def publish(self, events: Any) -> None:
            self.taken.append(events)

        def shutdown(self) -> None:
            """Nothing is open."""

    return Keeping
