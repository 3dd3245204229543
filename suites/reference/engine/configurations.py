"""Draws tiny engines of any kind for the suite `system`: groups, room, tiers, context ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import lcm
from typing import Any, TypeAlias

from hypothesis import strategies as st

from kvproof.suites.framework.component_suite import Config, DealtConfig, Draw
from kvproof.suites.framework.dealt import DealtRows
from kvproof.suites.framework.rows import Given
from kvproof.suites.reference.engine.table import FACTORS, NONE, OFF, ON, ROOMS

BLOCK_SIZES = ((1,), (2,), (4,), (2, 4), (1, 2, 4), (3,), (2, 3, 6))
RANK_SIZES = ((4,), (6,), (8,), (4, 8))
"""Block sizes of which several context ranks have a part."""
MOST_GROUPS = 4
WORD_BYTES = 8
"""Bytes of a token in a block of the symbolic model."""
HEADERS = 64 * 300
"""Bytes of the headers of some hundred files."""

Deal: TypeAlias = Callable[[Draw, tuple[int, ...]], list[Config]]
"""Draws groups with some of the block sizes."""
Room: TypeAlias = Callable[[Draw, int, int], Config]
"""Takes the blocks of a state and of a unit; returns changes of a configuration."""


def integer(draw: Draw, first: int, last: int) -> int:
    """Draw a number from `first` to `last`."""
    value: int = draw(st.integers(first, last))
    return value


def one(draw: Draw, choices: Any) -> Any:
    """Draw one of several values."""
    return draw(st.sampled_from(choices))


def rarely(draw: Draw, times: int) -> bool:
    """Draw true once in so many times."""
    return integer(draw, 0, times - 1) == times - 1


def _group(draw: Draw, sizes: tuple[int, ...]) -> Config:
    kind = one(draw, ("full", "full", "window", "chunk", "state"))
    size = one(draw, sizes)
    group: Config = {"kind": kind, "block_size": size}
    if kind in ("window", "chunk"):
        group["size"] = integer(draw, 1, 3 * max(sizes))
    if kind == "state":
        group["state_blocks"] = integer(draw, 1, 2)
    else:
        kernel = group["kernel_block_size"] = size // one(draw, _divisors(size))
        group["draft"] = rarely(draw, 5)
        group["ratio"] = one(draw, (1, 1, *_divisors(kernel)))
    return group


def _divisors(size: int) -> list[int]:
    return [each for each in (1, 2, 3, 4) if size % each == 0]


def draw_config(draw: Draw) -> DealtConfig:
    """Draw an engine whose pool is too small for its requests."""
    return _config(one(draw, tuple(PROFILES)), draw)


def _config(profile: str, draw: Draw) -> DealtConfig:
    """Draw an engine with the levels of a row."""
    row = ROWS.draw(profile, draw)
    sizes = one(draw, RANK_SIZES if row["ranks"] == ON else BLOCK_SIZES)
    whole = row["partial"] == ON
    groups = (_full if whole else _DEALS[row["groups"]])(draw, sizes)
    unit = lcm(*(group["block_size"] for group in groups))
    width = sum(unit // group["block_size"] for group in groups if group["kind"] != "state")
    states = sum(group.get("state_blocks", 0) for group in groups if group["kind"] == "state")
    config: Config = {
        "groups": groups,
        "partial_blocks": whole,
        "num_blocks": 1 + states * one(draw, (1, 1, 2, 4)) + max(1, width) * _units(draw),
        "prefix_caching": row["caching"] == ON,
        "state_pool": row["state pool"],
        "max_requests": integer(draw, 1, 5),
        "state_budget": integer(draw, 1, 3) if row["state budget"] == "some" else 0,
        "decode_interval": unit * {NONE: 0, "a unit": 1, "two units": 2}[row["decode interval"]],
        "max_batch_tokens": integer(draw, *((1, 4) if row["step"] == "few tokens" else (7, 30))),
        "steps_in_flight": int(row["in flight"]),
        "num_drafts": integer(draw, 1, 3) if row["drafts"] == ON else 0,
        "vocabulary": integer(draw, 2, 3),
        "media": row["media"] == ON,
        "experts": row["experts"] != NONE,
        "require_experts": row["experts"] == "required",
        "twin": row["twin"] == ON,
        "tiers": _tiers(draw, row["tiers"], unit, states + width),
        "ranks": _ranks(draw, groups) if row["ranks"] == ON else (1, 1),
        "scaled": _scaled(draw, groups) if row["scales"] == ON else [],
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
    chosen: tuple[int, int] = one(draw, turns) if turns else (1, 1)
    return chosen


def _scaled(draw: Draw, groups: list[Config]) -> list[int]:
    """All groups of attention, or one of them: the pages of others have no scales (Q8)."""
    able = [index for index, group in enumerate(groups) if group["kind"] != "state"]
    return [one(draw, able)] if able and draw(st.booleans()) else able


def _page(group: Config) -> int:
    tokens: int = group.get("kernel_block_size") or group["block_size"]
    return tokens


def _tiers(draw: Draw, level: str, unit: int, blocks: int) -> Config | None:
    if level == NONE:
        return None
    size = WORD_BYTES * unit * blocks
    return {
        "host": size * 40 if rarely(draw, 3) else size * integer(draw, 1, 4),
        "disk": 0 if level == "host" else 100 * size + HEADERS,
        "patience": integer(draw, 1, 4),
    }


def _tight(draw: Draw, states: int, width: int) -> Config:
    """No block remains next to the longest prompt: its own hit takes its room (C2)."""
    blocks = 1 + states + max(1, width) * integer(draw, 4, 5)
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
        "num_blocks": 1 + max(1, width) * integer(draw, 4, 6),
        "max_requests": integer(draw, 2, 4),
        "max_batch_tokens": integer(draw, 2, 6),
        "tiers": {"host": WORD_BYTES * width * 400, "disk": 0, "patience": integer(draw, 1, 4)},
    }


def _narrow(draw: Draw, states: int, width: int) -> Config:
    """Windows and chunks fit at the last token, perhaps not with a span or before a border (B8)."""
    return {"num_blocks": 1 + states + max(1, width) * integer(draw, 3, 5)}


def _crowded(draw: Draw, states: int, width: int) -> Config:
    """More requests run than a step has tokens, and moved requests find no room."""
    return {
        "num_blocks": 1 + 2 * states + max(1, width) * integer(draw, 4, 6),
        "max_requests": integer(draw, 3, 5),
    }


def _units(draw: Draw) -> int:
    return integer(draw, 3, 5) if draw(st.booleans()) else integer(draw, 6, 12)


def _plain(_: Draw, sizes: tuple[int, ...]) -> list[Config]:
    return [{"kind": "full", "block_size": sizes[-1]}]


def _full(draw: Draw, sizes: tuple[int, ...]) -> list[Config]:
    groups = [_group(draw, sizes) for _ in range(integer(draw, 1, 2))]
    return [
        {"kind": "full", "block_size": each["block_size"], "ratio": each.get("ratio", 1)}
        for each in groups
    ]


def _recurrent(draw: Draw, sizes: tuple[int, ...]) -> list[Config]:
    state = {"kind": "state", "block_size": sizes[0], "state_blocks": integer(draw, 1, 2)}
    return [state, *[_group(draw, sizes) for _ in range(integer(draw, 0, 1))]]


def _beside_full(draw: Draw, sizes: tuple[int, ...]) -> list[Config]:
    state = {"kind": "state", "block_size": sizes[0], "state_blocks": integer(draw, 1, 2)}
    return [state, *_plain(draw, sizes)]


def _local(draw: Draw, sizes: tuple[int, ...]) -> list[Config]:
    size, kind = one(draw, sizes), one(draw, ("window", "chunk", "chunk"))
    return [{"kind": kind, "block_size": size, "size": size * integer(draw, 1, 5)}]


def _sidecar(draw: Draw, sizes: tuple[int, ...]) -> list[Config]:
    """Groups whose last one belongs to the blocks of another (Q2)."""
    groups = [one(draw, (_plain, _local))(draw, sizes), _any(draw, sizes)[:2]]
    found = [*groups[0], *groups[1]]
    size = found[0]["block_size"]
    kernel = size // one(draw, _divisors(size))
    ratio = one(draw, _divisors(kernel))
    return [*found, found[0] | {"beside": 0, "kernel_block_size": kernel, "ratio": ratio}]


def _any(draw: Draw, sizes: tuple[int, ...]) -> list[Config]:
    return [_group(draw, sizes) for _ in range(integer(draw, 1, MOST_GROUPS))]


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
    "copied scales": {
        "groups": "plain",
        "room": "usual",
        "partial": ON,
        "caching": ON,
        "scales": ON,
        "experts": (NONE, "optional"),
    },
    "sidecars below": {
        "groups": "sidecar",
        "room": "usual",
        "media": OFF,
        "experts": NONE,
        "twin": OFF,
        "caching": ON,
        "tiers": "host and disk",
        "step": "many tokens",
    },
    "scales": {
        "groups": ("plain", "local", "sidecar"),
        "room": "usual",
        "caching": ON,
        "scales": ON,
        "tiers": ("host", "host and disk"),
    },
    "ranks": {"groups": ("plain", "any"), "room": "usual", "caching": ON, "ranks": ON},
    "any room": {"room": ROOMS[1:]},
    "others": {},
}
"""Name -> levels; each has something that the others rarely have."""
ROWS = DealtRows(FACTORS, PROFILES)
DRAWN = tuple(partial(_config, name) for name in PROFILES)
"""Draws of a configuration, one for each profile."""
