"""Jobs of the component suites for LMCache: calls in, answers in order. Engine environment only."""

from __future__ import annotations

from typing import Any

from kvproof.harness.adapters.lmcache.api import engine
from kvproof.harness.adapters.lmcache.pages import Pages
from kvproof.harness.adapters.lmcache.server import Server
from kvproof.harness.contract.hit_index import answered
from kvproof.harness.contract.target import Group

_CURRENT: dict[str, Any] = {}
_OPTIONS: dict[str, Any] = {}
"""Options of the server that runs.

A process has one server, since the part that ends its copies is found by its name.
"""


def server(arguments: dict[str, Any]) -> dict[str, Any]:
    """Carry out calls on a server; `open` takes its options and leaves it empty."""
    return _carried_out("server", arguments, opening=_server)


def transfer(arguments: dict[str, Any]) -> dict[str, Any]:
    """Carry out calls on layers and objects; `open` makes them."""
    return _carried_out("transfer", arguments, opening=Pages)


def hits(arguments: dict[str, Any]) -> dict[str, Any]:
    """Carry out calls on LMCache's algebra of hits (`harness.contract.hit_index`)."""
    traits = {
        "kinds": ("full", "window"), "drafts": False, "reach": "matched", "least_window": 2,
        "exact": True,
    }  # fmt: skip
    return answered(arguments, traits, Algebra)


def _carried_out(job: str, arguments: dict[str, Any], *, opening: Any) -> dict[str, Any]:
    answers: list[Any] = []
    for verb, keywords in arguments["calls"]:
        if verb == "open":
            _CURRENT[job] = opening(**keywords)
            answers.append(None)
        elif verb == "traits":
            answers.append({})
        else:
            answers.append(getattr(_CURRENT[job], verb)(**keywords))
    return {"answers": answers}


def _server(**options: Any) -> Server:
    """The server that runs, if it has these options and nothing is stuck in it, or a new one."""
    running: Server | None = _CURRENT.pop("server", None)
    if running is not None:
        if options == _OPTIONS and running.renewed():
            return running
        running.close()
    _OPTIONS.clear()
    _OPTIONS.update(options)
    return Server(**options)


class Algebra:
    """`fold` finds the lengths that chunks in memory can serve, `unfold` the chunks of a length."""

    def __init__(self, groups: list[Group], _variant: str) -> None:
        self._chunk = groups[0].block_size
        self._windows = [
            -1 if group.kind == "full" else -((1 - group.size) // self._chunk) for group in groups
        ]

    def hit(self, limit: int, resident: list[list[int]]) -> tuple[int, list[list[int]]]:
        """Return the hit of a prompt of `limit` + 1 tokens, and the chunks that are kept for it."""
        groups, chunks = len(self._windows), limit // self._chunk
        found = engine().Bitmap(groups * chunks)
        for group, there in enumerate(resident):
            for chunk in filter(chunks.__gt__, there):
                found.set(chunk * groups + group)
        lengths = engine().fold(found, chunks, 1, self._windows)
        longest = max((at + 1 for at in range(chunks) if lengths.test(at)), default=0)
        kept = engine().unfold(longest, chunks, 1, self._windows)
        return longest * self._chunk, [
            [at for at in range(chunks) if kept.test(at * groups + group)]
            for group in range(groups)
        ]
