"""Suite `system`: draws tiny engines of any kind, and streams of requests that begin alike."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import lcm
from typing import Any, TypeAlias

from hypothesis import strategies as st

from kvproof.suites.framework.component_suite import Arguments, ComponentSuite, Config, Draw
from kvproof.suites.reference.engine.machine import MOST_UNITS, EngineMachine
from kvproof.suites.reference.engine.properties import PROPERTIES

BLOCK_SIZES = ((1,), (2,), (4,), (2, 4), (1, 2, 4), (3,), (2, 3, 6))
MOST_GROUPS = 4
WORD_BYTES = 8
"""Bytes of a token in a block of the symbolic model."""
HEADERS = 64 * 300
"""Bytes of the headers of some hundred files."""
MOST_REQUESTS = 6
"""Most unanswered requests."""

Deal: TypeAlias = Callable[[Draw, tuple[int, ...]], list[Config]]
"""Draws groups with some of the block sizes."""
Room: TypeAlias = Callable[[Draw, int, int], Config]
"""Takes the blocks of a state and of a unit; returns changes of a configuration."""


def _int(draw: Draw, first: int, last: int) -> int:
    value: int = draw(st.integers(first, last))
    return value


def _one(draw: Draw, choices: Any) -> Any:
    return draw(st.sampled_from(choices))


def _rarely(draw: Draw, times: int) -> bool:
    return _int(draw, 0, times - 1) == times - 1


def _group(draw: Draw, sizes: tuple[int, ...]) -> Config:
    kind = _one(draw, ("full", "full", "window", "chunk", "state"))
    size = _one(draw, sizes)
    group: Config = {"kind": kind, "block_size": size}
    if kind in ("window", "chunk"):
        group["size"] = _int(draw, 1, 3 * max(sizes))
    if kind == "state":
        group["state_blocks"] = _int(draw, 1, 2)
    else:
        ratios = [ratio for ratio in (1, 2, 4) if size % ratio == 0]
        group["kernel_block_size"] = size // _one(draw, ratios)
        group["draft"] = _rarely(draw, 5)
    return group


def draw_config(draw: Draw) -> Config:
    """Draw an engine whose pool is too small for its requests."""
    profile: Callable[[Draw], Config] = _one(draw, PROFILES)
    return profile(draw)


def _config(
    draw: Draw,
    deal: Deal,
    *,
    media: bool = False,
    experts: bool = False,
    drafts: bool = False,
    room: Room | None = None,
) -> Config:
    """Draw an engine with groups of `deal`; given options stand, others are rare."""
    sizes = _one(draw, BLOCK_SIZES)
    groups = deal(draw, sizes)
    unit = lcm(*(group["block_size"] for group in groups))
    width = sum(unit // group["block_size"] for group in groups if group["kind"] != "state")
    states = sum(group.get("state_blocks", 0) for group in groups if group["kind"] == "state")
    routed = experts or _rarely(draw, 5)
    strict = routed and draw(st.booleans())
    plain = not strict and all(g["kind"] == "full" and not g.get("draft") for g in groups)
    config: Config = {
        "groups": groups,
        "partial_blocks": plain and not _rarely(draw, 4),
        "num_blocks": 1 + states * _one(draw, (1, 1, 2, 4)) + max(1, width) * _units(draw),
        "prefix_caching": not _rarely(draw, 16),
        "state_pool": _one(draw, ("shared", "separate")),
        "max_requests": _int(draw, 1, 5),
        "state_budget": _int(draw, 0, 3) if draw(st.booleans()) else 0,
        "decode_interval": unit * _int(draw, 0, 2),
        "max_batch_tokens": _int(draw, 1, 4) if _rarely(draw, 3) else _int(draw, 7, 30),
        "steps_in_flight": _int(draw, 1, 3),
        "num_drafts": _int(draw, 1, 3) if drafts or _rarely(draw, 3) else 0,
        "vocabulary": _int(draw, 2, 3),
        "media": media or _rarely(draw, 5),
        "experts": routed,
        "require_experts": strict,
        "twin": _rarely(draw, 3),
        "tiers": _tiers(draw, unit, states + width) if draw(st.booleans()) else None,
    }
    config |= room(draw, states, width) if room else {}
    return config if config["prefix_caching"] else config | {"tiers": None}


def _tiers(draw: Draw, unit: int, blocks: int) -> Config:
    size = WORD_BYTES * unit * blocks
    return {
        "host": size * 40 if _rarely(draw, 3) else size * _int(draw, 1, 4),
        "disk": 0 if _rarely(draw, 5) else 100 * size + HEADERS,
        "patience": _int(draw, 1, 4),
    }


def _tight(draw: Draw, states: int, width: int) -> Config:
    """No block remains next to the longest prompt: its own hit takes its room (C2)."""
    return {
        "prefix_caching": True,
        "state_pool": "shared",
        "num_blocks": 1 + states + max(1, width) * _int(draw, 4, 5),
        "max_batch_tokens": 30,
        "media": False,
    }


def _roomy(_: Draw, states: int, width: int) -> Config:
    """Checkpoints stay until another request hits them."""
    return {
        "prefix_caching": True,
        "num_blocks": 1 + 8 * states + 12 * max(1, width),
        "state_budget": 8,
        "max_batch_tokens": 30,
    }


def _spanned(draw: Draw, _: int, width: int) -> Config:
    """A step has fewer tokens than a span, and little room is left for repeated prompts."""
    return {
        "prefix_caching": True,
        "num_blocks": 1 + max(1, width) * _int(draw, 4, 6),
        "max_requests": _int(draw, 2, 4),
        "max_batch_tokens": _int(draw, 2, 6),
        "media": True,
        "tiers": {"host": WORD_BYTES * width * 400, "disk": 0, "patience": _int(draw, 1, 4)},
    }


def _narrow(draw: Draw, states: int, width: int) -> Config:
    """Windows and chunks fit at the last token, perhaps not with a span or before a border (B8)."""
    blocks = 1 + states + max(1, width) * _int(draw, 3, 5)
    return {"num_blocks": blocks, "media": draw(st.booleans())}


def _crowded(draw: Draw, states: int, width: int) -> Config:
    """More requests run than a step has tokens, and moved requests find no room."""
    return {
        "num_blocks": 1 + 2 * states + max(1, width) * _int(draw, 4, 6),
        "max_requests": _int(draw, 3, 5),
        "max_batch_tokens": _int(draw, 1, 4),
        "media": False,
    }


def _units(draw: Draw) -> int:
    return _int(draw, 3, 5) if draw(st.booleans()) else _int(draw, 6, 12)


def _plain(_: Draw, sizes: tuple[int, ...]) -> list[Config]:
    return [{"kind": "full", "block_size": sizes[-1]}]


def _recurrent(draw: Draw, sizes: tuple[int, ...]) -> list[Config]:
    state = {"kind": "state", "block_size": sizes[0], "state_blocks": _int(draw, 1, 2)}
    return [state, *[_group(draw, sizes) for _ in range(_int(draw, 0, 1))]]


def _beside_full(draw: Draw, sizes: tuple[int, ...]) -> list[Config]:
    state = {"kind": "state", "block_size": sizes[0], "state_blocks": _int(draw, 1, 2)}
    return [state, *_plain(draw, sizes)]


def _local(draw: Draw, sizes: tuple[int, ...]) -> list[Config]:
    size, kind = _one(draw, sizes), _one(draw, ("window", "chunk", "chunk"))
    return [{"kind": kind, "block_size": size, "size": size * _int(draw, 1, 5)}]


def _any(draw: Draw, sizes: tuple[int, ...]) -> list[Config]:
    return [_group(draw, sizes) for _ in range(_int(draw, 1, MOST_GROUPS))]


PROFILES: tuple[Callable[[Draw], Config], ...] = (
    partial(_config, deal=_plain),
    partial(_config, deal=_plain, experts=True),
    partial(_config, deal=_any, media=True),
    partial(_config, deal=_any, experts=True),
    partial(_config, deal=_any, drafts=True),
    partial(_config, deal=_recurrent),
    partial(_config, deal=_recurrent, drafts=True),
    partial(_config, deal=_recurrent, room=_roomy),
    partial(_config, deal=_beside_full, room=_tight),
    partial(_config, deal=_any, room=_crowded),
    partial(_config, deal=_plain, room=_spanned),
    partial(_config, deal=_local, room=_narrow),
)
"""Each has something that the others rarely have."""


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
    verb = _one(draw, VERBS)
    names = sorted(machine.tracked)
    if verb == "step" or (verb == "add" and len(names) >= MOST_REQUESTS):
        return "step", {"count": _int(draw, 1, 8)}
    if verb == "drain":
        return "drain", {"forget": _rarely(draw, 4)}
    if machine.config.get("tiers") and _rarely(draw, 6):
        return _below(draw)
    if machine.config["experts"] and machine.runs_on_a_hit() and draw(st.booleans()):
        return "reset", {}  # takes the rows of the hit
    if machine.moves_within_weights() and _rarely(draw, 4):
        return "reset", {}  # a moved request comes back over it
    if machine.outside and machine.engine.scheduler.queue.head() and draw(st.booleans()):
        return "bring", {"name": _one(draw, sorted(machine.outside))}  # while others wait for room
    if verb == "rare":
        return _rare(machine, draw)
    if verb == "move" and machine.outside and draw(st.booleans()):
        return "bring", {"name": _one(draw, sorted(machine.outside))}
    preempted = machine.preempted()
    if verb in ("cancel", "preempt") and preempted:
        return "cancel", {"name": _one(draw, preempted)}
    running = sorted(machine.engine.scheduler.running)
    if verb == "move" and running:
        return "take", {"name": _one(draw, running)}
    if not names and machine.recurrent and machine.most_tokens < MOST_UNITS * machine.unit:
        return "add", _squeezed(machine, draw)
    if not names and machine.recurrent and machine.config["decode_interval"]:
        return "add", _going_on(machine, draw)
    if verb == "add" and names and machine.recurrent and _rarely(draw, 3):
        return "drain", {"forget": False}
    if not names and machine.prompts and draw(st.booleans()):
        return "add", _again(machine, draw)
    if verb == "add" and machine.config.get("tiers") and machine.prompts and draw(st.booleans()):
        spans = machine.config["media"] and not _rarely(draw, 3)
        return "add", (_before_a_span if spans else _again)(machine, draw)
    local = all(group["kind"] in ("window", "chunk") for group in machine.config["groups"])
    if local and _rarely(draw, 3):
        return "add", _wide(machine, draw)
    if verb == "add" or not names:
        return "add", _prompt(machine, draw)
    return {"move": "take"}.get(verb, verb), {"name": _one(draw, names)}


def _rare(machine: EngineMachine, draw: Draw) -> tuple[str, Arguments]:
    verb = _one(draw, ("evict", "evict", "reset", "pin"))
    if verb == "evict":
        return verb, {"count": _int(draw, 1, 40 if machine.config.get("tiers") else 4)}
    if verb == "reset":
        return verb, {}
    if machine.pins:
        return "unpin", {"name": min(machine.pins)}
    return "pin", {"name": "pin", "tokens": _tokens(machine, draw)[0]}


def _below(draw: Draw) -> tuple[str, Arguments]:
    if draw(st.booleans()):
        return "evict", {"count": 100}
    return "trouble", {
        "late": _one(draw, (0, 0, 1, 2, 8)),
        "lose": _one(draw, ("", "", "first", "last", "all")),
        "spoil": draw(st.booleans()),
    }


def _prompt(machine: EngineMachine, draw: Draw) -> Arguments:
    tokens, spans = _tokens(machine, draw)
    prompt: Arguments = {"name": f"r{machine.named}", "tokens": tokens, "new": _new(draw)}
    if machine.config["media"]:
        spans = _spans(draw, len(tokens)) if _rarely(draw, 3) or not spans else spans
        prompt["spans"] = spans
    if _rarely(draw, 8):
        prompt["salt"] = "x"
    if _rarely(draw, 12):
        prompt[_one(draw, ("read", "store"))] = False
    return prompt


def _before_a_span(machine: EngineMachine, draw: Draw) -> Arguments:
    """An earlier prompt, then a span: the hit ends where a step takes a span whole (M3)."""
    head, spans = machine.prompts[-_int(draw, 1, min(3, len(machine.prompts)))]
    head = head[: machine.unit * _int(draw, 1, 2)]
    start = len(head) + _int(draw, 0, 1)
    length = machine.most_tokens - start
    if length < 2:
        return _again(machine, draw)
    kept = [list(span) for span in spans if span.start + span.length <= len(head)]
    span = ["image", start, _int(draw, 2, length), _one(draw, "ab")]
    tokens = [*head, *[0] * (start + span[2] - len(head))]
    new = 1 + machine.most_tokens - len(tokens)
    return {
        "name": f"r{machine.named}",
        "tokens": tokens,
        "new": _int(draw, 1, new),
        "spans": [*kept, span],
    }


def _wide(machine: EngineMachine, draw: Draw) -> Arguments:
    """The longest prompt, or nearly: it may need most blocks for a span or before a border (B8)."""
    start = _int(draw, 0, 2)
    length = max(1, machine.most_tokens - start - _int(draw, 0, 2))
    spans = [["image", start, length, _one(draw, "ab")]] if machine.config["media"] else []
    tokens = [0] * (start + length + 1)
    return {"name": f"r{machine.named}", "tokens": tokens, "new": 1, "spans": spans}


def _again(machine: EngineMachine, draw: Draw) -> Arguments:
    """Repeat a request that may be cached whole, with no other request there."""
    tokens, spans = machine.prompts[-_int(draw, 1, min(3, len(machine.prompts)))]
    kept = [list(span) for span in spans if span.start + span.length <= machine.most_tokens]
    tokens = tokens[: machine.most_tokens]
    return {"name": f"r{machine.named}", "tokens": list(tokens), "new": 1, "spans": kept}


def _squeezed(machine: EngineMachine, draw: Draw) -> Arguments:
    """A short prompt, then the longest one that still fits, without room for its hit."""
    most, last = machine.most_tokens, machine.prompts[-1][0] if machine.prompts else ()
    if 0 < len(last) < most - machine.unit:
        tokens = [*last, *[0] * (most - len(last))]
    else:
        units = _int(draw, 1, max(1, most // machine.unit - 3))
        tokens = [_int(draw, 0, machine.config["vocabulary"] - 1)] * (units * machine.unit + 1)
    return {"name": f"r{machine.named}", "tokens": tokens, "new": 1}


def _going_on(machine: EngineMachine, draw: Draw) -> Arguments:
    """A short prompt with a long answer, then a prompt that continues the answer."""
    last = machine.prompts[-1][0] if machine.prompts else ()
    if 0 < len(last) < machine.most_tokens:
        return {"name": f"r{machine.named}", "tokens": [*last, 0], "new": 1}
    first = [_int(draw, 0, machine.config["vocabulary"] - 1)] * (machine.unit + 1)
    new = min(2 * machine.config["decode_interval"], machine.most_tokens - len(first) - 1)
    return {"name": f"r{machine.named}", "tokens": first, "new": max(1, new)}


def _new(draw: Draw) -> int:
    return _int(draw, 1, 3) if draw(st.booleans()) else _int(draw, 1, 12)


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
    tail = [last - old[middle], *(_int(draw, 0, last) for _ in range(2))]
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
    if machine.prompts and not _rarely(draw, 6):
        recent = machine.prompts[-6:]
        head, spans = recent[_int(draw, 0, len(recent) - 1)]
        if _rarely(draw, 3):
            head = head[: _int(draw, 0, len(head))]
    again = bool(head) and _rarely(draw, 4)
    length = 0 if again else unit * _int(draw, 0, 2) + _int(draw, 0, unit)
    tail = [_int(draw, 0, machine.config["vocabulary"] - 1) for _ in range(min(length, 5))]
    repeated = [tail[i % len(tail)] for i in range(length)]
    tokens = [*head, *repeated][: machine.most_tokens] or [0]
    return tokens, [list(span) for span in spans if span.start + span.length <= len(tokens)]


def _spans(draw: Draw, count: int) -> list[list[Any]]:
    spans, position = [], 0
    for _ in range(_int(draw, 1, 2)):
        start = position + _int(draw, 0, 4)
        length = _int(draw, 1, 9)
        if start + length <= count:
            spans.append([_one(draw, ("image", "video")), start, length, _one(draw, "ab")])
            position = start + length
    return spans


SUITE = ComponentSuite("system", PROPERTIES, draw_config, EngineMachine, draw_operation, PROFILES)
