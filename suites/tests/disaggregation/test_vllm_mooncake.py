"""vLLM's Mooncake workers: known failures are recognised by their copies, and nothing else is."""

from __future__ import annotations

from typing import Any

import pytest

from kvproof.harness.contract.disaggregation_sides import Side
from kvproof.harness.oracle.violation import Violation
from kvproof.suites.engines.vllm.mechanisms import disaggregation as nixl
from kvproof.suites.engines.vllm.mechanisms import mooncake as known
from kvproof.suites.framework.failed import Failed, MissingFact


def side(**values: Any) -> dict[str, Any]:
    sizes = {"ranks": 1, "block_size": 4, "blocks": 9, "heads": 1, "layers": 1, "layout": "LBHNC"}
    return vars(Side(**{**sizes, "latent": True, **values}))


def failed(prefill: dict[str, Any], decode: dict[str, Any], **facts: Any) -> Failed:
    kind = "a_connected_pair_moves_every_prompt" if "error" in facts else "content"
    violation = Violation(kind, "brute force", "", facts=facts)
    sides = {"planner": "mooncake", "prefill": prefill, "decode": decode}
    return Failed(violation, sides, [("move", {})])


def slot(position: int, origin: int | None, tables: tuple[int, int], rank: int = 0) -> Any:
    content = None if origin is None else (0, 0, origin)
    lists = {"prefill": [*range(tables[0])], "decode": [*range(tables[1])]}
    prompt = {"tokens": 8, "cached": 0, **lists}
    return {"prompt": prompt, "rank": rank, "slot": (0, 0, position), "origin": content}


@pytest.mark.parametrize(
    ("position", "origin", "excused"),
    [(0, 4, True), (0, 0, False), (0, None, False), (4, None, True), (4, 5, False)],
)
def test_smaller_blocks_go_to_the_begin_of_larger_ones(
    position: int,
    origin: int | None,
    excused: bool,  # noqa: FBT001 - a row of the table
) -> None:
    found = failed(side(), side(block_size=8), **slot(position, origin, (2, 1)))
    assert known.pulled_latent_blocks_are_not_compared(found) is excused
    assert not known.pulled_context_ranks_are_not_compared(found)


@pytest.mark.parametrize(("origin", "excused"), [(4, True), (0, False), (None, False)])
def test_each_context_rank_gets_the_last_block(origin: int | None, excused: bool) -> None:  # noqa: FBT001 - as above
    found = failed(side(), side(ranks=2, context=2), **slot(0, origin, (2, 1)))
    assert known.pulled_context_ranks_are_not_compared(found) is excused
    assert not known.pulled_latent_blocks_are_not_compared(found)


@pytest.mark.parametrize(
    ("tables", "words", "excused"),
    [
        ((1, 2), "P num blocks less than D", True),
        ((2, 2), "P num blocks less than D", False),
        ((2, 1), "Destination transfer region exceeds remote KV block size.", True),
        ((2, 1), "KeyError: 1", False),
    ],
)
def test_a_failed_load_has_its_reason(tables: tuple[int, int], words: str, excused: bool) -> None:  # noqa: FBT001 - as above
    found = failed(side(block_size=8), side(), error=words, **slot(0, 0, tables))
    assert known.pulled_latent_blocks_are_not_compared(found) is excused


@pytest.mark.parametrize(
    ("place", "origin", "excused"),
    [
        ((2, 0, 0), None, True),
        ((2, 0, 0), 0, False),
        ((4, 0, 3), 3, True),
        ((5, 0, 0), 4, True),
        ((5, 0, 0), 0, False),
        ((6, 0, 0), 0, False),
    ],
)
def test_blocks_are_counted_in_the_senders_kernel_blocks(
    place: tuple[int, int, int],
    origin: int | None,
    excused: bool,  # noqa: FBT001 - as above
) -> None:
    facts = slot(0, origin, (1, 1))
    facts["prompt"]["decode"] = [2]
    found = failed(side(block_size=8, kernel=4, latent=False), side(), **facts, place=place)
    assert known.pulled_blocks_count_in_the_senders_parts(found) is excused
    assert not known.pulled_latent_blocks_are_not_compared(found)


@pytest.mark.parametrize(
    ("place", "origin", "excused"),
    [((1, 0, 0), None, True), ((1, 0, 0), 1, False), ((2, 0, 0), 0, True), ((2, 0, 0), 4, False)],
)
def test_context_ranks_count_the_blocks_of_others_in_their_parts(
    place: tuple[int, int, int],
    origin: int | None,
    excused: bool,  # noqa: FBT001 - as above
) -> None:
    facts = slot(0, origin, (1, 1))
    facts["prompt"]["decode"] = [1]
    found = failed(side(kernel=2, ranks=2, context=2), side(), **facts, place=place)
    assert known.pulled_blocks_count_in_the_senders_parts(found) is excused
    assert not known.pulled_context_ranks_are_not_compared(found)


