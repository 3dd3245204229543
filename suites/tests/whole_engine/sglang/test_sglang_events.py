"""SGLang's events without SGLang: one for each page, and the keys of cached pages by them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from kvproof.harness.adapters.sglang_engine.published import Published, events_of
from kvproof.harness.contract.whole_engine import CacheEvent

PAGE = 2


class BlockStored(SimpleNamespace):
    """SGLang's, by its name and its fields."""


class BlockRemoved(SimpleNamespace):
    """SGLang's."""


class AllBlocksCleared(SimpleNamespace):
    """SGLang's."""


def stored(hashes: list[int], tokens: list[int], parent: int | None = None, salt: str = "") -> Any:
    return BlockStored(
        block_hashes=hashes,
        parent_block_hash=parent,
        token_ids=tokens,
        block_size=PAGE,
        medium=SimpleNamespace(value="GPU"),
        cache_salt=salt or None,
    )


class Tree:
    """A tree that takes inserts, and has the events of a history."""

    def __init__(self) -> None:
        self.publisher = SimpleNamespace(kv_event_publisher=SimpleNamespace())
        self.tree_core = SimpleNamespace(begin_insert=lambda params: params)
        self.waiting: list[Any] = []
        scheduler = SimpleNamespace(tree_cache=self, kv_events_publisher=self.publisher)
        self.published = Published(scheduler, PAGE)

    def take_events(self) -> list[Any]:
        found, self.waiting = self.waiting, []
        return found

    def publish(self, *events: Any) -> None:
        self.publisher.kv_event_publisher.taken.append(SimpleNamespace(events=[*events]))

    def insert(self, tokens: list[int], slots: list[int], salt: str = "") -> None:
        key = Key(token_ids=tokens, cache_salt=salt or None)
        self.tree_core.begin_insert(SimpleNamespace(key=key, value=Slots(slots)))


class Key(SimpleNamespace):
    def __len__(self) -> int:
        return len(self.token_ids)


class Slots(list[int]):
    def tolist(self) -> list[int]:
        return [*self]


def test_an_event_of_several_pages_is_several() -> None:
    found = events_of(stored([7, 8], [1, 2, 3, 4], parent=5))
    assert [(each.key, each.parent, each.tokens) for each in found] == [
        ("7", "5", (1, 2)),
        ("8", "7", (3, 4)),
    ]
    assert {each.tier for each in found} == {""}
    removed = BlockRemoved(block_hashes=[7], medium=SimpleNamespace(value="CPU_PINNED"))
    assert events_of(removed) == [CacheEvent("removed", "7", tier="CPU_PINNED")]
    assert events_of(AllBlocksCleared()) == [CacheEvent("cleared")]


def test_events_that_wait_for_a_batch_come_behind_those_that_were_published() -> None:
    tree = Tree()
    tree.publish(stored([7], [1, 2]))
    tree.waiting = [BlockRemoved(block_hashes=[7], medium=None)]
    assert [each.kind for each in tree.published.take()] == ["stored", "removed"]
    assert tree.published.take() == []


def test_a_cached_page_has_the_key_of_the_event_with_its_tokens() -> None:
    tree = Tree()
    tree.insert([1, 2, 3, 4], [10, 11, 6, 7])
    assert "unpublished" in tree.published.key(5)
    tree.publish(stored([7], [1, 2]), stored([8], [3, 4], parent=7))
    tree.published.take()
    assert [tree.published.key(page) for page in (5, 3)] == ["7", "8"]
    tree.insert([1, 2, 9, 9], [10, 11, 6, 7])  # the slots of the second page have other tokens now
    assert tree.published.key(5) == "7"
    assert "unpublished" in tree.published.key(3)


def test_equal_tokens_with_another_salt_are_another_page() -> None:
    tree = Tree()
    tree.insert([1, 2], [10, 11], salt="s")
    tree.publish(stored([7], [1, 2]))
    tree.published.take()
    assert "unpublished" in tree.published.key(5)
    tree.publish(stored([9], [1, 2], salt="s"))
    tree.published.take()
    assert tree.published.key(5) == "9"
