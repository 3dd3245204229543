"""Calls of the suite `hits` on an engine's own index of several groups.

    traits {}          -> kinds of groups, drafts, reach (`DraftProfile`), least_window,
                          mixed: kinds that may have unequal blocks
    open   {groups}    -> empty, or why the engine makes no such index
    hits   {contents}  -> [[hit, named], ...] of contents [[limit, resident], ...]

A group is [kind, block size, size, draft]. `resident` are the cached blocks of each group, of a
state those at whose end it was saved. The prompt has `limit` + 1 tokens, `named` are the blocks of
each group that the hit names. It runs inside the engine's environment: Python 3.10.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from kvproof.harness.contract.target import Group


class HitIndex(Protocol):
    """An engine's index of these groups, empty before each content."""

    def hit(self, limit: int, resident: list[list[int]]) -> tuple[int, list[list[int]]]:
        """Return the engine's hit for a content, and the blocks that it names."""


_OPEN: dict[str, HitIndex] = {}


def answered(
    arguments: dict[str, Any],
    traits: dict[str, Any],
    opening: Callable[[list[Group]], HitIndex],
) -> dict[str, Any]:
    """Carry out calls, in order. Groups that the engine refuses by an error have its text."""
    answers: list[Any] = []
    for verb, keywords in arguments["calls"]:
        if verb == "traits":
            answers.append(traits)
        elif verb == "open":
            answers.append(_opened(keywords["groups"], opening))
        else:
            answers.append([_OPEN["index"].hit(*content) for content in keywords["contents"]])
    return {"answers": answers}


def _opened(groups: list[Any], opening: Callable[[list[Group]], HitIndex]) -> str:
    layers = [Group(kind, block, size, draft=draft) for kind, block, size, draft in groups]
    try:
        _OPEN["index"] = opening(layers)
    except (AssertionError, NotImplementedError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return ""
