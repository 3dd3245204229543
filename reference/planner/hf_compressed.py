"""Cache specs of DeepSeek V4: windows, compressed layers, and what compressors keep (Q1, Q2).

Every layer has a window. A layer with ratio m has an entry for m tokens besides, and the inputs of
entries that are not whole yet: keys and scores of the last m tokens, of twice as many for ratio 4,
whose entries overlap. Such a layer also has an indexer, with entries and inputs of its own.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvproof.reference.planner.hf_fields import Fields
from kvproof.reference.planner.layer_spec import LayerSpec, Part

_OVERLAPPING = 4
"""Ratio whose entries are made of two runs of tokens, and whose layers have an indexer."""


def compressed(fields: Fields) -> list[LayerSpec]:
    """Return the caches of every layer, one after the other; draft layers have windows alone."""
    depth = fields.count("num_hidden_layers")
    ratios = fields.numbers("compress_ratios")
    if ratios is None or len(ratios) < depth or min(ratios) < 0:
        raise fields.wrong("compress_ratios", ratios, f"at least {depth} ratios, none below 0")
    entry = fields.compressed()
    found = [each for at in range(depth) for each in _layer(fields, at, ratios[at], entry)]
    window = fields.count("sliding_window")
    drafts = range(fields.whole("num_nextn_predict_layers", 0))
    return found + [
        LayerSpec(f"draft.{index}", depth + index, "window", (entry,), window, draft=True)
        for index in drafts
    ]


def _layer(fields: Fields, index: int, ratio: int, entry: Part) -> Iterator[LayerSpec]:
    name = f"layers.{index}"
    yield LayerSpec(f"{name}.window", index, "window", (entry,), fields.count("sliding_window"))
    if ratio < 2:
        return
    indexer = (fields.indexer(),) if ratio == _OVERLAPPING else ()
    yield LayerSpec(name, index, "full", (entry, *indexer), ratio=ratio)
    runs = 2 if ratio == _OVERLAPPING else 1
    widths = {"compressor": fields.count("head_dim", 512)}
    if indexer:
        widths["indexer_compressor"] = fields.count("index_head_dim", 128)
    for kept, width in widths.items():
        part = Part("keys_and_scores", 1, 2 * runs * width, "float32", replicated=True)
        yield LayerSpec(f"{name}.{kept}", index, "window", (part,), runs * ratio)
