"""Suite `keys`: requests that begin alike and differ in one thing."""

from __future__ import annotations

from hypothesis import strategies as st

from kvproof.suites.framework.component_suite import Arguments, ComponentSuite, Config, Draw
from kvproof.suites.reference.object_keys.machine import ObjectKeysMachine
from kvproof.suites.reference.object_keys.properties import PROPERTIES

ALGORITHMS = ("sha256", "blake2b", "sha3_256")
NAMESPACES: tuple[tuple[str | None, str | None, str | None], ...] = (
    (None, None, None),
    ("x", "1", None),
    ("x1", None, None),
    ("x", None, "1"),
    ("x", None, None),
    (None, None, "x"),
    ("", None, None),
)
CONTENTS = ("0" * 64, "1" + "0" * 63, "0" * 32 + "1" + "0" * 31, "0" * 63 + "1")
"""A key with only a part of a hash takes some of them for equal."""
MOST_KNOWN = 8


def _draw_config(draw: Draw) -> Config:
    return {"algorithm": draw(st.sampled_from(ALGORITHMS)), "block_size": draw(st.integers(1, 4))}


def _draw_tokens(machine: ObjectKeysMachine, draw: Draw) -> list[int]:
    tokens: list[int] = draw(st.lists(st.integers(0, 1), max_size=3 * machine.block_size))
    return tokens


def _draw_spans(draw: Draw, count: int) -> list[list[object]]:
    spans, position = [], 0
    for _ in range(draw(st.integers(0, 2))):
        start, length = position + draw(st.integers(0, 2)), draw(st.integers(1, 5))
        if start + length <= count:
            kind = draw(st.sampled_from(("image", "audio")))
            spans.append([kind, start, length, draw(st.sampled_from(CONTENTS))])
            position = start + length
    return spans


_CHANGES = ("nothing", "namespace", "namespace", "group", "epoch", "place", "place", "content")
_TO: dict[str, st.SearchStrategy[object]] = {
    "nothing": st.none(),
    "namespace": st.sampled_from(NAMESPACES).map(list),
    "group": st.integers(0, 2),
    "epoch": st.integers(0, 2),
    "place": st.integers(1, 2),
    "content": st.sampled_from(CONTENTS),
}


def _propose(machine: ObjectKeysMachine, draw: Draw) -> tuple[str, Arguments]:
    verb = draw(st.sampled_from(_VERBS))
    if verb == "begin" or not machine.known:
        tokens = _draw_tokens(machine, draw)
        space = list(draw(st.sampled_from(NAMESPACES)))
        return "begin", {
            "namespace": space,
            "tokens": tokens,
            "spans": _draw_spans(draw, len(tokens)),
        }
    arguments: Arguments = {"of": draw(st.integers(0, min(len(machine.known), MOST_KNOWN) - 1))}
    if verb == "vary":
        change = draw(st.sampled_from(_CHANGES))
        arguments |= {"change": change, "to": draw(_TO[change])}
    elif verb == "append":
        arguments["tokens"] = _draw_tokens(machine, draw)
    elif verb == "cut":
        arguments["count"] = draw(st.integers(1, 2 * machine.block_size))
    return verb, arguments


_VERBS = ("begin", "vary", "vary", "vary", "append", "append", "cut", "cut", "ask")

SUITE = ComponentSuite("keys", PROPERTIES, _draw_config, ObjectKeysMachine, _propose)