@pytest.mark.parametrize(
    ("layer", "block", "origin", "excused"),
    [
        (1, 3, (1, 0, 4), True),
        (1, 3, (1, 0, 0), False),
        (1, 3, None, False),
        (0, 3, None, True),
        (1, 2, (0, 0, 4), True),
        (1, 2, None, False),
        (0, 2, (0, 0, 0), True),
        (0, 1, None, True),
        (0, 2, None, False),
    ],
)
def test_layers_of_unlike_kinds_take_turns_in_one_pool(
    layer: int,
    block: int,
    origin: tuple[int, int, int] | None,
    excused: bool,  # noqa: FBT001 - as above
) -> None:
    """Blocks 2 and 3 of the pool are written as 4 to 7: also to layers of the other kind."""
    facts = slot(0, 0, (2, 1))
    facts["prompt"] |= {"decode": [1], "prefill": [1], "windows": [[1], [1]]}
    facts |= {"slot": (layer, 0, 0), "place": (block, 0, 0), "origin": origin}
    kinds = {"kinds": "fw", "window": 5, "latent": False, "layers": 2}
    found = failed(side(block_size=8, kernel=4, **kinds), side(**kinds), **facts)
    assert known.pulled_blocks_count_in_the_senders_parts(found) is excused


@pytest.mark.parametrize(
    ("blocks", "words", "excused"),
    [
        ([2], "Mooncake transfer engine returned -1", False),
        ([5], "Mooncake transfer engine returned -1", True),
        ([5], "KeyError: 1", False),
        ([2, 3], "P num blocks less than D", True),
    ],
)
def test_a_copy_beyond_the_pool_has_its_reason(
    blocks: list[int],
    words: str,
    excused: bool,  # noqa: FBT001 - as above
) -> None:
    facts = slot(0, 0, (1, 1))
    facts["prompt"]["decode"] = blocks
    found = failed(side(block_size=8, kernel=4), side(), error=words, **facts)
    assert known.pulled_blocks_count_in_the_senders_parts(found) is excused


@pytest.mark.parametrize(("kernel", "excused"), [(2, True), (4, False)])
def test_longer_kernel_blocks_are_refused_late_whatever_the_context_ranks(
    kernel: int,
    excused: bool,  # noqa: FBT001 - as above
) -> None:
    words = "Destination transfer region exceeds remote KV block size."
    found = failed(
        side(), side(block_size=8, kernel=kernel, ranks=2, context=2), error=words,
        **slot(0, 0, (1, 1)),
    )  # fmt: skip
    assert known.pulled_blocks_count_in_the_senders_parts(found) is excused


@pytest.mark.parametrize(
    ("layouts", "ranks", "place", "origin", "excused"),
    [
        (("LBNHC", "LBNHC"), (1, 2), (0, 0, 1), (0, 1, 0), True),
        (("LBNHC", "LBNHC"), (1, 2), (0, 0, 1), (0, 0, 1), False),
        (("LBNHC", "LBNHC"), (1, 2), (0, 0, 1), None, False),
        (("LBNHC", "LBNHC"), (2, 1), (0, 0, 1), (0, 0, 2), True),
        (("LBNHC", "LBHNC"), (1, 1), (0, 1, 0), (0, 0, 2), True),
        (("LBHNC", "LBNHC"), (1, 1), (0, 1, 0), (0, 0, 1), True),
        (("LBHNC", "LBHNC"), (1, 2), (0, 0, 1), (0, 1, 0), False),
    ],
)
def test_heads_within_tokens_are_cut_as_if_they_lay_outermost(
    layouts: tuple[str, str],
    ranks: tuple[int, int],
    place: tuple[int, int, int],
    origin: tuple[int, int, int] | None,
    excused: bool,  # noqa: FBT001 - as above
) -> None:
    sides = [
        side(latent=False, heads=2, layout=layout, ranks=each)
        for layout, each in zip(layouts, ranks, strict=True)
    ]
    facts = {**slot(0, 0, (2, 2)), "slot": place, "origin": origin}
    found = failed(sides[0], sides[1], **facts)
    assert known.pulled_heads_lie_within_tokens(found) is excused


def test_failures_of_one_connector_are_none_of_the_other() -> None:
    found = failed(side(block_size=8), side(block_size=16), **slot(0, 0, (1, 1)))
    with pytest.raises(MissingFact):
        nixl.blocks_are_paired_from_their_ends(found)
    of_nixl = Failed(found.violation, {**found.config, "planner": "nixl"}, found.calls)
    assert not known.pulled_latent_blocks_are_not_compared(of_nixl)
