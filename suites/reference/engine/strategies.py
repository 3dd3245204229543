"""Suite `system`: draws streams of requests that begin alike, for engines of any kind."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from kvproof.suites.framework.component_suite import Arguments, ComponentSuite, Draw
from kvproof.suites.framework.pairs import Space
from kvproof.suites.reference.engine.configurations import (
    DRAWN,
    draw_config,
    integer,
    one,
    rarely,
)
from kvproof.suites.reference.engine.machine import MOST_UNITS, EngineMachine
from kvproof.suites.reference.engine.properties import PROPERTIES
from kvproof.suites.reference.engine.table import FACTORS

MOST_REQUESTS = 6
"""Most unanswered requests."""

VERBS = (
    *["add"] * 6,
    *["step"] * 8,
    *["cancel"] * 2,
    *["preempt"] * 2,
    *["move"] * 4,
    *["rare"] * 2,
    *["drain"] * 1,
)


def draw_operation(machine: EngineMachine, draw: Draw) -> tuple[str, Arguments]:
    """Draw the next operation."""
    verb = one(draw, VERBS)
    names = sorted(machine.tracked)
    if verb == "step" or (verb == "add" and len(names) >= MOST_REQUESTS):
        return "step", {"count": integer(draw, 1, 8)}
    if verb == "drain":
        return "drain", {"forget": rarely(draw, 4)}
    if machine.config.get("tiers") and rarely(draw, 6):
        return _below(draw)
    if machine.engine.scheduler.running and rarely(draw, 20):
        return "sleep", {"steps": integer(draw, 1, 2), "keep": not rarely(draw, 3)}
    if machine.config["experts"] and machine.runs_on_a_hit() and draw(st.booleans()):
        return "reset", {}  # takes the rows of the hit
    if machine.moves_within_weights() and rarely(draw, 4):
        return "reset", {}  # a moved request comes back over it
    if machine.outside and machine.engine.scheduler.queue.head() and draw(st.booleans()):
        return "bring", {"name": one(draw, sorted(machine.outside))}  # while others wait for room
    if verb == "rare":
        return _rare(machine, draw)
    if verb == "move" and machine.outside and draw(st.booleans()):
        return "bring", {"name": one(draw, sorted(machine.outside))}
    preempted = machine.preempted()
    if verb in ("cancel", "preempt") and preempted:
        return "cancel", {"name": one(draw, preempted)}
    running = sorted(machine.engine.scheduler.running)
    if verb == "move" and running:
        return "take", {"name": one(draw, running)}
    if not names and machine.recurrent and machine.most_tokens < MOST_UNITS * machine.unit:
        return "add", _squeezed(machine, draw)
    if not names and machine.recurrent and machine.config["decode_interval"]:
        return "add", _going_on(machine, draw)
    if verb == "add" and names and machine.recurrent and rarely(draw, 3):
        return "drain", {"forget": False}
    if not names and machine.prompts and draw(st.booleans()):
        return "add", _again(machine, draw)
    if verb == "add" and machine.config.get("tiers") and machine.prompts and draw(st.booleans()):
        spans = machine.config["media"] and not rarely(draw, 3)
        return "add", (_before_a_span if spans else _again)(machine, draw)
    local = all(group["kind"] in ("window", "chunk") for group in machine.config["groups"])
    if local and rarely(draw, 3):
        return "add", _wide(machine, draw)
    if verb == "add" or not names:
        return "add", _prompt(machine, draw)
    return {"move": "take"}.get(verb, verb), {"name": one(draw, names)}


def _rare(machine: EngineMachine, draw: Draw) -> tuple[str, Arguments]:
    verb = one(draw, ("evict", "evict", "reset", "pin"))
    if verb == "evict":
        return verb, {"count": integer(draw, 1, 40 if machine.config.get("tiers") else 4)}
    if verb == "reset":
        return verb, {}
    if machine.pins:
        return "unpin", {"name": min(machine.pins)}
    return "pin", {"name": "pin", "tokens": _tokens(machine, draw)[0]}


def _below(draw: Draw) -> tuple[str, Arguments]:
    if draw(st.booleans()):
        return "evict", {"count": 100}
    return "trouble", {
        "late": one(draw, (0, 0, 1, 2, 8)),
        "lose": one(draw, ("", "", "first", "last", "all")),
        "spoil": draw(st.booleans()),
    }


def _prompt(machine: EngineMachine, draw: Draw) -> Arguments:
    tokens, spans = _tokens(machine, draw)
    prompt: Arguments = {"name": f"r{machine.named}", "tokens": tokens, "new": _new(draw)}
    if machine.config["media"]:
        spans = _spans(draw, len(tokens)) if rarely(draw, 3) or not spans else spans
        prompt["spans"] = spans
    if rarely(draw, 8):
        prompt["salt"] = "x"
    if rarely(draw, 12):
        prompt[one(draw, ("read", "store"))] = False
    return prompt


def _before_a_span(machine: EngineMachine, draw: Draw) -> Arguments:
    """An earlier prompt, then a span: the hit ends where a step takes a span whole (M3)."""
    head, spans = machine.prompts[-integer(draw, 1, min(3, len(machine.prompts)))]
    head = head[: machine.unit * integer(draw, 1, 2)]
    start = len(head) + integer(draw, 0, 1)
    length = machine.most_tokens - start
    if length < 2:
        return _again(machine, draw)
    kept = [list(span) for span in spans if span.start + span.length <= len(head)]
    span = ["image", start, integer(draw, 2, length), one(draw, "ab")]
    tokens = [*head, *[0] * (start + span[2] - len(head))]
    new = 1 + machine.most_tokens - len(tokens)
    return {
        "name": f"r{machine.named}",
        "tokens": tokens,
        "new": integer(draw, 1, new),
        "spans": [*kept, span],
    }


def _wide(machine: EngineMachine, draw: Draw) -> Arguments:
    """The longest prompt, or nearly: it may need most blocks for a span or before a border (B8)."""
    start = integer(draw, 0, 2)
    length = max(1, machine.most_tokens - start - integer(draw, 0, 2))
    spans = [["image", start, length, one(draw, "ab")]] if machine.config["media"] else []
    tokens = [0] * (start + length + 1)
    return {"name": f"r{machine.named}", "tokens": tokens, "new": 1, "spans": spans}


def _again(machine: EngineMachine, draw: Draw) -> Arguments:
    """Repeat a request that may be cached whole, with no other request there."""
    tokens, spans = machine.prompts[-integer(draw, 1, min(3, len(machine.prompts)))]
    kept = [list(span) for span in spans if span.start + span.length <= machine.most_tokens]
    tokens = tokens[: machine.most_tokens]
    return {"name": f"r{machine.named}", "tokens": list(tokens), "new": 1, "spans": kept}


def _squeezed(machine: EngineMachine, draw: Draw) -> Arguments:
    """A short prompt, then the longest one that still fits, without room for its hit."""
    most, last = machine.most_tokens, machine.prompts[-1][0] if machine.prompts else ()
    if 0 < len(last) < most - machine.unit:
        tokens = [*last, *[0] * (most - len(last))]
    else:
        units = integer(draw, 1, max(1, most // machine.unit - 3))
        tokens = [integer(draw, 0, machine.config["vocabulary"] - 1)] * (units * machine.unit + 1)
    return {"name": f"r{machine.named}", "tokens": tokens, "new": 1}


def _going_on(machine: EngineMachine, draw: Draw) -> Arguments:
    """A short prompt with a long answer, then a prompt that continues the answer."""
    last = machine.prompts[-1][0] if machine.prompts else ()
    if 0 < len(last) < machine.most_tokens:
        return {"name": f"r{machine.named}", "tokens": [*last, 0], "new": 1}
    first = [integer(draw, 0, machine.config["vocabulary"] - 1)] * (machine.unit + 1)
    new = min(2 * machine.config["decode_interval"], machine.most_tokens - len(first) - 1)
    return {"name": f"r{machine.named}", "tokens": first, "new": max(1, new)}


def _new(draw: Draw) -> int:
    return integer(draw, 1, 3) if draw(st.booleans()) else integer(draw, 1, 12)


def _leaving(machine: EngineMachine, draw: Draw) -> tuple[list[int], list[list[Any]]]:
    """A prompt that leaves a long one in the middle, where others have left it before (S8)."""
    middle = machine.most_tokens // machine.unit // 2 * machine.unit
    old, spans = next(
        (
            (old, spans)
            for old, spans in machine.prompts[-1:-6:-1]
            if len(old) > middle + machine.unit
        ),
        ((0,) * machine.most_tokens, ()),
    )
    last = machine.config["vocabulary"] - 1
    tail = [last - old[middle], *(integer(draw, 0, last) for _ in range(2))]
    repeated = [tail[i % len(tail)] for i in range(machine.most_tokens - middle)]
    kept = [list(span) for span in spans if span.start + span.length <= middle]
    return [*old[:middle], *repeated], kept


def _tokens(machine: EngineMachine, draw: Draw) -> tuple[list[int], list[list[Any]]]:
    """A fresh prompt, or one that continues an earlier one or its answer, with its spans."""
    if machine.recurrent and draw(st.booleans()):
        return _leaving(machine, draw)
    unit = machine.unit
    head: tuple[int, ...] = ()
    spans: tuple[Any, ...] = ()
    if machine.prompts and not rarely(draw, 6):
        recent = machine.prompts[-6:]
        head, spans = recent[integer(draw, 0, len(recent) - 1)]
        if rarely(draw, 3):
            head = head[: integer(draw, 0, len(head))]
    again = bool(head) and rarely(draw, 4)
    length = 0 if again else unit * integer(draw, 0, 2) + integer(draw, 0, unit)
    tail = [integer(draw, 0, machine.config["vocabulary"] - 1) for _ in range(min(length, 5))]
    repeated = [tail[i % len(tail)] for i in range(length)]
    tokens = [*head, *repeated][: machine.most_tokens] or [0]
    return tokens, [list(span) for span in spans if span.start + span.length <= len(tokens)]


def _spans(draw: Draw, count: int) -> list[list[Any]]:
    spans, position = [], 0
    for _ in range(integer(draw, 1, 2)):
        start = position + integer(draw, 0, 4)
        length = integer(draw, 1, 9)
        if start + length <= count:
            spans.append([one(draw, ("image", "video")), start, length, one(draw, "ab")])
            position = start + length
    return spans


SUITE = ComponentSuite(
    "system",
    PROPERTIES,
    draw_config,
    EngineMachine,
    draw_operation,
    profiles=DRAWN,
    space=Space(FACTORS, {}),
)
