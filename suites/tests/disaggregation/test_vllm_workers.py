"""vLLM's Nixl workers: what is known to be wrong is recognised by its copies, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from kvproof.harness.contract.disaggregation_sides import Side
from kvproof.harness.oracle.violation import Violation
from kvproof.suites.engines.vllm.mechanisms import disaggregation as known
from kvproof.suites.framework.failed import Failed

ROWS: dict[str, Any] = {"heads": 2, "layout": "BHLNC"}


def side(**values: Any) -> dict[str, Any]:
    sizes = {"ranks": 1, "block_size": 4, "blocks": 9, "heads": 1, "layers": 1, "layout": "LBHNC"}
    return vars(Side(**{**sizes, **values}))


def failed(prefill: dict[str, Any], decode: dict[str, Any], **facts: Any) -> Failed:
    violation = Violation("each_slot_gets_its_own_content", "brute force", "", facts=facts)
    return Failed(violation, {"prefill": prefill, "decode": decode}, [("move", {})])


def pushed(prefill: dict[str, Any], decode: dict[str, Any], **facts: Any) -> Failed:
    found = failed(prefill, decode, **facts)
    return Failed(found.violation, {**found.config, "pushes": True}, found.calls)


def prompt(tokens: int, prefill: int, decode: int, cached: int = 0) -> dict[str, Any]:
    tables = {"prefill": [*range(1, prefill + 1)], "decode": [*range(1, decode + 1)]}
    return {"tokens": tokens, "cached": cached, **tables}


def slot(found: dict[str, Any], position: int, origin: int | None) -> dict[str, Any]:
    content = None if origin is None else (0, 0, origin)
    return {"prompt": found, "rank": 0, "slot": (0, 0, position), "origin": content}


@pytest.mark.parametrize(
    ("origin", "excused"), [(8, True), (12, False), (16, False), (None, False)]
)
def test_blocks_that_are_paired_from_their_ends(origin: int | None, excused: bool) -> None:  # noqa: FBT001 - a row of the table
    facts = slot(prompt(35, 5, 3, cached=1), 16, origin)
    found = failed(side(block_size=8), side(block_size=16), **facts)
    assert known.blocks_are_paired_from_their_ends(found) is excused


def test_padding_behind_a_prompt_is_no_token_of_it() -> None:
    facts = slot(prompt(3, 1, 1), 0, None)
    found = failed(side(block_size=8, kernel=4), side(), **facts)
    assert known.blocks_are_paired_from_their_ends(found)
    shared = failed(side(block_size=8, kernel=4), side(ranks=2, context=2), **facts)
    assert not known.blocks_are_paired_from_their_ends(shared)


@pytest.mark.parametrize(("tokens", "excused"), [(1, True), (8, False)])
def test_a_longer_list_of_the_decoding_side_asserts(tokens: int, excused: bool) -> None:  # noqa: FBT001 - as above
    facts = {"prompt": prompt(tokens, -(-tokens // 4), 1), "error": "AssertionError: "}
    found = failed(side(), side(block_size=8, kernel=4), **facts)
    assert known.blocks_are_paired_from_their_ends(found) is excused


@pytest.mark.parametrize(
    ("origin", "layout", "excused"),
    [((0, 1, 0), "BHLNC", True), ((0, 1, 1), "BHLNC", False), ((0, 1, 0), "LBHNC", False)],
)
def test_rows_that_are_cut_by_bytes(origin: Any, layout: str, excused: bool) -> None:  # noqa: FBT001 - as above
    facts = {"prompt": prompt(8, 2, 1), "rank": 0, "slot": (0, 0, 4), "origin": origin}
    sizes = {**ROWS, "layout": layout}
    found = failed(side(**sizes), side(**sizes, block_size=8), **facts)
    assert known.unlike_rows_are_cut_by_bytes(found) is excused


def test_a_silent_refusal_is_that_of_many_workers() -> None:
    found = failed(side(ranks=2), side(), why="AssertionError: ")
    assert known.heads_of_many_workers_are_refused_silently(found)
    few = failed(side(ranks=2, heads=2), side(heads=2), why="AssertionError: ")
    assert not known.heads_of_many_workers_are_refused_silently(few)


def test_a_step_that_ends_is_that_of_context_ranks_and_unlike_blocks() -> None:
    ranks = {"latent": True, "ranks": 2, "context": 2}
    facts = {"prompt": prompt(13, 2, 2), "error": "AssertionError: "}
    unlike = failed(side(block_size=8, kernel=4, latent=True), side(**ranks), **facts)
    assert known.context_ranks_pair_unlike_blocks(unlike)
    alike = failed(side(latent=True), side(**ranks), **facts)
    assert not known.context_ranks_pair_unlike_blocks(alike)


@pytest.mark.parametrize(
    ("worker", "position", "origin", "excused"),
    [
        (0, 32, 16, True),
        (0, 35, 19, True),
        (0, 36, None, True),
        (0, 36, 20, False),
        (0, 32, 32, False),
        (1, 40, 20, True),
    ],
)
def test_context_ranks_get_the_blocks_with_their_numbers(
    worker: int, position: int, origin: int | None, *, excused: bool
) -> None:
    """Block 4 of the decoding side, of 8 tokens, is paired with block 4 of 4 tokens."""
    found = prompt(41, 11, 3, cached=2)
    facts = slot(found, position, origin) | {"rank": worker}
    ranks = {"latent": True, "ranks": 2, "context": 2, "block_size": 8}
    moved = failed(side(kernel=2, latent=True), side(**ranks), **facts)
    assert known.context_ranks_pair_unlike_blocks(moved) is excused


@pytest.mark.parametrize(("origin", "excused"), [(None, True), (4, False), (8, False)])
def test_slots_beyond_one_context_rank_are_zero(origin: int | None, *, excused: bool) -> None:
    """Two blocks of 4 tokens on each of two ranks: the second of 8 tokens is zero."""
    facts = slot(prompt(9, 2, 2), 8, origin) | {"rank": 0}
    moved = failed(side(latent=True, ranks=2, context=2), side(latent=True, block_size=8), **facts)
    assert known.context_ranks_pair_unlike_blocks(moved) is excused


def test_a_push_to_more_workers_than_heads_is_refused_silently() -> None:
    sides, why = (side(), side(ranks=2)), "AssertionError: "
    assert known.heads_of_many_workers_are_refused_silently(pushed(*sides, why=why))
    assert not known.heads_of_many_workers_are_refused_silently(failed(*sides, why=why))
    assert not known.heads_of_many_workers_are_refused_silently(pushed(*sides[::-1], why=why))


UNDIVIDED = (
    "AssertionError: Local block size 4 is not divisible by remote block size 8 or vice versa."
)
NO_TABLE = "IndexError: tuple index out of range"


@pytest.mark.parametrize(
    ("prefill", "decode", "error", "excused"),
    [
        ({"block_size": 8}, {}, UNDIVIDED, True),
        ({"block_size": 8}, {}, NO_TABLE, False),
        ({"block_size": 8}, {"block_size": 8, "kernel": 4}, UNDIVIDED, True),
        ({}, {"block_size": 8}, UNDIVIDED, False),
        ({}, {"block_size": 8, "kernel": 4}, NO_TABLE, True),
        ({}, {}, NO_TABLE, False),
    ],
)
def test_a_push_into_unlike_blocks(
    prefill: dict[str, Any], decode: dict[str, Any], error: str, *, excused: bool
) -> None:
    sides = side(**prefill), side(**decode)
    assert known.pushes_go_into_unlike_blocks(pushed(*sides, error=error)) is excused
    assert not known.pushes_go_into_unlike_blocks(failed(*sides, error=error))


@pytest.mark.parametrize(
    ("position", "origin", "excused"),
    [(16, None, True), (19, 15, True), (32, 28, True), (32, 32, False), (20, None, False)],
)
def test_blocks_of_a_window_are_paired_by_their_lists(
    position: int, origin: int | None, *, excused: bool
) -> None:
    """Two blocks of 16 tokens, from 16 on, and six of 4, from 12 on."""
    tables = {"windows": [[0, 0, 0, 4, 5, 6, 7, 8, 9], [0, 2, 3]]}
    found = {**prompt(34, 9, 3), **tables}
    model = {"kinds": "w", "window": 20}
    sides = side(**model), side(**model, block_size=16)
    moved = failed(*sides, **slot(found, position, origin))
    assert known.blocks_are_paired_from_their_ends(moved) is excused
