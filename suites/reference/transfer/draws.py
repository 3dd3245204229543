"""Layers of random geometry and of real models, as JSON."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from kvproof.suites.framework.component_suite import Config, Draw
from kvproof.suites.reference.transfer.oracle import NUMBERS, Cache
from kvproof.suites.reference.transfer.properties import LAYOUTS

CHUNK = 8
KINDS = ("full", "window", "window", "chunk", "state")
WIDTHS = (1, 2, 3, 7, 8, 16, 24, 33, 66)
"""Bytes of a head; now and then any up to `WIDEST`."""
WIDEST = 1200
SEEDS = st.integers(0, 2**16)
_SIZES = st.integers(1, CHUNK + 1) | st.integers(1, 20)
"""Mostly windows and chunks that keep a part of the tokens stored together."""


def draw_random(draw: Draw) -> Config:
    """Draw one to three tables, each with one to three geometries of layers."""
    kinds = [draw(st.sampled_from(KINDS)) for _ in range(draw(st.integers(1, 3)))]
    caches: list[Config] = []
    for table, kind in enumerate(kinds):
        caches += _table(draw, table, kind, first=len(caches))
    slots = draw(st.sampled_from((0, 0, 1, 2, 3, 4, 5)))
    return {
        "caches": caches,
        "chunk": CHUNK,
        "reader": draw(st.integers(0, 5)) == 0,
        "slots": slots,
        "large": draw(st.sampled_from((1 << 20, 1, 40, 200))),
        "threads": draw(st.sampled_from((1, 1, 3))),
        "delay": None,
        "seed": draw(SEEDS),
    }


def draw_delayed(draw: Draw) -> Config:
    """Draw layers whose copies happen late."""
    config = draw_random(draw)
    slots = draw(st.integers(1, 5))
    return {**config, "slots": slots, "delay": draw(SEEDS)}


def _table(draw: Draw, table: int, kind: str, *, first: int) -> list[Config]:
    block = draw(st.sampled_from((1, 2, 4, 8)))
    shared = {
        "kind": kind,
        "size": draw(_SIZES) if kind in ("window", "chunk") else 0,
        "table": table,
        "blocks": draw(st.integers(5, 7)) if kind == "state" else CHUNK // block * 3 + 1,
    }
    found: list[Config] = []
    for _ in range(draw(st.integers(1, 3))):
        shape, equal = _shape(draw, kind, block) | shared, list[Config]()
        for _ in range(draw(st.integers(1, 2))):
            equal += _layer(draw, f"l{first + len(found) + len(equal)}", shape)
        found += _in_turn(equal) if draw(st.integers(0, 3)) == 0 else equal
    return found


def _in_turn(layers: list[Config]) -> list[Config]:
    """Put equal layers into one memory: a page of each, then the next page of each."""
    if len(layers) == 1:
        return layers
    page = Cache(**{**layers[0], "pad": 0})
    step = page.strides[NUMBERS[page.layout].index("pages")]
    pad = layers[0]["pad"] + step * (len(layers) - 1)
    return [
        {**layer, "pad": pad, "buffer": layers[0]["name"], "offset": step * place}
        for place, layer in enumerate(layers)
    ]


def _shape(draw: Draw, kind: str, block: int) -> Config:
    layout = "state" if kind == "state" else draw(st.sampled_from(LAYOUTS[:-1]))
    item = draw(st.sampled_from((1, 1, 2, 4)))
    packed = layout == "indexer"
    head = (
        draw(st.sampled_from(WIDTHS)) if draw(st.integers(0, 11)) else draw(st.integers(1, WIDEST))
    )
    ratio = 1 if kind == "state" else draw(st.sampled_from([n for n in (1, 2, 4) if n <= block]))
    return {
        "layout": layout,
        "ratio": ratio,
        "page": 1 if kind == "state" else block // ratio,
        "heads": draw(st.integers(1, 3)) if head <= 66 else 1,
        "head": head + 4 if packed else head * item,
        "item": 1 if packed else item,
        "pad": draw(st.sampled_from((0, 0, 0, 1, 5, 16))) * (1 if packed else item),
        "scales": 4 if packed else 0,
    }


def _layer(draw: Draw, name: str, shape: Config) -> list[Config]:
    """Draw one tensor, or K and V apart."""
    pair = shape["layout"] in ("nhd", "hnd") and draw(st.booleans())
    names = (f"{name}.k", f"{name}.v") if pair else (name,)
    return [{"name": each, "layer": name, **shape} for each in names]


def _model(*layers: dict[str, Any]) -> list[Config]:
    """Spell out two layers of each kind, every one with its table."""
    caches = []
    for number, layer in enumerate(layers):
        for twin in range(2):
            fields = {"kind": "full", "size": 0, "table": 0, "ratio": 1, "page": 16, "heads": 1,
                    "item": 2, "pad": 0, "scales": 0, **layer}  # fmt: skip
            name = f"layers.{2 * fields.pop('layer', number) + twin}"
            part = fields.pop("part", "")
            caches.append({"name": f"{name}.{part}" if part else name, "layer": name, **fields})
    return caches


def _attention(heads: int, width: int, layout: str = "kv-nhd", **more: Any) -> dict[str, Any]:
    return {"layout": layout, "heads": heads, "head": 2 * width, **more}


def _state(part: str, size: int, item: int, layer: int, table: int = 1) -> dict[str, Any]:
    return {"layout": "state", "kind": "state", "head": size * item, "item": item, "page": 1,
            "part": part, "layer": layer, "table": table}  # fmt: skip


_LATENT = {"layout": "latent", "head": 1152, "page": 64, "part": "latent", "layer": 0}
_INDEXER = {"layout": "indexer", "head": 132, "page": 64, "item": 1, "scales": 4,
            "part": "indexer", "layer": 0}  # fmt: skip

MODELS: dict[str, list[Config]] = {
    "Llama-3 8B": _model(_attention(8, 128)),
    "Llama-3 70B, 4 ranks": _model(_attention(2, 128, "page-kv-nhd")),
    "Qwen3 30B-A3B": _model(_attention(4, 128, "page-kv-hnd")),
    "Qwen3-Next 80B-A3B": _model(
        _attention(2, 256, "kv-hnd", ratio=2), _state("conv", 8192 * 3, 2, 1),
        _state("recurrence", 32 * 128 * 2, 4, 1),
    ),
    "DeepSeek-V3": _model({"layout": "latent", "head": 1152, "page": 64}),
    "DeepSeek-V3.2 and GLM-5": _model(_LATENT, _INDEXER),
    "Gemma 3 27B": _model(_attention(16, 128), _attention(16, 128, kind="window", size=1024,
                                                         table=1)),
    "Gemma 4": _model(_attention(4, 512, table=0), _attention(16, 256, kind="window", size=40,
                                                              table=1)),
    "gpt-oss 20B": _model(_attention(8, 64), _attention(8, 64, kind="window", size=128, table=1)),
    "Falcon-H1 1.5B": _model(_attention(2, 128, "nhd", part="k", layer=0),
                             _attention(2, 128, "nhd", part="v", layer=0),
                             _state("conv", 3584 * 3, 2, 1), _state("ssm", 48 * 64 * 4, 4, 1)),
    "Kimi-Linear 48B": _model({"layout": "latent", "head": 1152, "page": 64},
                              _state("conv", 3 * 4096 * 3, 2, 1),
                              _state("recurrence", 32 * 128 * 2, 4, 1)),
    "Mamba-2 2.7B": _model(_state("conv", 5376 * 3, 2, 0, 0), _state("ssm", 80 * 64 * 2, 4, 0, 0)),
    "Llama-4 Scout": _model(_attention(8, 128), _attention(8, 128, kind="chunk", size=96, table=1)),
    "MiMo, V narrower than K": _model(_attention(4, 192, "nhd", part="k", layer=0),
                                      _attention(4, 128, "nhd", part="v", layer=0)),
}  # fmt: skip
"""Geometry of one layer's caches as published; layers, pages and long states are fewer."""
MODEL_CHUNK = 64


def draw_model(draw: Draw) -> Config:
    """Draw a real model with pages of an eighth of their tokens."""
    return model(draw(st.sampled_from(sorted(MODELS))), draw(st.sampled_from((0, 2, 3))), part=8)


def model(name: str, slots: int, *, part: int = 1) -> Config:
    """Return the configuration of a model with blocks for two chunks and a half.

    `part` divides the tokens of pages, windows and chunks: enough for a history of many calls.
    """
    return {
        "caches": [_with_blocks(cache, part) for cache in MODELS[name]],
        "chunk": MODEL_CHUNK // part,
        "reader": False,
        "slots": slots,
        "large": 64 << 10,
        "delay": None,
        "seed": 1,
    }


def _with_blocks(cache: Config, part: int) -> Config:
    if cache["kind"] == "state":
        return {**cache, "blocks": 5}
    page = cache["page"] // part
    blocks = 1 + 5 * MODEL_CHUNK // part // (2 * page * cache["ratio"])
    return {**cache, "page": page, "size": cache["size"] // part, "blocks": blocks}
