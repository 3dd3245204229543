"""The canary on the reference engine: silent on a right one, red for each planted fault."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kvproof.suites.tests.live.needs import torch
from kvproof.suites.tests.live.watched_reference import Watched, open_watched, serve_turns

from kvproof.reference.model_runner.memory import PagedMemory, Slots  # isort: skip

KERNEL_BLOCK = 4


def table_off_by_a_block(monkeypatch: pytest.MonkeyPatch, _: Any) -> None:
    right = PagedMemory.slots

    def slots(self: Any, *given: Any, writes: int) -> Slots:
        pages, offsets = right(self, *given, writes=writes)
        read = pages.shape[1] - writes
        moved = pages.clone()
        moved[:, :read] = torch.roll(pages[:, :read], KERNEL_BLOCK, dims=1)
        return Slots(moved, offsets)

    monkeypatch.setattr(PagedMemory, "slots", slots)


def slot_mapping_shifted(monkeypatch: pytest.MonkeyPatch, _: Any) -> None:
    right = PagedMemory.slots

    def slots(self: Any, *given: Any, writes: int) -> Slots:
        pages, offsets = right(self, *given, writes=writes)
        if writes == 1:
            offsets[:, -1] ^= 1
        return Slots(pages, offsets)

    monkeypatch.setattr(PagedMemory, "slots", slots)


def late_copy(monkeypatch: pytest.MonkeyPatch, _: Any) -> None:
    right, late = PagedMemory.copy, [[]]

    def copy(self: Any, pairs: Any) -> None:
        late.append(list(pairs))
        right(self, late.pop(0))

    monkeypatch.setattr(PagedMemory, "copy", copy)


def freed_block_reused(_: pytest.MonkeyPatch, runner: Any) -> None:
    right = runner.launch

    def launch(step: int, works: Any) -> None:
        first, last = works[0], works[-1]
        if len(works) > 1 and not last.start and first.start >= 16:
            tables = [each.copy() for each in last.tables]
            tables[0][:KERNEL_BLOCK] = first.tables[0][:KERNEL_BLOCK]
            works = [*works[:-1], last._replace(tables=tuple(tables))]
        right(step, works)

    runner.launch = launch


def late_load(_: pytest.MonkeyPatch, runner: Any) -> None:
    objects_of, launch, late = runner._objects, runner.launch, []
    right = objects_of.load

    def launched(step: int, works: Any) -> None:
        launch(step, works)
        for places, objects in late:
            right(places, objects)
        late.clear()

    objects_of.load = lambda *given: late.append((given[0], [bytes(each) for each in given[1]]))
    runner.launch = launched


Plant = Callable[[pytest.MonkeyPatch, Any], None]
PLANTS: dict[str, tuple[Plant, dict[str, Any]]] = {
    "a table off by a block": (table_off_by_a_block, {}),
    "a slot mapping shifted": (slot_mapping_shifted, {}),
    "a late copy": (late_copy, {"cache_partial_blocks": True}),
    "a freed block reused": (freed_block_reused, {}),
    "a late load from host memory": (late_load, {"tier": "64MiB"}),
}


def served(
    family: str, plant: Plant | None, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> Watched:
    engine, watched = open_watched(family, **options)
    if plant:
        plant(monkeypatch, engine.model)
    serve_turns(engine)
    if "tier" in options:  # what comes again is in host memory alone
        assert engine.cache.evict(400)
        serve_turns(engine)
    return watched


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("qwen3", {"cache_partial_blocks": True}),
        ("qwen3", {"tier": "64MiB"}),
        ("gemma3", {"num_blocks": 60}),
    ],
)
def test_a_right_engine_reads_its_own_words(
    family: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = served(family, None, monkeypatch, **options)
    assert watched.wrong == 0
    assert watched.slots > 1000


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_fault_leaves_wrong_words(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, options = PLANTS[name]
    assert served("qwen3", plant, monkeypatch, **options).wrong > 0
