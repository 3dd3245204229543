"""Suite `http`: small servers, and clients whose prompts begin alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from itertools import combinations, product
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from kvproof.suites.framework.component_suite import Arguments, ComponentSuite, Config, Draw
from kvproof.suites.framework.coverage import Coverage
from kvproof.suites.reference.http_server.properties import PROPERTIES

if TYPE_CHECKING:
    from kvproof.suites.reference.http_server.machine import HttpServerMachine

VERBS = (
    *["complete"] * 7,
    *["chat"] * 2,
    *["turn"] * 8,
    *["leave"] * 2,
    *["scrape"] * 2,
    *["fail"] * 1,
    *["wrong"] * 1,
    *["drain"] * 1,
)
MOST_PROMPT = 20
STOPS = ("e", "t", "et", "tt", "eat", "aet", "tea")
"""Letters of the first tokens, which answers consist of."""
CHATS = (["tea"], ["eat"], ["tea", "e", "eat"], ["tea", "e", "tea"])
TAILS = tuple(tail for length in range(5) for tail in product((1, 2, 3), repeat=length))
HOWS: dict[str, Sequence[Any]] = {
    "most": (1, 2, 4, 8, 12),
    "salt": (None, None, "a", "b"),
    "stops": ([], [], *([one] for one in STOPS), *map(list, combinations(STOPS, 2))),
    "stream": (False, True),
    "usage": (False, True),
    "token_ids": (False, True),
    "ignore_ends": (False, True),
    "logprobs": (None, None, 0, 2),
    "echo": (False, False, True),
    "n": (1, 1, 1, 1, 2, 3),
}
"""Request options."""
GROUPS = (("most", "salt"), ("stops",), ("stream", "usage", "token_ids"), ("ignore_ends",),
          ("logprobs", "echo", "n"))  # fmt: skip
VALUES = {names: [*product(*(HOWS[name] for name in names))] for names in GROUPS}
"""Some options are drawn together: one by one takes longer than the server."""
WRONG: dict[str, Sequence[Any]] = {
    "temperature": (0.5, -1, 2.5),
    "presence_penalty": (1, -2.5),
    "frequency_penalty": (-0.5, 2.5),
    "repetition_penalty": (2.0, 0),
    "logit_bias": ({"1": 5}, {"x": 0}),
    "top_k": (-2,),
    "top_p": (0, 1.5),
    "n": (0, -1),
    "max_tokens": (0, -1),
    "seed": (1 << 63,),
    "logprobs": (-1, 99),
    "stop": ([""], ["e"] * 99),
    "stop_token_ids": ([-1], [1 << 31]),
    "stream_options": ({"include_usage": True},),
}
"""Field -> values outside its documented range, or that a model with one next token cannot obey."""
WRONGS = [(name, at) for name, values in WRONG.items() for at in range(len(values))]


def missing() -> str:
    """Return the missing packages."""
    gone = [name for name in ("fastapi", "prometheus_client") if find_spec(name) is None]
    return f"needs {' and '.join(gone)}: pip install 'kvproof[serve]'" if gone else ""


def _one(draw: Draw, choices: Any) -> Any:
    return draw(st.sampled_from(choices))


def _int(draw: Draw, first: int, last: int) -> int:
    value: int = draw(st.integers(first, last))
    return value


def _config(draw: Draw, *, blocks: tuple[int, int], **more: Any) -> Config:
    return {
        "num_blocks": _int(draw, *blocks),
        "block_size": _one(draw, (2, 4)),
        "partial_blocks": draw(st.booleans()),
        "max_requests": _int(draw, 2, 4),
        "max_waiting": _int(draw, 0, 3),
        "max_batch_tokens": _one(draw, (5, 24, 200)),
        "steps_in_flight": _int(draw, 1, 2),
        "vocabulary": _int(draw, 3, 5),
    } | more


PROFILES: tuple[Callable[[Draw], Config], ...] = (
    partial(_config, blocks=(9, 16), block_size=2, vocabulary=9),
    partial(_config, blocks=(9, 11), block_size=2, vocabulary=9, max_requests=4, max_waiting=3),
    partial(_config, blocks=(600, 600)),
    partial(_config, blocks=(600, 600), max_waiting=12, max_batch_tokens=400),
)
"""Preemption and prompts that never fit, twice; room for all; many at once."""


def draw_config(draw: Draw) -> Config:
    profile: Callable[[Draw], Config] = _one(draw, PROFILES)
    return profile(draw)


def draw_operation(machine: HttpServerMachine, draw: Draw) -> tuple[str, Arguments]:
    verb = _one(draw, VERBS)
    if verb == "complete":
        prompts = [_prompt(machine, draw) for _ in range(_one(draw, (1, 1, 1, 2, 3, 4)))]
        return verb, {"prompts": prompts, "text": _one(draw, (False, True)), **_how(draw)}
    if verb == "chat":
        image = _one(draw, (None, 1, 2))
        return verb, {"words": _one(draw, CHATS), "image": image, **_how(draw), "echo": False}
    if verb == "turn":
        return verb, {"count": _int(draw, 1, 4)}
    if verb == "leave":
        return verb, {"index": _int(draw, 0, max(0, len(machine.open) - 1))}
    if verb == "wrong":
        name, at = _one(draw, WRONGS)
        return verb, {"field": name, "value": WRONG[name][at]}
    if verb == "fail":
        return verb, {"verb": _one(draw, ("launch", "finish"))}
    return verb, {}


def _prompt(machine: HttpServerMachine, draw: Draw) -> list[int]:
    head = list(_one(draw, tuple(machine.known[-6:]))) if machine.known else []
    if not _int(draw, 0, 2):
        head = head[: _int(draw, 0, len(head))]
    tail = _one(draw, TAILS)
    if not _int(draw, 0, 15):
        tail *= 30
    # an end token is no text
    return [token or 1 for token in [*head[:MOST_PROMPT], *tail]] or [1]


def _how(draw: Draw) -> Arguments:
    how: Arguments = {}
    for names in GROUPS:
        values = _one(draw, VALUES[names])
        how |= zip(names, values, strict=True)
    return how


def _open(config: Config, coverage: Coverage) -> HttpServerMachine:
    from kvproof.suites.reference.http_server.machine import (
        HttpServerMachine,
    )  # FastAPI is optional

    return HttpServerMachine(config, coverage)


SUITE = ComponentSuite(
    "http", PROPERTIES, draw_config, _open, draw_operation, profiles=PROFILES, missing=missing
)
