"""Suite `system`: draws tiny engines of any kind, and streams of requests that begin alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import lcm
from typing import Any, TypeAlias

from hypothesis import strategies as st

from kvproof.suites.framework.component_suite import (
    Arguments,
    ComponentSuite,
    Config,
    DealtConfig,
    Draw,
)
from kvproof.suites.framework.dealt import DealtRows
from kvproof.suites.framework.pairs import Space
from kvproof.suites.framework.rows import Given
from kvproof.suites.reference.engine.machine import MOST_UNITS, EngineMachine
from kvproof.suites.reference.engine.properties import PROPERTIES
from kvproof.suites.reference.engine.table import FACTORS, NONE, ON, ROOMS

BLOCK_SIZES = ((1,), (2,), (4,), (2, 4), (1, 2, 4), (3,), (2, 3, 6))
RANK_SIZES = ((4,), (6,), (8,), (4, 8))
"""Block sizes of which several context ranks have a part."""
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
        kernel = group["kernel_block_size"] = size // _one(draw, _divisors(size))
        group["draft"] = _rarely(draw, 5)
        group["ratio"] = _one(draw, (1, 1, *_divisors(kernel)))
    return group


def _divisors(size: int) -> list[int]:
    return [each for each in (1, 2, 3, 4) if size % each == 0]


def draw_config(draw: Draw) -> DealtConfig:
    """Draw an engine whose pool is too small for its requests."""
    return _config(_one(draw, tuple(PROFILES)), draw)


def _config(profile: str, draw: Draw) -> DealtConfig:
    """Draw an engine with the levels of a row."""
    row = ROWS.draw(profile, draw)
    sizes = _one(draw, RANK_SIZES if row["ranks"] == ON else BLOCK_SIZES)
    whole = row["partial"] == ON
    groups = (_full if whole else _DEALS[row["groups"]])(draw, sizes)
    unit = lcm(*(group["block_size"] for group in groups))
    width = sum(unit // group["block_size"] for group in groups if group["kind"] != "state")
    states = sum(group.get("state_blocks", 0) for group in groups if group["kind"] == "state")
    config: Config = {
        "groups": groups,
        "partial_blocks": whole,
        "num_blocks": 1 + states * _one(draw, (1, 1, 2, 4)) + max(1, width) * _units(draw),
        "prefix_caching": row["caching"] == ON,
        "state_pool": row["state pool"],
        "max_requests": _int(draw, 1, 5),
        "state_budget": _int(draw, 1, 3) if row["state budget"] == "some" else 0,
        "decode_interval": unit * {NONE: 0, "a unit": 1, "two units": 2}[row["decode interval"]],
        "max_batch_tokens": _int(draw, *((1, 4) if row["step"] == "few tokens" else (7, 30))),
        "steps_in_flight": int(row["in flight"]),
        "num_drafts": _int(draw, 1, 3) if row["drafts"] == ON else 0,
        "vocabulary": _int(draw, 2, 3),
        "media": row["media"] == ON,
        "experts": row["experts"] != NONE,
        "require_experts": row["experts"] == "required",
        "twin": row["twin"] == ON,
        "tiers": _tiers(draw, row["tiers"], unit, states + width),
        "ranks": _ranks(draw, groups) if row["ranks"] == ON else (1, 1),
    }
    room = _ROOMS.get(row["room"])
    return DealtConfig({**config, **(room(draw, states, width) if room else {})}, row)


def _ranks(draw: Draw, groups: list[Config]) -> tuple[int, int]:
    """Context ranks, and the tokens in a turn of each: every page has a part for each (Q4)."""
    pages = [_page(group) for group in groups if group["kind"] != "state"]
    entry = lcm(*(group.get("ratio", 1) for group in groups))
    turns = [
        (count, entry * more)
        for count in (2, 3, 4)
        for more in (1, 2)
        if all(page % (count * entry * more) == 0 for page in pages)
    ]
    chosen: tuple[int, int] = _one(draw, turns) if turns else (1, 1)
    return chosen


def _page(group: Config) -> int:
    tokens: int = group.get("kernel_block_size") or group["block_size"]
    return tokens


def _tiers(draw: Draw, level: str, unit: int, blocks: int) -> Config | None:
    if level == NONE:
        return None
    size = WORD_BYTES * unit * blocks
    return {
        "host": size * 40 if _rarely(draw, 3) else size * _int(draw, 1, 4),
        "disk": 0 if level == "host" else 100 * size + HEADERS,
        "patience": _int(draw, 1, 4),
    }


def _tight(draw: Draw, states: int, width: int) -> Config:
    """No block remains next to the longest prompt: its own hit takes its room (C2)."""
    blocks = 1 + states + max(1, width) * _int(draw, 4, 5)
    return {"num_blocks": blocks, "max_batch_tokens": 30}


def _roomy(_: Draw, states: int, width: int) -> Config:
    """Checkpoints stay until another request hits them."""
    return {
        "num_blocks": 1 + 8 * states + 12 * max(1, width),
        "state_budget": 8,
        "max_batch_tokens": 30,
    }


def _spanned(draw: Draw, _: int, width: int) -> Config:
    """A step has fewer tokens than a span, and little room is left for repeated prompts."""
    return {
        "num_blocks": 1 + max(1, width) * _int(draw, 4, 6),
        "max_requests": _int(draw, 2, 4),
        "max_batch_tokens": _int(draw, 2, 6),
        "tiers": {"host": WORD_BYTES * width * 400, "disk": 0, "patience": _int(draw, 1, 4)},
    }


def _narrow(draw: Draw, states: int, width: int) -> Config:
    """Windows and chunks fit at the last token, perhaps not with a span or before a border (B8)."""
    return {"num_blocks": 1 + states + max(1, width) * _int(draw, 3, 5)}


def _crowded(draw: Draw, states: int, width: int) -> Config:
    """More requests run than a step has tokens, and moved requests find no room."""
    return {
        "num_blocks": 1 + 2 * states + max(1, width) * _int(draw, 4, 6),
        "max_requests": _int(draw, 3, 5),
    }


def _units(draw: Draw) -> int:
    return _int(draw, 3, 5) if draw(st.booleans()) else _int(draw, 6, 12)


def _plain(_: Draw, sizes: tuple[int, ...]) -> list[Config]:
    return [{"kind": "full", "block_size": sizes[-1]}]


def _full(draw: Draw, sizes: tuple[int, ...]) -> list[Config]:
    groups = [_group(draw, sizes) for _ in range(_int(draw, 1, 2))]
    return [
        {"kind": "full", "block_size": each["block_size"], "ratio": each.get("ratio", 1)}
        for each in groups
    ]


def _recurrent(draw: Draw, sizes: tuple[int, ...]) -> list[Config]:
    state = {"kind": "state", "block_size": sizes[0], "state_blocks": _int(draw, 1, 2)}
    return [state, *[_group(draw, sizes) for _ in range(_int(draw, 0, 1))]]


def _beside_full(draw: Draw, sizes: tuple[int, ...]) -> list[Config]:
    state = {"kind": "state", "block_size": sizes[0], "state_blocks": _int(draw, 1, 2)}
    return [state, *_plain(draw, sizes)]


def _local(draw: Draw, sizes: tuple[int, ...]) -> list[Config]:
    size, kind = _one(draw, sizes), _one(draw, ("window", "chunk", "chunk"))
    return [{"kind": kind, "block_size": size, "size": size * _int(draw, 1, 5)}]


def _sidecar(draw: Draw, sizes: tuple[int, ...]) -> list[Config]:
    """Groups whose last one belongs to the blocks of another (Q2)."""
    groups = [_one(draw, (_plain, _local))(draw, sizes), _any(draw, sizes)[:2]]
    found = [*groups[0], *groups[1]]
    size = found[0]["block_size"]
    kernel = size // _one(draw, _divisors(size))
    ratio = _one(draw, _divisors(kernel))
    return [*found, found[0] | {"beside": 0, "kernel_block_size": kernel, "ratio": ratio}]


def _any(draw: Draw, sizes: tuple[int, ...]) -> list[Config]:
    return [_group(draw, sizes) for _ in range(_int(draw, 1, MOST_GROUPS))]


_DEALS: Mapping[str, Deal] = {
    "any": _any,
    "plain": _plain,
    "recurrent": _recurrent,
    "beside full": _beside_full,
    "local": _local,
    "sidecar": _sidecar,
}
_ROOMS: Mapping[str, Room] = {
    "tight": _tight,
    "roomy": _roomy,
    "spanned": _spanned,
    "narrow": _narrow,
    "crowded": _crowded,
}
_ROUTED = ("optional", "required")
PROFILES: Mapping[str, Given] = {
    "plain": {"groups": "plain", "room": "usual"},
    "plain with experts": {"groups": "plain", "room": "usual", "experts": _ROUTED},
    "media": {"groups": "any", "room": "usual", "media": ON},
    "experts": {"groups": "any", "room": "usual", "experts": _ROUTED},
    "drafts": {"groups": "any", "room": "usual", "drafts": ON},
    "states": {"groups": "recurrent", "room": "usual"},
    "states and drafts": {"groups": "recurrent", "room": "usual", "drafts": ON},
    "roomy": {"groups": "recurrent", "room": "roomy"},
    "tight": {"groups": "beside full", "room": "tight"},
    "crowded": {"groups": "any", "room": "crowded"},
    "spanned": {"groups": "plain", "room": "spanned"},
    "narrow": {"groups": "local", "room": "narrow"},
    "sidecars": {
        "groups": "sidecar",
        "room": "usual",
        "caching": ON,
        "tiers": ("host", "host and disk"),
    },
    "ranks": {"groups": ("plain", "any"), "room": "usual", "caching": ON, "ranks": ON},
    "any room": {"room": ROOMS[1:]},
    "others": {},
}
"""Name -> levels; each has something that the others rarely have."""
ROWS = DealtRows(FACTORS, PROFILES)


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


SUITE = ComponentSuite(
    "system",
    PROPERTIES,
    draw_config,
    EngineMachine,
    draw_operation,
    profiles=tuple(partial(_config, name) for name in PROFILES),
    space=Space(FACTORS, {}),
)
