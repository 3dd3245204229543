"""Two engines: one prefills, the other decodes and gets the blocks of the first."""

from __future__ import annotations

from kvproof.harness.contract.factors import Row
from kvproof.harness.contract.whole_engine_traits import Link
from kvproof.suites.framework.component_suite import Arguments
from kvproof.suites.whole_engine.choices import Choices, one_of


def join(link: Link, row: Row, choices: Choices, decode: Arguments, prefill: Arguments) -> None:
    """Choose roles, blocks, workers and layouts, as far as two engines may differ in them."""
    roles = row.get("role", "/".join(link.roles[0])).split("/")
    policy = row.get("failed copies", link.policies[0])
    for engine, role in zip((decode, prefill), roles, strict=True):
        engine["connector"] = link.connector.format(role=role, policy=policy)
        engine["tick_s"] = link.tick_s
    heads = [each for each in link.heads if (each > 1) == (row.get("heads") == "several")]
    decode["heads"] = prefill["heads"] = one_of(choices, heads)
    if row.get("peer's blocks") == "other":
        _resize(prefill, link.other_blocks)
    _share_heads(choices, link, row, decode, prefill)


def _resize(prefill: Arguments, times: float) -> None:
    """Give the engine that prefills other blocks, and as many tokens at least."""
    size = int(prefill["block_size"] * times)
    prefill["blocks"] *= max(1, prefill["block_size"] // size)
    prefill["block_size"] = size


def _share_heads(
    choices: Choices, link: Link, row: Row, decode: Arguments, prefill: Arguments
) -> None:
    """Choose numbers of workers and layouts that the engine takes, of each engine its own."""
    equal = decode["block_size"] == prefill["block_size"]
    unequal = row.get("workers") == "unequal"
    pairs = link.pairs(decode["heads"], equal_blocks=equal)
    workers = one_of(choices, [(one, two) for one, two in pairs if (one != two) == unequal])
    prefill["tensor_parallel"], decode["tensor_parallel"] = workers
    layouts = [
        (each.prefill, each.decode)
        for each in link.layouts
        if bool(each.decode) == (row.get("layout") == "given")
        and not (each.equal_workers and unequal)
        and not (each.one_group and len(decode["groups"]) > 1)
    ]
    prefill["layout"], decode["layout"] = one_of(choices, layouts)
