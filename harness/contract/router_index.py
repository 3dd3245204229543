"""Calls of the suite `router` on an index that is fed by the cache events of several workers.

    traits  {}                 -> lacks: capability -> why the index has it not (`CAPABILITIES`)
    open    {tiers}            -> an empty index of so many tiers, the fastest first
    receive {worker, message}  -> numbers of the first and the last missing message, or nothing
    leave   {name, start}      -> the worker ended, with all its ranks
    copy    {}                 -> goes on with another index, made from a dump of this one
    offers  {prompts}          -> [[name, rank, blocks by tier], ...] of each, none without blocks

A worker is [name, rank]. A message is `{"start", "number", "whole", "events"}`: the worker's start,
which grows, the number of the message since then, from 0, and whether the events are all that is
cached after it. Events are `["stored", parent, [[key, content], ...], tier]`, `["removed", keys,
tier]`, and `["cleared", tier]`, of all tiers for null. Keys are integers of a worker's own; the
parent of a first block is null. Contents are integers that all workers share, of one block without
what precedes it. Blocks of a prompt count in the first tier as long as it holds them, then in the
next one from there. It runs inside the engine's environment: Python 3.10.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

CAPABILITIES = {
    "order": "messages that are lost, overtake each other, or arrive after their worker's end",
    "keys": "workers that name equal blocks by unlike keys",
    "tiers": "tiers below the first one",
    "copies": "blocks that a cache holds twice",
    "ranks": "several ranks of a worker",
    "gaps": "blocks that leave before those that follow them",
}
"""Capability -> the histories that need it."""


class RouterIndex(Protocol):
    """A router's index."""

    def receive(self, worker: tuple[int, int], message: dict[str, Any]) -> list[int]:
        """Take a message; return the first and the last missing number, or an empty list."""

    def leave(self, name: int, start: int) -> None:
        """Forget a worker that ended."""

    def copied(self) -> RouterIndex:
        """Return another index, made from a dump of this one."""

    def offers(self, prompt: list[int]) -> list[list[Any]]:
        """Return name, rank and blocks by tier of each worker that holds the first block."""


_OPEN: dict[str, RouterIndex] = {}


def answered(
    arguments: dict[str, Any], lacks: dict[str, str], opening: Callable[[int], RouterIndex]
) -> dict[str, Any]:
    """Carry out calls, in order."""
    answers: list[Any] = []
    for verb, keywords in arguments["calls"]:
        if verb == "traits":
            answers.append({"lacks": lacks})
        elif verb == "open":
            _OPEN["index"] = opening(keywords["tiers"])
            answers.append(None)
        else:
            answers.append(_answer(verb, keywords))
    return {"answers": answers}


def _answer(verb: str, keywords: dict[str, Any]) -> Any:
    index = _OPEN["index"]
    if verb == "receive":
        return index.receive((keywords["worker"][0], keywords["worker"][1]), keywords["message"])
    if verb == "leave":
        return index.leave(**keywords)
    if verb == "copy":
        _OPEN["index"] = index.copied()
        return None
    return [index.offers(prompt) for prompt in keywords["prompts"]]
