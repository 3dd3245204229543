"""Calls of the suite `disaggregation`: prompts that move from prefilling to decoding workers.

    traits {}                          -> planner -> `Traits`: missing capabilities, layouts
    open   {planner, prefill, decode}  -> why the engine refuses them, or null (`Refused`)
    move   {...}                       -> what a prompt's move did (`Prompt`, `Moved`)

A planner is a connector of the engine that decides which bytes go where. The sides are those of
`disaggregation_sides`. It runs inside the engine's environment: Python 3.10.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from kvproof.harness.contract.disaggregation_sides import Side, Tables, Words

CAPABILITIES = {
    "latent": "latent heads, which all workers hold",
    "context": "context parallel: the tokens of a prompt lie on several ranks",
    "gathered": "more context ranks on the side that prefills",
    "kernel": "kernel blocks that are smaller than blocks",
    "unequal": "blocks of unlike sizes on both sides",
    "copies": "more workers than heads on the side that prefills",
    "stages": "pipeline stages",
    "windows": "layers that see a window of tokens",
    "states": "layers with one state for each prompt",
}
"""Capability -> the pairs that need it."""


class Traits(NamedTuple):
    """The abilities of a planner."""

    lacks: dict[str, str]
    """Capability -> why not (`CAPABILITIES`)."""
    layouts: list[str]
    undriven: list[str] = []  # noqa: RUF012 - no value is changed
    """Capabilities that it lacks because the adapter does not drive them: they are not refused."""
    interleave: int = 0
    """Tokens that go to a context rank in its turn; 0: those of a block."""
    refused: list[str] = []  # noqa: RUF012 - no value is changed
    """Layouts that it does not move."""
    pushes: bool = False
    """Whether prefilling workers send; else decoding ones take."""
    recomputes: bool = False
    """Whether the last block of a prompt always moves: no scheduler of it finds whole prompts."""


def packed(caches: Sequence[Words]) -> str:
    """Return a worker's content, [block, head, offset, word] of each layer, as text."""
    return b64encode(b"".join(np.ascontiguousarray(each).tobytes() for each in caches)).decode()


@dataclass(frozen=True)
class Prompt:
    """A prompt that is prefilled and then moved."""

    number: int
    tokens: int
    cached: int
    """Blocks of the table that the decoding side holds already."""
    prefill: list[int]
    """The table on the side that prefills."""
    decode: list[int]
    order: list[int]
    """Workers of the side that acts, in turn: decoding ones take, or prefilling ones send."""
    windows: list[list[int]] = field(default_factory=lambda: [[], []])
    """The tables of windows on both sides."""
    rows: list[int] = field(default_factory=lambda: [1, 1])
    """The rows of states on both sides."""

    @property
    def sender(self) -> Tables:
        """Where the side that prefills has it."""
        return Tables(self.prefill, self.windows[0], self.rows[0])

    @property
    def receiver(self) -> Tables:
        """Where the side that decodes has it."""
        return Tables(self.decode, self.windows[1], self.rows[1])


class Moved(NamedTuple):
    """What a move did."""

    error: str
    """Why it ended in the middle; empty: it did not."""
    content: list[str]
    """The `packed` caches of the decoding workers."""
    read: list[list[int]]
    """Prefilling workers whose bytes were copied in each turn."""
    freed: list[list[int]]
    """Prefilling workers that let go of the prompt after each turn."""
    written: list[list[int]]
    """Decoding workers to which bytes came in each turn."""
    arrived: list[list[int]]
    """Decoding workers that say, after each turn, that all of the prompt has come."""


class Refused(NamedTuple):
    """Two sides that the engine does not connect."""

    why: str
    """The engine's own words."""
    alone: bool = False
    """Whether it does not start one of them, whatever the other one is."""


def said(error: Exception) -> str:
    """Return an engine's error as its words."""
    return f"{type(error).__name__}: {str(error).strip()}"


class Pair(Protocol):
    """Two sides that are connected."""

    def move(self, prompt: Prompt) -> Moved:
        """Let the prompt be computed on one side and taken over by the other one."""


Opening = Callable[[str, Side, Side], "Pair | Refused"]
"""Connects prefill and decode by a planner."""

_OPEN: dict[str, Pair] = {}


def answered(
    arguments: dict[str, Any], traits: Mapping[str, Traits], opening: Opening
) -> dict[str, Any]:
    """Carry out calls, in order."""
    answers: list[Any] = []
    for verb, keywords in arguments["calls"]:
        if verb == "traits":
            answers.append({name: each._asdict() for name, each in traits.items()})
        elif verb == "open":
            _OPEN.clear()
            sides = Side(**keywords["prefill"]), Side(**keywords["decode"])
            pair = opening(keywords["planner"], *sides)
            if isinstance(pair, Refused):
                answers.append(pair._asdict())
            else:
                _OPEN["pair"] = pair
                answers.append(None)
        else:
            answers.append(_OPEN["pair"].move(Prompt(**keywords))._asdict())
    return {"answers": answers}
