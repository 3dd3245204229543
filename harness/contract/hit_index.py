"""Calls of the suite `hits` on an engine's own index of several groups.

    traits {}                -> kinds of groups, drafts, reach (`DraftProfile`), least_window,
                                mixed: kinds that may have unequal blocks,
                                layouts: variant of the index -> combinations of kinds; empty: any,
                                chained: nothing is cached after the first gap of full attention,
                                exact: a hit names the blocks that it needs and no others
    open   {groups, variant} -> empty, or why the engine makes no such index
    hits   {contents}        -> [[hit, named], ...] of contents [[limit, resident], ...]

A group is [kind, block size, size, draft]. `resident` are the cached blocks of each group, of a
state those at whose end it was saved. The prompt has `limit` + 1 tokens, `named` are the blocks of
each group that the hit names. It runs inside the engine's environment: Python 3.10.

An engine refuses groups by NotImplementedError or ValueError. Any other error is its crash.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from kvproof.harness.contract.target import Group


class HitIndex(Protocol):
    """An engine's index of these groups, empty before each content."""

    def hit(self, limit: int, resident: list[list[int]]) -> tuple[int, list[list[int]]]:
        """Return the engine's hit for a content, and the blocks that it names."""


Opening = Callable[[list[Group], str], HitIndex]
"""Makes the index of some groups, in one of its variants."""

_OPEN: dict[str, HitIndex] = {}


def answered(arguments: dict[str, Any], traits: dict[str, Any], opening: Opening) -> dict[str, Any]:
    """Carry out calls, in order. Groups that the engine refuses have its reason."""
    answers: list[Any] = []
    for verb, keywords in arguments["calls"]:
        if verb == "traits":
            answers.append(traits)
        elif verb == "open":
            answers.append(_opened(keywords["groups"], keywords.get("variant", ""), opening))
        else:
            answers.append([_OPEN["index"].hit(*content) for content in keywords["contents"]])
    return {"answers": answers}


def _opened(groups: list[Any], variant: str, opening: Opening) -> str:
    layers = [Group(kind, block, size, draft=draft) for kind, block, size, draft in groups]
    try:
        _OPEN["index"] = opening(layers, variant)
    except (NotImplementedError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return ""
