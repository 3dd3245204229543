"""Models and settings drawn for plans, as JSON."""

from __future__ import annotations

from dataclasses import replace
from math import lcm
from typing import Any, NamedTuple

from hypothesis import strategies as st

from kvproof.reference.planner.layer_spec import LayerSpec, ModelSpec, Part
from kvproof.reference.planner.plan import PlanSettings
from kvproof.suites.framework.component_suite import Config, Draw
from kvproof.suites.framework.coverage import Coverage


class Case(NamedTuple):
    """One configuration."""

    model: ModelSpec
    settings: PlanSettings
    coverage: Coverage

    def check(self, name: str, ok: object, sentence: str) -> None:
        self.coverage.check(name, ok, lambda: f"{sentence}; planned for {self.settings}")


PART_BYTES = (16, 32, 48, 132, 576, 7)
"""Bytes of a part for each token; 132 is an indexer's row, 7 no multiple of anything."""

SCALE = "_scale"
"""End of the name of a part with the scales of another one."""

STATE_BYTES = (64, 1000, 40_000, 123_457)


LENGTHS = (1, 9, 40, 130, 200, 333)
MEMORY = ((10_000, 60_000), (300_000, 10**6), (300_000, 10**6), (10**6, 10**7))
STAGES = (1, 1, 1, 2, 3)


KINDS = ("full", "window", "window", "chunk", "state")


def draw_config(draw: Draw, *, first: str = "") -> Config:
    """Draw the kinds of a model's layers, and the settings of a plan.

    The first layer is of the kind `first`, if one is given.
    """
    others = [draw(st.sampled_from(KINDS)) for _ in range(draw(st.integers(0, 2)))]
    kinds = [first or draw(st.sampled_from(KINDS)), *others]
    block, parts = draw(st.sampled_from([(4, 1), (4, 2), (8, 1), (8, 4), (6, 3), (16, 1)]))
    kernel = block // parts
    shapes = [_draw_shape(draw, kind, kernel) for kind in kinds]
    layers = [0, *draw(st.lists(st.integers(0, len(shapes) - 1), max_size=11))]
    stages = min(len(layers), draw(st.sampled_from(STAGES)))
    shared = stages == 1 and shapes[layers[-1]]["kind"] != "state"
    return {
        "shapes": shapes,
        "layers": layers,
        "readers": draw(st.integers(0, 2)) if shared else 0,
        "settings": {
            **_draw_settings(draw, stages, block, kernel),
            **_draw_context(draw, shapes, kernel),
        },
    }


def _draw_context(draw: Draw, shapes: list[Config], kernel: int) -> Config:
    """Draw the ranks that share tokens: their turns are whole entries, and fill kernel blocks."""
    ratio = lcm(*(shape.get("ratio", 1) for shape in shapes))
    able = [
        (count, turn)
        for count in (2, 4)
        for turn in range(ratio, kernel + 1, ratio)
        if kernel % (count * turn) == 0
    ]
    alone = not able or any(shape["kind"] in ("window", "chunk") for shape in shapes)
    if alone or draw(st.booleans()):
        return {}
    count, turn = draw(st.sampled_from(able))
    return {"context_parallel": count, "interleave": turn}


def _draw_shape(draw: Draw, kind: str, kernel: int) -> Config:
    if kind == "state":
        parts = draw(st.lists(st.sampled_from(STATE_BYTES), min_size=1, max_size=2))
        return {"kind": kind, "size": 0, "parts": parts}
    parts = draw(st.lists(st.sampled_from(PART_BYTES), min_size=1, max_size=2))
    size = 0 if kind == "full" else draw(st.sampled_from([1, 5, 16, 24, 60]))
    ratio = draw(st.sampled_from([1, 1, *(each for each in (2, 4) if kernel % each == 0)]))
    scales = draw(st.sampled_from([False, False, True]))
    return {"kind": kind, "size": size, "parts": parts, "ratio": ratio, "scales": scales}


def _draw_settings(draw: Draw, stages: int, block: int, kernel: int) -> Config:
    low, high = draw(st.sampled_from(MEMORY))
    return {
        "memory": [draw(st.integers(low, high)) for _ in range(stages)],
        "max_len": draw(st.sampled_from(LENGTHS)),
        "block_size": block,
        "kernel_block_size": 0 if kernel == block else kernel,
        "num_blocks": draw(st.sampled_from([0, 0, 0, 0, 2, 50])),
        "max_batch_tokens": draw(st.sampled_from([4, 16, 70])),
        "drafts": draw(st.sampled_from([0, 0, 0, 1, 3])),
        "max_unit": block * draw(st.sampled_from([1, 2, 4, 6])),
        "hybrid_groups": draw(st.sampled_from([True, True, True, False])),
        "state_pool": draw(st.sampled_from(["shared", "shared", "separate"])),
        "max_requests": draw(st.sampled_from([1, 4])),
        "prefix_cache_state_budget": draw(st.sampled_from([0, 2])),
    }


def model_of(config: Config) -> ModelSpec:
    """Return the model of a configuration; its last layers read the last layer with a cache."""
    layers = [
        _layer(config["shapes"][shape], index) for index, shape in enumerate(config["layers"])
    ]
    owner = layers[-1]
    for index in range(config["readers"]):
        at = len(layers)
        layers.append(LayerSpec(f"reader.{index}", at, "shared", owner=owner.name))
    return ModelSpec("drawn", len(layers), tuple(layers))


def _layer(shape: Config, index: int) -> LayerSpec:
    parts = tuple(Part(f"part{i}", 1, width, "uint8") for i, width in enumerate(shape["parts"]))
    if shape.get("scales"):
        parts += tuple(Part(f"{part.name}{SCALE}", 1, 4, "uint8") for part in parts)
    ratio = shape.get("ratio", 1)
    return LayerSpec(f"layers.{index}", index, shape["kind"], parts, shape["size"], ratio=ratio)


def settings_of(config: Config, **changed: Any) -> PlanSettings:
    """Return the settings of a configuration."""
    asked = {**config["settings"], "memory": tuple(config["settings"]["memory"])}
    return replace(PlanSettings(**asked), **changed)
