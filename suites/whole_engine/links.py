"""Two engines: one prefills, the other decodes and reads the blocks of the first."""

from __future__ import annotations

from kvproof.harness.contract.whole_engine_traits import Link, usable
from kvproof.suites.framework.component_suite import Arguments, Config
from kvproof.suites.whole_engine.choices import Choices, one_of
from kvproof.suites.whole_engine.histories import engine_of


def linked(copies: str, choices: Choices) -> Config:
    """Choose two engines, of which one copies (`Link.copies`), and the faults between them."""
    able = [each for each in usable(choices.traits.links) if each.copies == copies]
    link = one_of(choices, able)
    policy, roles = one_of(choices, link.policies), one_of(choices, link.roles)
    decode, prefill = (
        engine_of(
            choices,
            connector=link.connector.format(role=role, policy=policy),
            tick_s=link.tick_s,
        )
        for role in roles
    )
    prefill["policy"] = decode["policy"]
    decode["heads"] = prefill["heads"] = one_of(choices, link.heads)
    if link.windows and not choices.number(0, 3):
        _add_window(choices, link, decode, prefill)
    elif link.other_block_size and not choices.number(0, 4):
        _resize(prefill, link.other_block_size)
    _share_heads(choices, link, decode, prefill)
    notified, others = (prefill, decode) if copies == "pull" else (decode, prefill)
    several = notified["tensor_parallel"] < others["tensor_parallel"]
    once = ["once"] if several and choices.number(0, 5) else []
    reset = [] if choices.traits.lacks("reset") else ["reset"]
    return {
        "engine": {**decode, "peer": prefill},
        "features": ["turns", *reset, "linked", *once, *one_of(choices, link.breaks)],
    }


def _add_window(choices: Choices, link: Link, decode: Arguments, prefill: Arguments) -> None:
    size = one_of(choices, link.windows)
    for each in (decode, prefill):
        each["groups"] = [{"layers": 1}, {"kind": "window", "size": size, "layers": 1}]
        each["blocks"] *= 2


def _resize(prefill: Arguments, size: int) -> None:
    """Give the engine that prefills other blocks, and as many tokens at least."""
    times = max(1, prefill["block_size"] // size)
    prefill |= {"block_size": size, "blocks": prefill["blocks"] * times}


def _share_heads(choices: Choices, link: Link, decode: Arguments, prefill: Arguments) -> None:
    """Choose numbers of workers and layouts that the engine takes, of each engine its own."""
    equal = decode["block_size"] == prefill["block_size"]
    pairs = link.pairs(decode["heads"], equal_blocks=equal)
    workers = (1, 1)
    if pairs != [workers] and choices.pick((False, True)):
        workers = choices.pick(pairs)
    prefill["tensor_parallel"], decode["tensor_parallel"] = workers
    layouts = [
        (each.prefill, each.decode)
        for each in link.layouts
        if (workers[0] == workers[1] or not each.equal_workers)
        and ("groups" not in decode or not each.one_group)
        for _ in range(each.weight)
    ]
    prefill["layout"], decode["layout"] = one_of(choices, layouts)
